package transporttest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/goleak"

	"github.com/keylanes/keylanes/transport"
)

var leakScenarios = []scenario{
	{name: "no goroutine left", run: noGoroutineLeft},
}

var concurrencyScenarios = []scenario{
	{name: "receivers compete", run: receiversCompete},
	{name: "open and close", run: openAndClose},
	{name: "open with an ended context", run: openEndedContext},
	{name: "receive ends with its context", run: receiveEnds},
	{name: "stop during a receive", run: stopDuringReceive},
	{name: "everything at once", run: everythingAtOnce},
}

// noGoroutineLeft: after Close nothing of the receiver runs. In a bubble
// synctest says the same of every scenario.
func noGoroutineLeft(f *fixture) {
	f.publish(10, keys(10)...)
	before := goleak.IgnoreCurrent()
	for i := range 3 {
		c := f.open(10)
		ds := c.receiveSome()
		c.accept(ds[:len(ds)/2]...)
		if i == 2 && f.q.CutLink != nil {
			f.q.CutLink()
			c.awaitEnd()
			c.leave()
			continue
		}
		c.close()
	}
	if f.h.Bubble {
		return
	}
	if f.h.CloseIdle != nil {
		f.h.CloseIdle()
	}
	if err := goleak.Find(before); err != nil {
		f.Errorf("after Close: %v", err)
	}
}

// receiversCompete: two receivers of one source share the messages, each going
// to one of them; and where groups are exclusive only one at a time holds any of
// a group.
func receiversCompete(f *fixture) {
	const n = 120
	want := f.publish(n, keys(12)...)
	var mu sync.Mutex
	var all []*transport.Delivery
	holder := map[string]*consumer{}
	holds := map[string]int{}
	ctx, cancel := f.wait()
	defer cancel()
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	var wg sync.WaitGroup
	for _, c := range []*consumer{f.open(0), f.open(0), f.open(0)} {
		c.granted = 20 + n
		c.rec.onSettled = func() { c.r.Grant(1) }
		c.r.Grant(20)
		wg.Go(func() {
			for ctx.Err() == nil {
				ds, err := c.r.Receive(ctx)
				if err != nil && len(ds) == 0 && ctx.Err() == nil {
					pause(ctx, 20*time.Millisecond)
				}
				mu.Lock()
				c.check(ds)
				for _, d := range ds {
					if f.traits.GroupsExclusive && d.Group != "" {
						if h := holder[d.Group]; holds[d.Group] > 0 && h != c {
							f.Errorf("%q was handed out while another receiver holds its group", d.Body)
						}
						holder[d.Group] = c
						holds[d.Group]++
					}
				}
				if all = append(all, ds...); len(all) >= n {
					enough()
				}
				mu.Unlock()
				for _, d := range ds {
					mu.Lock()
					holds[d.Group]--
					mu.Unlock()
					c.start(accept, d)
				}
			}
		})
	}
	wg.Wait()
	f.exact = false // no order across receivers
	f.want(all, want)
	for _, c := range f.consumers {
		c.close()
	}
	f.empty()
}

func openAndClose(f *fixture) {
	want := f.publish(10, keys(5)...)
	for i := range 20 {
		c := f.open(i % 3 * 5)
		c.close()
	}
	c := f.open(10)
	f.want(c.drain(10), want)
	c.close()
	f.empty()
}

// openEndedContext: ctx bounds Open.
func openEndedContext(f *fixture) {
	ctx, cancel := context.WithCancel(f.Context())
	cancel()
	r, err := f.q.Source.Open(ctx, newRecorder())
	if err == nil {
		f.Errorf("Open with an ended context succeeded")
		c := &consumer{f: f, r: r}
		c.close()
	}
}

// receiveEnds: with nothing to receive, the end of ctx ends the wait.
func receiveEnds(f *fixture) {
	c := f.open(1)
	c.none()
	want := f.publish(1, "k")
	f.want(c.drain(1), want)
	c.close()
}

// stopDuringReceive: a receive that is stopped at any moment loses nothing.
func stopDuringReceive(f *fixture) {
	const n = 40
	rnd := rand.New(rand.NewPCG(1, 2))
	c := f.open(n)
	var want []string
	var all []*transport.Delivery
	for i := range n {
		ctx, cancel := context.WithCancel(f.Context())
		after := time.Duration(rnd.IntN(3000)) * time.Microsecond
		var wg sync.WaitGroup
		wg.Go(func() {
			pause(ctx, after)
			cancel()
		})
		if i%2 == 0 {
			want = append(want, f.publish(2, keys(10)...)...)
		}
		ds, _ := c.r.Receive(ctx)
		cancel()
		wg.Wait()
		c.check(ds)
		c.accept(ds...)
		all = append(all, ds...)
	}
	all = append(all, c.drain(len(want)-len(all))...)
	f.want(all, want)
	c.none()
	c.close()
	f.empty()
}

// everythingAtOnce: grants, settlements and a close at the same time, for the
// race detector; each settlement is reported once, and nothing is lost.
func everythingAtOnce(f *fixture) {
	const n = 100
	f.publish(n, keys(10)...)
	seen := map[string]bool{}
	for range 6 {
		c := f.open(0)
		c.granted = 1 << 20
		work := make(chan *transport.Delivery, 100)
		var busy sync.WaitGroup
		for range 3 {
			busy.Go(func() {
				for d := range work {
					c.start(accept, d)
				}
			})
		}
		for range 2 {
			busy.Go(func() {
				for range 10 {
					c.r.Grant(2)
				}
			})
		}
		if len(seen) < n {
			for _, d := range c.receiveSome() {
				seen[string(d.Body)] = true
				work <- d
			}
		}
		close(work)
		c.close() // while lanes and granters are at work
		busy.Wait()
	}
	c := f.open(2 * n)
	for len(seen) < n {
		ds := c.receiveSome()
		if len(ds) == 0 {
			f.Fatalf("only %d of %d messages came", len(seen), n)
		}
		for _, d := range ds {
			seen[string(d.Body)] = true
		}
		c.accept(ds...)
	}
	c.close()
}
