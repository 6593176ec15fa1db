package memory

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// sinkLog records what a sink was told.
type sinkLog struct {
	mu      sync.Mutex
	settled map[*transport.Delivery][]error
	lost    []*transport.Delivery
}

func (s *sinkLog) Settled(d *transport.Delivery, _ transport.Outcome, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settled == nil {
		s.settled = map[*transport.Delivery][]error{}
	}
	s.settled[d] = append(s.settled[d], err)
}

func (s *sinkLog) Lost(ds []*transport.Delivery, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		if !transport.LeaseOf(d).Lost() {
			panic("reported before its lease was marked")
		}
	}
	s.lost = append(s.lost, ds...)
}

// result gives what Settled said about d; it fails when that wasn't once.
func (s *sinkLog) result(t *testing.T, d *transport.Delivery) error {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.settled[d]); n != 1 {
		t.Fatalf("%v: Settled was called %d times", d, n)
	}
	return s.settled[d][0]
}

func (s *sinkLog) lostIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ids(s.lost)
}

func newTestQueue(t *testing.T, o *QueueOptions) *Queue {
	t.Helper()
	q, err := New(nil).Queue(t.Name(), o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func mustOpen(t *testing.T, q *Queue, credit int) (transport.Receiver, *sinkLog) {
	t.Helper()
	s := &sinkLog{}
	r, err := q.Source().Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if credit > 0 {
		r.Grant(credit)
	}
	return r, s
}

// send publishes messages with the ids "0" to n-1 and the keys in turn.
func send(t *testing.T, q *Queue, n int, keys ...string) {
	t.Helper()
	ms := make([]transport.Message, n)
	for i := range ms {
		ms[i].ID = strconv.Itoa(i)
		if len(keys) > 0 {
			ms[i].Key = keys[i%len(keys)]
		}
	}
	publish(t, q, ms...)
}

func publish(t *testing.T, q *Queue, ms ...transport.Message) {
	t.Helper()
	if err := q.Publisher().Publish(t.Context(), ms...); err != nil {
		t.Fatal(err)
	}
}

// receive gives the next n deliveries.
func receive(t *testing.T, r transport.Receiver, n int) []*transport.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var all []*transport.Delivery
	for len(all) < n {
		ds, err := r.Receive(ctx)
		if err != nil {
			t.Fatalf("received %v of %d: %v", ids(all), n, err)
		}
		all = append(all, ds...)
	}
	return all
}

// nothing fails when the receiver gives anything now.
func nothing(t *testing.T, r transport.Receiver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if ds, err := r.Receive(ctx); len(ds) > 0 || ctx.Err() == nil {
		t.Fatalf("received %v, %v; want nothing", ids(ds), err)
	}
}

func ids(ds []*transport.Delivery) []string {
	s := make([]string, 0, len(ds))
	for _, d := range ds {
		s = append(s, d.ID)
	}
	return s
}

func wantIDs(t *testing.T, ds []*transport.Delivery, want ...string) {
	t.Helper()
	if got := ids(ds); !slices.Equal(got, want) {
		t.Fatalf("received %v, want %v", got, want)
	}
}

func settle(r transport.Receiver, k transport.OutcomeKind, ds ...*transport.Delivery) {
	for _, d := range ds {
		r.Settle(d, transport.Outcome{Kind: k})
	}
}

func mustClose(t *testing.T, r transport.Receiver) {
	t.Helper()
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
