// Package treetest runs whole subscriptions on a transport, in every dispatch
// mode, and lets the oracle judge them. It is the second half of the conformance
// suite: transporttest looks at a transport's receivers, this at what a user gets
// from them. Every transport's tests run both, with the same Harness.
//
//	func TestSubscriptions(t *testing.T) { treetest.Run(t, harness) }
package treetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
	"github.com/keylanes/keylanes/transport/transporttest"
)

// scenario is one thing that a subscription has to do.
type scenario struct {
	name string
	need transporttest.Need
	run  func(f *fixture)
}

var modes = []actors.Dispatch{actors.Sequential(), actors.Workers(4), actors.ByKey(4), actors.PerKey(4)}

// Run runs every scenario in every mode, each on a queue of its own.
func Run(t *testing.T, harness transporttest.Harness) {
	t.Helper()
	if harness.New == nil {
		t.Fatal("treetest: Harness.New is nil: give a function that makes a queue")
	}
	h := harness.WithDefaults()
	for _, s := range scenarios {
		for _, d := range modes {
			t.Run(s.name+"/"+d.String(), func(t *testing.T) {
				if !h.Serial {
					t.Parallel()
				}
				h.Scenario(t, func(t testing.TB, skip func(why string)) { runScenario(t, h, s, d, skip) })
			})
		}
	}
}

func runScenario(t testing.TB, h *transporttest.Harness, s scenario, d actors.Dispatch, skip func(why string)) {
	q := h.New(t, s.need)
	dead, err := memory.New(nil).Queue("dead", nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{
		TB: t, h: h, q: q, dispatch: d, traits: q.Source.Traits(), log: oracle.New(), dead: dead, skip: skip,
		decided: map[string]bool{}, ran: map[string]int{}, waits: map[int]chan struct{}{},
	}
	f.publisher = f.log.Publisher(q.Publisher)
	s.run(f)
}

// fixture is what one scenario works with.
type fixture struct {
	testing.TB
	h         *transporttest.Harness
	q         *transporttest.Queue
	dispatch  actors.Dispatch
	traits    transport.Traits
	log       *oracle.Log
	publisher transport.Publisher
	dead      *memory.Queue
	skip      func(why string)

	mu        sync.Mutex
	published []string // the key of each, by number
	most      int      // the credit of whatever subscription had most
	decided   map[string]bool
	ran       map[string]int // by identity: how often
	waits     map[int]chan struct{}
}

const credit = 64

// skipUnless skips the scenario unless ok, and says why.
func (f *fixture) skipUnless(ok bool, why string) {
	f.Helper()
	if !ok {
		f.skip(why)
	}
}

// publish sends n messages with the keys in turn. Where the queue takes what has
// no key, every fifth has none.
func (f *fixture) publish(n int, keys ...string) {
	f.Helper()
	ms := make([]transport.Message, n)
	for i := range ms {
		id := strconv.Itoa(len(f.published))
		ms[i] = transport.Message{ID: id, Key: keys[i%len(keys)], Body: []byte(id)}
		if i%5 == 4 && !f.h.NoKeyless && !f.traits.GroupsExclusive {
			ms[i].Key = ""
		}
		f.published = append(f.published, ms[i].Key)
	}
	ctx, cancel := context.WithTimeout(f.Context(), f.h.Timeout)
	defer cancel()
	if err := f.publisher.Publish(ctx, ms...); err != nil {
		f.Fatalf("publish: %v", err)
	}
}

// mark notes that m is decided.
func (f *fixture) mark(m *transport.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decided[oracle.Identity(m)] = true
	if c := f.waits[len(f.decided)]; c != nil {
		close(c)
		delete(f.waits, len(f.decided))
	}
}

// run counts a run of m, and gives its number.
func (f *fixture) runOf(m *transport.Message) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := oracle.Identity(m)
	f.ran[id]++
	return f.ran[id]
}

// after is closed when n messages are decided.
func (f *fixture) after(n int) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := make(chan struct{})
	if len(f.decided) >= n {
		close(c)
	} else {
		f.waits[n] = c
	}
	return c
}

// copies marks what was copied to the dead-letter target.
type copies struct {
	transport.Publisher
	f *fixture
}

func (c copies) Publish(ctx context.Context, ms ...transport.Message) error {
	err := c.Publisher.Publish(ctx, ms...)
	if err == nil {
		for i := range ms {
			c.f.mark(&ms[i])
		}
	}
	return err
}

// options are the subscription's, with o's differences.
func (f *fixture) options(o actors.Options) *actors.Options {
	if o.Credit == 0 {
		o.Credit = credit
	}
	f.most = max(f.most, o.Credit)
	o.Dispatch, o.Logger = f.dispatch, slog.New(slog.DiscardHandler)
	o.DeadLetter = copies{f.log.DeadLetter(f.dead.Publisher()), f}
	if o.Policy == nil {
		o.Policy = quick(5)
	}
	return &o
}

