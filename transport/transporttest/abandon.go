package transporttest

import (
	"slices"
	"time"

	"github.com/keylanes/keylanes/transport"
)

var abandonScenarios = []scenario{
	{name: "single", run: abandonSingle},
	{name: "group", run: abandonGroup},
	{name: "reset", run: abandonReset},
	{name: "delayed", run: abandonDelayed},
	{name: "group delayed", run: abandonGroupDelayed},
}

var abandoned = transport.Outcome{Kind: transport.Abandon}

// abandonSingle: that one delivery comes again, the others aren't touched.
func abandonSingle(f *fixture) {
	f.skipUnless(f.traits.Abandon == transport.AbandonSingle, "abandoning isn't single (Traits.Abandon)")
	f.publish(3, keys(3)...)
	c := f.open(4)
	ds := c.receive(3)
	c.settle(abandoned, ds[1])
	again := c.receive(1)
	f.wantBodies(bodies(again), bodies(ds[1:2]))
	c.accept(ds[0], ds[2], again[0])
	c.close()
	f.empty()
}

// abandonGroup: successors first, the head last, and the group comes again in
// order, to whoever has credit.
func abandonGroup(f *fixture) {
	ds, want, c := f.heldGroup()
	f.giveBackGroup(c, ds, 0)
	other := f.open(20)
	f.want(other.drain(len(want)), want)
	other.close()
	c.close()
	f.empty()
}

// heldGroup gives a consumer that holds the first messages of a key.
func (f *fixture) heldGroup() (ds []*transport.Delivery, want []string, c *consumer) {
	f.Helper()
	f.skipUnless(f.traits.Abandon == transport.AbandonGroup, "abandoning isn't by group (Traits.Abandon)")
	want = f.publish(6, "k")
	c = f.open(f.several(3))
	ds = c.receive(f.several(3))
	f.order(ds, 0)
	return ds, want, c
}

func (f *fixture) giveBackGroup(c *consumer, ds []*transport.Delivery, delay time.Duration) {
	f.Helper()
	for _, d := range slices.Backward(ds[1:]) {
		c.settle(transport.Outcome{Kind: transport.Return}, d)
	}
	c.settle(transport.Outcome{Kind: transport.Abandon, Delay: delay}, ds[0])
}

// abandonReset: the end of the epoch gives everything back in order, and only
// what was abandoned is counted.
func abandonReset(f *fixture) {
	f.skipUnless(f.traits.Abandon == transport.AbandonReset, "abandoning needs no new epoch (Traits.Abandon)")
	want := f.publish(8, "k")
	c := f.open(5)
	ds := c.receive(f.several(5))
	f.order(ds, 0)
	c.settle(abandoned, ds[0])
	c.close()
	c = f.open(8)
	again := c.drain(8)
	f.want(again, want)
	for i, d := range again {
		if ds[0].Count < 0 {
			break
		}
		if want := ds[0].Count + 1; i == 0 && d.Count != want {
			f.Errorf("%v was abandoned: want count %d", d, want)
		}
		if i > 0 && i < len(ds) && !f.traits.CountsOnReturn && d.Count != ds[i].Count {
			f.Errorf("%v wasn't abandoned: want count %d", d, ds[i].Count)
		}
	}
	c.close()
	f.empty()
}

// abandonDelayed: it doesn't come again before its delay is over.
func abandonDelayed(f *fixture) {
	f.skipUnless(f.traits.AbandonDelay, "an abandon isn't delayed (Traits.AbandonDelay)")
	want := f.publish(1, "k")
	c := f.open(2)
	ds := c.receive(1)
	start := time.Now()
	c.settle(transport.Outcome{Kind: transport.Abandon, Delay: f.h.Delay}, ds...)
	again := c.receiveWithin(1, f.h.Timeout+f.h.Delay)
	f.notBefore(start)
	f.want(again, want)
	c.accept(again...)
	c.close()
}

// notBefore fails when less than Harness.Delay has passed since start; a
// hundredth is let pass, since the broker has a clock of its own.
func (f *fixture) notBefore(start time.Time) {
	f.Helper()
	if d := time.Since(start); d < f.h.Delay*99/100 {
		f.Errorf("it came after %v, want %v", d, f.h.Delay)
	}
}

// abandonGroupDelayed: while the head waits, its successors do.
func abandonGroupDelayed(f *fixture) {
	f.skipUnless(f.traits.AbandonDelay, "an abandon isn't delayed (Traits.AbandonDelay)")
	ds, want, c := f.heldGroup()
	start := time.Now()
	f.giveBackGroup(c, ds, f.h.Delay)
	other := f.open(20)
	first := other.receiveSome()
	f.notBefore(start)
	f.order(first, 0)
	other.accept(first...)
	rest := other.drain(len(want) - len(first))
	f.want(append(first, rest...), want)
	other.close()
	c.close()
	f.empty()
}
