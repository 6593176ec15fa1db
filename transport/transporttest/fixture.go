package transporttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// fixture is what one scenario works with.
type fixture struct {
	testing.TB
	h      *Harness
	q      *Queue
	traits transport.Traits
	exact  bool // order is checked

	skip func(why string)

	mu        sync.Mutex
	consumers []*consumer
	published map[string]int // for each key
}

// wait is a context that bounds something that has to happen.
func (f *fixture) wait() (context.Context, context.CancelFunc) {
	return context.WithTimeout(f.Context(), f.h.Timeout)
}

// finish closes what is open and checks what every scenario has to keep.
func (f *fixture) finish() {
	f.mu.Lock()
	cs := slices.Clone(f.consumers)
	f.mu.Unlock()
	// f.Context() has ended by now.
	ctx, cancel := context.WithTimeout(context.Background(), f.h.Timeout)
	defer cancel()
	for _, c := range cs {
		if !c.closed {
			if err := c.r.Close(ctx); err != nil {
				f.Errorf("close at the end: %v", err)
			}
		}
		c.awaitReports(ctx)
		c.rec.mu.Lock()
		for _, b := range c.rec.breaches {
			f.Errorf("the receiver broke its contract: %s", b)
		}
		c.rec.mu.Unlock()
	}
	if err := f.q.Publisher.Close(ctx); err != nil {
		f.Errorf("close the publisher at the end: %v", err)
	}
}

// body is the payload of the nth message of a key: it identifies the message,
// since not every broker keeps ids.
func body(key string, n int) string { return fmt.Sprintf("%s#%d", key, n) }

// number is the n of body; -1 when it is none.
func number(d *transport.Delivery) int {
	_, n, _ := strings.Cut(string(d.Body), "#")
	i, err := strconv.Atoi(n)
	if err != nil {
		return -1
	}
	return i
}

// publish sends n messages, with the keys in turn, as one call, and gives their
// bodies. The messages of a key are numbered from 0.
func (f *fixture) publish(n int, keys ...string) []string {
	f.Helper()
	bodies := make([]string, n)
	ms := make([]transport.Message, n)
	f.mu.Lock()
	if f.published == nil {
		f.published = map[string]int{}
	}
	for i := range n {
		key := keys[i%len(keys)]
		bodies[i] = body(key, f.published[key])
		f.published[key]++
		ms[i] = transport.Message{Key: key, Body: []byte(bodies[i])}
	}
	f.mu.Unlock()
	f.publishMessages(ms...)
	return bodies
}

func (f *fixture) publishMessages(ms ...transport.Message) {
	f.Helper()
	ctx, cancel := f.wait()
	defer cancel()
	if err := f.q.Publisher.Publish(ctx, ms...); err != nil {
		f.Fatalf("publish: %v", err)
	}
}

// keys gives n different keys.
func keys(n int) []string {
	ks := make([]string, n)
	for i := range ks {
		ks[i] = fmt.Sprintf("key%02d", i)
	}
	return ks
}

// several gives as many as one receive is sure to bring together, at most n.
func (f *fixture) several(n int) int { return min(n, f.traits.MaxReceive) }

// bodies are the payloads of ds.
func bodies(ds []*transport.Delivery) []string {
	bs := make([]string, len(ds))
	for i, d := range ds {
		bs[i] = string(d.Body)
	}
	return bs
}

// want fails unless ds are the messages with these bodies, each once and, where
// the transport is ordered, those of each key in the order given.
func (f *fixture) want(ds []*transport.Delivery, want []string) {
	f.Helper()
	f.wantBodies(bodies(ds), want)
}

