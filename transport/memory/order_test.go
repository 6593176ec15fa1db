package memory

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/transport"
)

func TestGivenBackGoesToItsOriginalPlace(t *testing.T) {
	t.Parallel()
	q := newTestQueue(t, nil)
	send(t, q, 8)
	r, _ := mustOpen(t, q, 5)
	ds := receive(t, r, 5)
	wantIDs(t, ds, "0", "1", "2", "3", "4")
	settle(r, transport.Return, ds[4], ds[1])
	settle(r, transport.Abandon, ds[2])
	settle(r, transport.Accept, ds[0])
	r.Grant(4)
	again := receive(t, r, 4)
	wantIDs(t, again, "1", "2", "4", "5")
	if again[0].Count != 0 || again[1].Count != 1 || again[2].Count != 0 {
		t.Errorf("counts %d %d %d, want 0 1 0", again[0].Count, again[1].Count, again[2].Count)
	}
	mustClose(t, r)
	r, _ = mustOpen(t, q, 10)
	wantIDs(t, receive(t, r, 7), "1", "2", "3", "4", "5", "6", "7")
	mustClose(t, r)
}

// The cases that were asked of AWS and ElasticMQ: groups g (0 to 5) and h.
func TestFIFOGroupIsHandedOutUpToItsFirstInvisibleMessage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(r transport.Receiver, ds []*transport.Delivery)
		want []string
	}{
		"head accepted, rest out": {func(r transport.Receiver, ds []*transport.Delivery) { settle(r, transport.Accept, ds[0]) }, nil},
		"tail returned":           {func(r transport.Receiver, ds []*transport.Delivery) { settle(r, transport.Return, ds[2]) }, nil},
		"head returned":           {func(r transport.Receiver, ds []*transport.Delivery) { settle(r, transport.Return, ds[0]) }, []string{"0"}},
		"all returned in reverse": {func(r transport.Receiver, ds []*transport.Delivery) { settle(r, transport.Return, ds[2], ds[1], ds[0]) }, []string{"0", "1", "2", "3", "4", "5"}},
		"middle accepted, others returned": {func(r transport.Receiver, ds []*transport.Delivery) {
			settle(r, transport.Accept, ds[1])
			settle(r, transport.Return, ds[2], ds[0])
		}, []string{"0", "2", "3", "4", "5"}},
		"all accepted": {func(r transport.Receiver, ds []*transport.Delivery) { settle(r, transport.Accept, ds...) }, []string{"3", "4", "5"}},
		"successors returned, head abandoned with a delay": {func(r transport.Receiver, ds []*transport.Delivery) {
			settle(r, transport.Return, ds[2], ds[1])
			r.Settle(ds[0], transport.Outcome{Kind: transport.Abandon, Delay: time.Minute})
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newTestQueue(t, &QueueOptions{FIFO: true, Lease: time.Hour, CountsOnReturn: true})
				send(t, q, 6, "g")
				publish(t, q, transport.Message{ID: "h", Key: "h"})
				a, _ := mustOpen(t, q, 3)
				ds := receive(t, a, 3)
				wantIDs(t, ds, "0", "1", "2")
				b, _ := mustOpen(t, q, 10)
				wantIDs(t, receive(t, b, 1), "h")
				nothing(t, b)
				c.do(a, ds)
				if c.want == nil {
					nothing(t, b)
				} else {
					wantIDs(t, receive(t, b, len(c.want)), c.want...)
					nothing(t, b)
				}
				mustClose(t, a)
				mustClose(t, b)
			})
		})
	}
}

func TestFIFODelayedHeadHoldsItsGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, &QueueOptions{FIFO: true, Lease: time.Hour, CountsOnReturn: true})
		send(t, q, 3, "g")
		r, _ := mustOpen(t, q, 10)
		ds := receive(t, r, 3)
		settle(r, transport.Return, ds[1], ds[2])
		start := time.Now()
		r.Settle(ds[0], transport.Outcome{Kind: transport.Abandon, Delay: 7 * time.Second})
		again := receive(t, r, 3)
		wantIDs(t, again, "0", "1", "2")
		if d := time.Since(start); d != 7*time.Second {
			t.Errorf("came again after %v, want 7s", d)
		}
		if again[0].Count != 1 || again[1].Count != 1 {
			t.Errorf("counts %d and %d, want 1 and 1: every hand-out counts", again[0].Count, again[1].Count)
		}
		mustClose(t, r)
	})
}

func TestShuffleIsRandomAndRepeatable(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64) []string {
		q, err := New(nil).Queue("q", &QueueOptions{Shuffle: true, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		send(t, q, 50)
		r, _ := mustOpen(t, q, 50)
		got := ids(receive(t, r, 50))
		mustClose(t, r)
		return got
	}
	a := draw(1)
	if !slices.Equal(a, draw(1)) {
		t.Error("the same seed gave another order")
	}
	if slices.Equal(a, draw(2)) {
		t.Error("another seed gave the same order")
	}
	slices.Sort(a)
	if len(slices.Compact(a)) != 50 {
		t.Error("not every message was handed out once")
	}
}

func TestPublishedDelayTakesItsPlaceWhenDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, nil)
		publish(t, q, transport.Message{ID: "late", Delay: time.Second}, transport.Message{ID: "a"}, transport.Message{ID: "b"})
		r, _ := mustOpen(t, q, 1)
		wantIDs(t, receive(t, r, 1), "a")
		if q.Delayed() != 1 {
			t.Errorf("%d delayed, want 1", q.Delayed())
		}
		<-time.After(time.Second) // the bubble's clock
		r.Grant(2)
		wantIDs(t, receive(t, r, 2), "late", "b")
		mustClose(t, r)
	})
}
