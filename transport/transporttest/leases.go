package transporttest

import (
	"context"
	"errors"
	"time"

	"github.com/keylanes/keylanes/transport"
)

var leaseScenarios = []scenario{
	{name: "deadline", need: Need{ShortLease: true}, run: leaseDeadline},
	{name: "limits", need: Need{ShortLease: true}, run: leaseLimits},
	{name: "extended stays", need: Need{ShortLease: true}, run: extendedStays},
	{name: "lapsed comes again", need: Need{ShortLease: true}, run: lapsedComesAgain},
	{name: "one lapses alone", need: Need{ShortLease: true}, run: oneLapsesAlone},
	{name: "extending a lapsed lease", need: Need{ShortLease: true}, run: extendLapsed},
	{name: "extending what is settled", need: Need{ShortLease: true}, run: extendSettled},
}

func (f *fixture) needLease() {
	f.Helper()
	f.skipUnless(f.traits.LeaseExpires, "leases don't expire (Traits.LeaseExpires)")
	f.skipUnless(f.h.Lease > 0, "Harness.Lease is 0: nothing waits for a lease to lapse")
}

// leaseDeadline: a deadline counts from before the receive, so it is at most a
// lease from now; Receive has checked the rest.
func leaseDeadline(f *fixture) {
	f.needLease()
	f.publish(1, "k")
	c := f.open(1)
	ds := c.receive(1)
	if left := time.Until(transport.LeaseOf(ds[0]).Deadline()); left <= 0 || left > f.h.Lease {
		f.Errorf("the lease has %v left after a receive, want more than 0 and at most %v", left, f.h.Lease)
	}
	c.accept(ds...)
	c.close()
}

func leaseLimits(f *fixture) {
	f.needLease()
	c := f.open(0)
	l, ok := c.r.(transport.Limited)
	f.skipUnless(ok, "the receiver doesn't implement transport.Limited")
	if got := l.Limits().Lease; got != 0 && got != f.h.Lease {
		f.Errorf("Limits.Lease is %v, want %v, or 0 for unknown", got, f.h.Lease)
	}
	c.close()
}

// extendedStays: a lease that is extended again and again outlives its first
// deadline, and nobody else gets the message.
func extendedStays(f *fixture) {
	f.needLease()
	f.publish(1, "k")
	c := f.open(1)
	ds := c.receive(1)
	lease := transport.LeaseOf(ds[0])
	end := time.Now().Add(f.h.Lease * 5 / 2)
	other := f.open(1)
	ctx, cancel := context.WithDeadline(f.Context(), end)
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			c.r.Extend(ds, time.Now().Add(f.h.Lease))
			pause(ctx, f.h.Lease/4)
		}
	}()
	for ctx.Err() == nil {
		got, _ := other.r.Receive(ctx)
		if len(got) > 0 {
			f.Errorf("%v came again though its lease was extended", got)
			break
		}
	}
	<-stopped
	if !lease.Live(time.Now()) {
		f.Errorf("the lease isn't live after its extensions: deadline %v ago", time.Since(lease.Deadline()))
	}
	c.accept(ds...)
	other.none()
	other.close()
	c.close()
}

// lapsedComesAgain: once the deadline has passed somebody else gets the message,
// and the one who had it can't settle it any more.
func lapsedComesAgain(f *fixture) {
	f.needLease()
	want := f.publish(1, "k")
	c := f.open(1)
	old := c.receive(1)
	other := f.open(1)
	again := other.receiveWithin(1, f.h.Lease+f.h.Timeout)
	f.want(again, want)
	if transport.LeaseOf(old[0]).Live(time.Now()) {
		f.Errorf("the message came again while the first lease is live, until %v", transport.LeaseOf(old[0]).Deadline())
	}
	if again[0].Count == 0 {
		f.Errorf("it came again with count 0: want at least 1, or -1 for unknown")
	}
	c.start(accept, old...)
	if err := c.result(old[0]); !errors.Is(err, transport.ErrLeaseLost) {
		f.Errorf("accept on the lapsed lease: %v, want ErrLeaseLost", err)
	}
	other.accept(again...)
	other.close()
	c.close()
	f.empty()
}

// oneLapsesAlone: a delivery's lease is its own.
func oneLapsesAlone(f *fixture) {
	f.needLease()
	f.publish(2, "a", "b")
	c := f.open(2)
	ds := c.receive(2)
	other := f.open(2)
	ctx, cancel := context.WithTimeout(f.Context(), f.h.Lease+f.h.Timeout)
	defer cancel()
	var got []*transport.Delivery
	for len(got) == 0 && ctx.Err() == nil {
		c.r.Extend(ds[:1], time.Now().Add(f.h.Lease))
		poll, stop := context.WithTimeout(ctx, f.h.Lease/4)
		some, _ := other.r.Receive(poll)
		stop()
		got = append(got, some...)
	}
	f.wantBodies(bodies(got), bodies(ds[1:]))
	other.accept(got...)
	c.accept(ds[0])
	other.close()
	c.close()
	f.empty()
}

// extendLapsed: a lease that is found gone is marked, and reported once.
func extendLapsed(f *fixture) {
	f.needLease()
	f.publish(1, "k")
	c := f.open(1)
	old := c.receive(1)
	other := f.open(1)
	again := other.receiveWithin(1, f.h.Lease+f.h.Timeout)
	c.r.Extend(old, time.Now().Add(f.h.Lease))
	ctx, cancel := f.wait()
	defer cancel()
	for {
		_, lost, changed := c.rec.state(old[0])
		if lost {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			f.Fatalf("no Sink.Lost after the extension of a lease that had lapsed")
		}
	}
	other.accept(again...)
	other.close()
	c.close()
	f.empty()
}

// extendSettled: extending what is settled meanwhile does nothing.
func extendSettled(f *fixture) {
	f.needLease()
	f.publish(2, "a", "b")
	c := f.open(2)
	ds := c.receive(2)
	c.accept(ds...)
	c.r.Extend(ds, time.Now().Add(f.h.Lease))
	c.none()
	for _, d := range ds {
		if _, lost, _ := c.rec.state(d); lost {
			f.Errorf("Lost(%v) after it was accepted", d)
		}
	}
	c.close()
	f.empty()
}