func (f *fixture) wantBodies(got, want []string) {
	f.Helper()
	got, want = slices.Clone(got), slices.Clone(want)
	byKey := func(a, b string) int {
		ka, _, _ := strings.Cut(a, "#")
		kb, _, _ := strings.Cut(b, "#")
		return cmp.Compare(ka, kb)
	}
	if f.exact {
		slices.SortStableFunc(got, byKey)
		slices.SortStableFunc(want, byKey)
	} else {
		slices.Sort(got)
		slices.Sort(want)
	}
	if !slices.Equal(got, want) {
		f.Fatalf("got  %v\nwant %v", got, want)
	}
}

// consumer is a receiver with its recorder. One goroutine uses it, save where a
// scenario says otherwise.
type consumer struct {
	f       *fixture
	traits  transport.Traits // of its source
	r       transport.Receiver
	rec     *recorder
	closed  bool
	granted int
	got     int
	epoch   uint64
}

// open attaches to the queue, and grants credit when there is any.
func (f *fixture) open(credit int) *consumer {
	f.Helper()
	return f.openSource(f.q.Source, credit)
}

func (f *fixture) openSource(src transport.Source, credit int) *consumer {
	f.Helper()
	c := &consumer{f: f, traits: src.Traits(), rec: newRecorder()}
	ctx, cancel := f.wait()
	defer cancel()
	for {
		r, err := src.Open(ctx, c.rec)
		if err == nil {
			c.r = r
			break
		}
		// A broker that has just lost a link may not be ready for the next.
		var fatal *transport.FatalError
		if errors.As(err, &fatal) || ctx.Err() != nil {
			f.Fatalf("open: %v", err)
		}
		pause(ctx, 50*time.Millisecond)
	}
	f.mu.Lock()
	f.consumers = append(f.consumers, c)
	f.mu.Unlock()
	if credit > 0 {
		c.grant(credit)
	}
	return c
}

// pause waits for d, or for the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (c *consumer) grant(n int) {
	c.granted += n
	c.r.Grant(n)
}

// check holds one Receive's result against the contract.
func (c *consumer) check(ds []*transport.Delivery) {
	c.f.Helper()
	if len(ds) > c.traits.MaxReceive {
		c.f.Errorf("Receive gave %d deliveries, Traits.MaxReceive is %d", len(ds), c.traits.MaxReceive)
	}
	if c.got += len(ds); c.got > c.granted {
		c.f.Errorf("%d deliveries were handed out, only %d were granted", c.got, c.granted)
	}
	now := time.Now()
	for _, d := range ds {
		switch {
		case transport.LeaseOf(d) == nil:
			c.f.Errorf("%v has no lease", d)
			continue
		case !transport.LeaseOf(d).Live(now):
			c.f.Errorf("%v was handed out on a lease that isn't live", d)
		}
		if transport.LeaseOf(d).Expires() != c.traits.LeaseExpires {
			c.f.Errorf("%v: its lease expires: %v; Traits.LeaseExpires: %v", d, transport.LeaseOf(d).Expires(), c.traits.LeaseExpires)
		}
		if c.epoch == 0 {
			c.epoch = d.Epoch
		}
		if d.Epoch == 0 || d.Epoch != c.epoch {
			c.f.Errorf("%v: epoch %d, others of this receiver have %d", d, d.Epoch, c.epoch)
		}
	}
}

// next is one Receive; a temporary error passes, after a pause.
func (c *consumer) next(ctx context.Context) []*transport.Delivery {
	c.f.Helper()
	ds, err := c.r.Receive(ctx)
	c.check(ds)
	var temporary *transport.TemporaryError
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.As(err, &temporary):
		pause(ctx, 20*time.Millisecond)
	default:
		c.f.Fatalf("receive: %v", err)
	}
	return ds
}

// receive gives the next n deliveries.
func (c *consumer) receive(n int) []*transport.Delivery {
	c.f.Helper()
	return c.receiveWithin(n, c.f.h.Timeout)
}