// quick is the default policy with a short backoff.
func quick(attempts int) supervision.Policy {
	return supervision.DefaultWith(attempts, supervision.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond})
}

// subscription is one that runs.
type subscription struct {
	f    *fixture
	stop context.CancelFunc
	end  chan error
}

// start starts a subscription; what the handler accepts is marked.
func (f *fixture) start(o actors.Options, h transport.HandlerFunc) *subscription {
	f.Helper()
	o.Middleware = append(o.Middleware, f.log.Middleware())
	return f.launch(func(ctx context.Context) error {
		return actors.Run(ctx, f.log.Source(f.q.Source), f.marking(h), f.options(o))
	})
}

// marking marks what h accepts.
func (f *fixture) marking(h transport.HandlerFunc) transport.HandlerFunc {
	return func(ctx context.Context, d *transport.Delivery) error {
		err := h(ctx, d)
		if err == nil {
			f.mark(&d.Message)
		}
		return err
	}
}

func (f *fixture) launch(run func(ctx context.Context) error) *subscription {
	ctx, cancel := context.WithCancel(context.Background())
	s := &subscription{f: f, stop: cancel, end: make(chan error, 1)}
	go func() { s.end <- run(ctx) }()
	f.Cleanup(func() { cancel() })
	return s
}

// startBatch is start for batches. The log gets a record for each element, one
// after the other: that is how the handler works on them.
func (f *fixture) startBatch(o actors.Options, h transport.HandlerFunc) *subscription {
	f.Helper()
	elements := transport.BatchHandlerFunc(func(ctx context.Context, ds []*transport.Delivery) error {
		e := &transport.BatchError{Errs: make([]error, len(ds))}
		failed := map[string]bool{}
		for i, d := range ds {
			if failed[d.Key] || f.dispatch == actors.Sequential() && len(failed) > 0 {
				continue // the prefix rule: it comes again
			}
			run := f.log.Start(&d.Message, transport.Attempt(ctx))
			if e.Errs[i] = h(ctx, d); e.Errs[i] == nil {
				run.End(oracle.Succeeded)
				f.mark(&d.Message)
				continue
			}
			run.End(oracle.Failed)
			if d.Key != "" || f.dispatch == actors.Sequential() {
				failed[d.Key] = f.dispatch != actors.Workers(4)
			}
		}
		return e
	})
	return f.launch(func(ctx context.Context) error {
		return actors.RunBatch(ctx, f.log.Source(f.q.Source), elements, f.options(o))
	})
}

// await waits for c, which has to come.
func (f *fixture) await(c <-chan struct{}, what string) {
	f.Helper()
	select {
	case <-c:
	case <-time.After(6 * f.h.Timeout):
		f.mu.Lock()
		defer f.mu.Unlock()
		f.Fatalf("%s: not after %v, %d of %d messages are decided", what, 6*f.h.Timeout, len(f.decided), len(f.published))
	}
}

// drain stops s, and waits for its end.
func (s *subscription) drain() {
	s.f.Helper()
	s.stop()
	select {
	case err := <-s.end:
		if err != nil {
			s.f.Errorf("the subscription ended with %v", err)
		}
	case <-time.After(6 * s.f.h.Timeout):
		s.f.Fatal("the drain doesn't end")
	}
}

// judge holds the log against the promises; duplicates are what the scenario's
// fault excuses.
func (f *fixture) judge(duplicates int) {
	f.Helper()
	f.empty()
	r := oracle.Rules{Duplicates: duplicates, Credit: f.most, Unordered: !f.traits.Ordered}
	switch f.dispatch {
	case actors.Workers(4):
		r.Overlapping = true
	case actors.Sequential():
		// Groups of their own have no order among each other.
		r.Sequential = f.traits.Ordered && !f.traits.GroupsExclusive
	}
	if err := f.log.Check(r).Err(); err != nil {
		f.Error(err)
	}
}

// empty checks that the queue hands out nothing any more.
func (f *fixture) empty() {
	f.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), f.h.Timeout)
	defer cancel()
	s := &sink{}
	r, err := f.q.Source.Open(ctx, s)
	if err != nil {
		f.Fatalf("open: %v", err)
	}
	r.Grant(f.traits.MaxReceive)
	look, stop := context.WithTimeout(ctx, f.h.Quiet)
	defer stop()
	ds, err := r.Receive(look)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		f.Errorf("receive: %v", err)
	}
	for _, d := range ds {
		f.Errorf("the queue still holds %v", d)
	}
	if err := r.Close(ctx); err != nil {
		f.Errorf("close: %v", err)
	}
}

type sink struct{}

func (*sink) Settled(*transport.Delivery, transport.Outcome, error) {}
func (*sink) Lost([]*transport.Delivery, error)                     {}

var errOdd = errors.New("this one fails")

func keys(n int) []string {
	ks := make([]string, n)
	for i := range ks {
		ks[i] = fmt.Sprintf("key%02d", i)
	}
	return ks
}
