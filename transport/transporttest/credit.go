package transporttest

import (
	"context"
	"sync"

	"github.com/keylanes/keylanes/transport"
)

var creditScenarios = []scenario{
	{name: "nothing before a grant", run: nothingBeforeAGrant},
	{name: "a strict ceiling", run: strictCeiling},
	{name: "grants add up", run: grantsAddUp},
	{name: "grants from many goroutines", run: grantsFromMany},
	{name: "a grant wakes a receive", run: grantWakes},
	{name: "a message wakes a receive", run: messageWakes},
	{name: "from within Settled", run: grantWithinSettled},
	{name: "depth", run: depth},
}

func nothingBeforeAGrant(f *fixture) {
	want := f.publish(3, keys(3)...)
	c := f.open(0)
	c.none()
	c.grant(3)
	f.want(c.drain(3), want)
	c.close()
}

// strictCeiling: no more is held than was granted, and settling gives no credit.
func strictCeiling(f *fixture) {
	want := f.publish(30, keys(30)...)
	c := f.open(7)
	ds := c.receive(7)
	c.none()
	c.accept(ds...)
	c.none()
	c.grant(3)
	more := c.receive(3)
	c.none()
	c.grant(20)
	c.accept(more...)
	all := append(append(ds, more...), c.drain(20)...)
	f.want(all, want)
	c.close()
}

func grantsAddUp(f *fixture) {
	f.publish(10, keys(10)...)
	c := f.open(2)
	c.grant(1)
	c.grant(2)
	c.accept(c.receive(5)...)
	c.none()
	c.close()
}

func grantsFromMany(f *fixture) {
	f.publish(60, keys(60)...)
	c := f.open(0)
	c.granted = 40
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				c.r.Grant(1)
			}
		})
	}
	ds := c.receive(40)
	wg.Wait()
	c.none()
	c.accept(ds...)
	c.close()
}

func grantWakes(f *fixture) {
	f.publish(1, "k")
	c := f.open(0)
	c.granted = 1 // before the goroutine looks at it
	got := c.inBackground(1)
	c.r.Grant(1)
	c.accept(f.from(got)...)
	c.close()
}

func messageWakes(f *fixture) {
	c := f.open(1)
	got := c.inBackground(1)
	want := f.publish(1, "k")
	ds := f.from(got)
	f.want(ds, want)
	c.accept(ds...)
	c.close()
}

// inBackground receives n on a goroutine of its own.
func (c *consumer) inBackground(n int) <-chan []*transport.Delivery {
	got := make(chan []*transport.Delivery, 1)
	ctx, cancel := c.f.wait()
	go func() {
		defer cancel()
		defer close(got)
		var all []*transport.Delivery
		for len(all) < n && ctx.Err() == nil {
			ds, err := c.r.Receive(ctx)
			c.check(ds)
			if all = append(all, ds...); err != nil {
				pause(ctx, c.f.h.Quiet)
			}
		}
		got <- all
	}()
	return got
}

// from waits for what a background receive got.
func (f *fixture) from(got <-chan []*transport.Delivery) []*transport.Delivery {
	f.Helper()
	ds := <-got
	if len(ds) == 0 {
		f.Fatalf("received nothing within %v", f.h.Timeout)
	}
	return ds
}

// grantWithinSettled: the Sink may grant while it is told, without a deadlock.
func grantWithinSettled(f *fixture) {
	want := f.publish(60, keys(6)...)
	c := f.open(0)
	c.granted = 8 + 60
	c.rec.onSettled = func() { c.r.Grant(1) }
	c.r.Grant(8)
	f.want(c.drain(60), want)
	c.close()
}

// depth: where the receiver can ask how much waits, it says so.
func depth(f *fixture) {
	c := f.open(0)
	dep, ok := c.r.(transport.Depther)
	f.skipUnless(ok, "the receiver doesn't implement transport.Depther")
	f.publish(5, keys(5)...)
	ctx, cancel := f.wait()
	defer cancel()
	f.eventually(ctx, "the depth is 5", func() bool {
		n, err := dep.Depth(ctx)
		return err == nil && n == 5
	})
	c.grant(5)
	c.drain(5)
	f.eventually(ctx, "the depth is 0", func() bool {
		n, err := dep.Depth(ctx)
		return err == nil && n == 0
	})
	c.close()
}

// eventually waits until ok holds, for what can only be asked for.
func (f *fixture) eventually(ctx context.Context, what string, ok func() bool) {
	f.Helper()
	for !ok() {
		if ctx.Err() != nil {
			f.Fatalf("never seen: %s", what)
		}
		pause(ctx, f.h.Quiet/10)
	}
}
