// Package consume runs keylanes for a benchmark: until so many messages are
// handled, or settled, and then to its end.
package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// Countdown is a handler that does nothing but count.
type Countdown struct {
	left atomic.Int64
	done chan struct{}
}

// NewCountdown gives one that is done after n calls.
func NewCountdown(n int) *Countdown {
	c := &Countdown{done: make(chan struct{})}
	c.left.Store(int64(n))
	return c
}

// Handle implements keylanes.Handler.
func (c *Countdown) Handle(context.Context, *keylanes.Delivery) error {
	c.Count()
	return nil
}

// Count counts one.
func (c *Countdown) Count() {
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
}

// Done is closed when all are counted.
func (c *Countdown) Done() <-chan struct{} { return c.done }

// Exactly reports more calls than there should have been.
func (c *Countdown) Exactly() error {
	if left := c.left.Load(); left != 0 {
		return fmt.Errorf("%d calls too few (negative: too many)", left)
	}
	return nil
}

// Subscription is a running keylanes.Run.
type Subscription struct {
	cancel context.CancelFunc
	ended  chan error
}

// Start runs src with h. Failures are retried for ever: no benchmark's handler
// fails. Logs are discarded.
func Start(src transport.Source, h transport.Handler, o keylanes.Options) *Subscription {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Subscription{cancel: cancel, ended: make(chan error, 1)}
	o.Policy = supervision.RetryForever(supervision.Backoff{})
	o.Logger = slog.New(slog.DiscardHandler)
	go func() { s.ended <- keylanes.Run(ctx, src, h, &o) }()
	return s
}

// Until waits for done; the subscription's own end, or ctx's, is an error.
func (s *Subscription) Until(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case err := <-s.ended:
		s.ended <- err // Stop wants it too
		return errors.Join(errors.New("the subscription ended by itself"), err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop drains and gives what Run returned. It may be called once.
func (s *Subscription) Stop() error {
	s.cancel()
	return <-s.ended
}

// OnSettled is src with a look at each settlement that has gone well, from
// whatever goroutine the transport settles on.
func OnSettled(src transport.Source, f func(*transport.Delivery)) transport.Source {
	return watched{src, f}
}

type watched struct {
	transport.Source
	f func(*transport.Delivery)
}

func (w watched) Open(ctx context.Context, s transport.Sink) (transport.Receiver, error) {
	return w.Source.Open(ctx, watchedSink{s, w.f})
}

type watchedSink struct {
	transport.Sink
	f func(*transport.Delivery)
}

func (s watchedSink) Settled(d *transport.Delivery, o transport.Outcome, err error) {
	s.Sink.Settled(d, o, err)
	if err == nil {
		s.f(d)
	}
}
