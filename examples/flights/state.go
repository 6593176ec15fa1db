package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keylanes/keylanes/codec"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// state is what one run knows: what was published, what became of it, and the
// fleet.
type state struct {
	run    string // distinguishes this run's messages from another's
	faults *faults
	purge  bool
	fleet  *fleet
	start  time.Time

	publishedAt []atomic.Int64 // by message, nanoseconds since start
	took        []atomic.Int64 // by message, from publish to handled; 0: not handled
	applied     []atomic.Bool  // by message: it is in the fleet's state
	dead        []atomic.Bool  // by message: its copy is confirmed
	ended       []atomic.Bool  // by message: one of both

	published, decided, succeeded, deadLettered atomic.Int64
	retries, laneRestarts, foreign              atomic.Int64
	lastDecided                                 atomic.Int64 // nanoseconds since start

	room chan struct{} // a token for each message published and not decided
	done chan struct{} // closed when every message is decided

	mu      sync.Mutex
	reasons map[string]int // of dead letters
}

func newState(run string, total, window int, f *faults, purge bool) *state {
	return &state{
		run: run, faults: f, purge: purge, fleet: newFleet(), start: time.Now(),
		publishedAt: make([]atomic.Int64, total), took: make([]atomic.Int64, total),
		applied: make([]atomic.Bool, total), dead: make([]atomic.Bool, total), ended: make([]atomic.Bool, total),
		room: make(chan struct{}, window), done: make(chan struct{}),
		reasons: map[string]int{},
	}
}

func (s *state) total() int { return len(s.applied) }

// id names message i; other runs' messages have other names.
func (s *state) id(i int) string { return fmt.Sprintf("%s-%07d", s.run, i) }

// index gives the number of one of this run's messages.
func (s *state) index(m *transport.Message) (int, bool) {
	n, ok := strings.CutPrefix(oracle.Identity(m), s.run+"-")
	if !ok {
		return 0, false
	}
	i, err := strconv.Atoi(n)
	return i, err == nil && i >= 0 && i < s.total()
}

// decide counts message i as one that needs nothing more, the first time that
// it does.
func (s *state) decide(i int) {
	if s.ended[i].Swap(true) {
		return // a duplicate
	}
	s.lastDecided.Store(int64(time.Since(s.start)))
	<-s.room
	if s.decided.Add(1) == int64(s.total()) {
		close(s.done)
	}
}

// errForeign: somebody else's message is in the queue.
var errForeign = errors.New("the queue holds messages that this run didn't publish: use an empty queue, or -purge to consume them")

// ours is the outermost middleware: it keeps what an earlier run has left away
// from handler and oracle. Without -purge it stops the subscription, and the
// message goes back.
func (s *state) ours(next transport.Handler) transport.Handler {
	return transport.HandlerFunc(func(ctx context.Context, d *transport.Delivery) error {
		if _, ok := s.index(&d.Message); ok {
			return next.Handle(ctx, d)
		}
		s.foreign.Add(1)
		if s.purge {
			return nil
		}
		return supervision.With(errForeign, supervision.StopSubscription())
	})
}

// handler follows each aircraft from flight to flight.
func (s *state) handler() transport.Handler {
	return transport.Typed(codec.JSON, func(ctx context.Context, l leg, d *transport.Delivery) error {
		i, _ := s.index(&d.Message)
		if s.faults.slow[d.Key] {
			select {
			case <-time.After(slowFor):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if s.faults.poison[d.Key] {
			return errPoison
		}
		switch s.faults.at(i, max(transport.Attempt(ctx), 1)) {
		case errorFault:
			return errInjected
		case panicFault:
			panic("injected panic")
		}
		// The last step: what fails above leaves no trace, so that a retry
		// starts where this attempt did.
		if s.applied[i].Swap(true) {
			return nil // a duplicate: an id makes work idempotent
		}
		s.fleet.fly(d.Key, l, d.Body)
		s.took[i].Store(max(int64(time.Since(s.start))-s.publishedAt[i].Load(), 1))
		s.succeeded.Add(1)
		s.decide(i)
		return nil
	})
}

// copies is the dead-letter target with a count of what it confirmed.
type copies struct {
	transport.Publisher
	s *state
}

// Publish implements transport.Publisher.
func (c copies) Publish(ctx context.Context, ms ...transport.Message) error {
	if err := c.Publisher.Publish(ctx, ms...); err != nil {
		return err // none is counted; what did arrive is counted by the retry
	}
	for i := range ms {
		if n, ok := c.s.index(&ms[i]); ok && !c.s.dead[n].Swap(true) {
			c.s.deadLettered.Add(1)
			c.s.decide(n)
		}
	}
	return nil
}

// reason counts a dead letter's reason.
func (s *state) reason(r string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reasons[r]++
}

// publish sends the events, repeated, in order, a batch at a time.
func (s *state) publish(ctx context.Context, p transport.Publisher, events []event) error {
	total := s.total()
	batch := make([]transport.Message, 0, publishBatch)
	for i := range total {
		select {
		case s.room <- struct{}{}:
		default:
			// No room: what waits goes out first, or nothing would ever be
			// decided.
			if err := s.send(ctx, p, batch); err != nil {
				return err
			}
			batch = batch[:0]
			select {
			case s.room <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		e := &events[i%len(events)]
		batch = append(batch, transport.Message{
			ID: s.id(i), Key: e.key, ContentType: codec.ContentTypeJSON, Body: s.faults.body(i, e),
		})
		s.publishedAt[i].Store(int64(time.Since(s.start)))
		if len(batch) == publishBatch || i == total-1 {
			if err := s.send(ctx, p, batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	return nil
}

func (s *state) send(ctx context.Context, p transport.Publisher, batch []transport.Message) error {
	if err := context.Cause(ctx); err != nil || len(batch) == 0 {
		return err
	}
	if err := p.Publish(ctx, batch...); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	s.published.Add(int64(len(batch)))
	return nil
}