func (c *consumer) receiveWithin(n int, limit time.Duration) []*transport.Delivery {
	c.f.Helper()
	ctx, cancel := context.WithTimeout(c.f.Context(), limit)
	defer cancel()
	var all []*transport.Delivery
	for len(all) < n && ctx.Err() == nil {
		all = append(all, c.next(ctx)...)
	}
	if len(all) != n {
		c.f.Fatalf("received %d of %d within %v: %v", len(all), n, limit, bodies(all))
	}
	return all
}

// receiveSome gives what one Receive brings, if need be the first of several;
// nothing when it takes longer than Harness.Timeout.
func (c *consumer) receiveSome() []*transport.Delivery {
	c.f.Helper()
	ctx, cancel := c.f.wait()
	defer cancel()
	for ctx.Err() == nil {
		if ds := c.next(ctx); len(ds) > 0 {
			return ds
		}
	}
	return nil
}

// none fails when the receiver gives anything within Harness.Quiet.
func (c *consumer) none() {
	c.f.Helper()
	ctx, cancel := context.WithTimeout(c.f.Context(), c.f.h.Quiet)
	defer cancel()
	for ctx.Err() == nil {
		if ds := c.next(ctx); len(ds) > 0 {
			c.f.Fatalf("received %v, want nothing", bodies(ds))
		}
	}
}

// start settles without waiting for the report. Any goroutine may call it.
func (c *consumer) start(o transport.Outcome, ds ...*transport.Delivery) {
	for _, d := range ds {
		c.rec.settling(d)
		c.r.Settle(d, o)
	}
}

// settle settles ds in the order given, and waits until all succeeded.
func (c *consumer) settle(o transport.Outcome, ds ...*transport.Delivery) {
	c.f.Helper()
	c.start(o, ds...)
	for _, d := range ds {
		if err := c.result(d); err != nil {
			c.f.Fatalf("%v of %v: %v", o.Kind, d, err)
		}
	}
}

func (c *consumer) accept(ds ...*transport.Delivery) {
	c.f.Helper()
	c.settle(accept, ds...)
}

// result waits for the report on d's settlement.
func (c *consumer) result(d *transport.Delivery) error {
	c.f.Helper()
	ctx, cancel := c.f.wait()
	defer cancel()
	for {
		rep, _, changed := c.rec.state(d)
		if rep.done {
			return rep.err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			c.f.Fatalf("no report on the settlement of %v within %v", d, c.f.h.Timeout)
		}
	}
}

// awaitReports waits until every Settle was reported.
func (c *consumer) awaitReports(ctx context.Context) {
	c.f.Helper()
	for {
		ds, changed := c.rec.unreported()
		if len(ds) == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			c.f.Errorf("%d settlements were never reported: %v", len(ds), bodies(ds))
			return
		}
	}
}

// close ends the epoch; it has to succeed.
func (c *consumer) close() {
	c.f.Helper()
	ctx, cancel := c.f.wait()
	defer cancel()
	if err := c.closeWith(ctx); err != nil {
		c.f.Fatalf("close: %v", err)
	}
}

func (c *consumer) closeWith(ctx context.Context) error {
	c.closed = true
	return c.r.Close(ctx)
}

// drain receives and accepts n deliveries, and gives them in order. Credit has
// to be granted.
func (c *consumer) drain(n int) []*transport.Delivery {
	c.f.Helper()
	ctx, cancel := c.f.wait()
	defer cancel()
	var all []*transport.Delivery
	for len(all) < n && ctx.Err() == nil {
		ds := c.next(ctx)
		all = append(all, ds...)
		c.accept(ds...)
	}
	if len(all) != n {
		c.f.Fatalf("drained %d of %d: %v", len(all), n, bodies(all))
	}
	return all
}

// empty fails unless nothing is left in the queue.
func (f *fixture) empty() {
	f.Helper()
	c := f.open(100)
	c.none()
	c.close()
	if f.q.Held != nil {
		if n := f.q.Held(); n != 0 {
			f.Errorf("%d messages are still held on the broker", n)
		}
	}
}
