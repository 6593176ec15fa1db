package transporttest

import "github.com/keylanes/keylanes/transport"

var countScenarios = []scenario{
	{name: "first hand-out", run: countFirst},
	{name: "abandoned", run: countAbandoned},
	{name: "returned", run: countReturned},
	{name: "closed", run: countClosed},
}

func countFirst(f *fixture) {
	f.publish(1, "k")
	c := f.open(1)
	d := c.drain(1)[0]
	if d.Count > 0 || d.Count < -1 {
		f.Errorf("count %d on the first hand-out, want 0, or -1 for unknown", d.Count)
	}
	c.close()
}

// again receives a message, does something with it, ends the epoch, and gives
// the counts before and after.
func (f *fixture) again(do func(c *consumer, d *transport.Delivery)) (before, after int) {
	f.Helper()
	want := f.publish(1, "k")
	c := f.open(1)
	ds := c.receive(1)
	before = ds[0].Count
	f.skipUnless(before >= 0, "the broker's count is unknown")
	do(c, ds[0])
	c.close()
	c = f.open(1)
	ds = c.drain(1)
	f.want(ds, want)
	c.close()
	return before, ds[0].Count
}

func countAbandoned(f *fixture) {
	before, after := f.again(func(c *consumer, d *transport.Delivery) {
		c.settle(transport.Outcome{Kind: transport.Abandon}, d)
	})
	if after != before+1 {
		f.Errorf("count %d after an abandon, %d before", after, before)
	}
}

func countReturned(f *fixture) {
	before, after := f.again(func(c *consumer, d *transport.Delivery) {
		c.settle(transport.Outcome{Kind: transport.Return}, d)
	})
	f.uncounted("a return", before, after)
}

func countClosed(f *fixture) {
	before, after := f.again(func(*consumer, *transport.Delivery) {})
	f.uncounted("a close", before, after)
}

func (f *fixture) uncounted(what string, before, after int) {
	f.Helper()
	want := before
	if f.traits.CountsOnReturn {
		want++
	}
	if after != want {
		f.Errorf("count %d after %s, %d before, want %d (Traits.CountsOnReturn: %v)", after, what, before, want, f.traits.CountsOnReturn)
	}
}
