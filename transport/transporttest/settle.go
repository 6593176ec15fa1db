package transporttest

import (
	"slices"
	"sync"

	"github.com/keylanes/keylanes/transport"
)

var settleScenarios = []scenario{
	{name: "accepted is gone", run: acceptedIsGone},
	{name: "in any order", run: settleInAnyOrder},
	{name: "from eight goroutines", run: settleFromEight},
	{name: "no outcome is no accept", need: Need{ShortLease: true}, run: noOutcome},
	{name: "accept one of a key", run: acceptOneOfAKey},
}

func acceptedIsGone(f *fixture) {
	want := f.publish(6, keys(3)...)
	c := f.open(6)
	f.want(c.drain(6), want)
	c.close()
	f.empty()
}

func settleInAnyOrder(f *fixture) {
	f.publish(6, keys(6)...)
	c := f.open(6)
	ds := c.receive(6)
	slices.Reverse(ds)
	c.accept(ds...)
	c.close()
	f.empty()
}

// settleFromEight: lanes settle at the same time as the pump receives.
func settleFromEight(f *fixture) {
	const n, lanes = 240, 8
	want := f.publish(n, keys(24)...)
	c := f.open(0)
	c.granted = n + 64
	c.rec.onSettled = func() { c.r.Grant(1) }
	c.r.Grant(64)
	work := make(chan *transport.Delivery, n)
	var wg sync.WaitGroup
	for range lanes {
		wg.Go(func() {
			for d := range work {
				c.start(accept, d)
			}
		})
	}
	var all []*transport.Delivery
	ctx, cancel := f.wait()
	defer cancel()
	for len(all) < n && ctx.Err() == nil {
		ds := c.next(ctx)
		all = append(all, ds...)
		for _, d := range ds {
			work <- d
		}
	}
	close(work)
	wg.Wait()
	for _, d := range all {
		if err := c.result(d); err != nil {
			f.Errorf("accept of %v: %v", d, err)
		}
	}
	f.want(all, want)
	c.close()
	f.empty()
}

// noOutcome: a zero outcome is an error, and the message isn't gone.
func noOutcome(f *fixture) {
	want := f.publish(1, "k")
	c := f.open(1)
	ds := c.receive(1)
	c.start(transport.Outcome{}, ds...)
	if err := c.result(ds[0]); err == nil {
		f.Errorf("settling with a zero outcome succeeded")
	}
	c.close()
	c = f.open(1)
	again := c.receiveWithin(1, f.h.Timeout+f.h.Lease)
	f.want(again, want)
	c.accept(again...)
	c.close()
}

// acceptOneOfAKey: a delivery is settled by itself, whatever comes before it.
func acceptOneOfAKey(f *fixture) {
	want := f.publish(3, "k")
	f.skipUnless(f.traits.MaxReceive >= 3, "Traits.MaxReceive is below 3")
	c := f.open(3)
	ds := c.receive(3)
	c.accept(ds[1])
	left := slices.DeleteFunc(slices.Clone(want), func(b string) bool { return b == string(ds[1].Body) })
	c.close()
	c = f.open(3)
	f.want(c.drain(2), left)
	c.none()
	c.close()
}
