package transporttest

import (
	"errors"
	"sync"
	"time"

	"github.com/keylanes/keylanes/transport"
)

var lossScenarios = []scenario{
	{name: "ends the epoch", run: lossEndsTheEpoch},
	{name: "comes again in order", run: lossComesAgain},
	{name: "fetched ahead comes again", run: lossFetchedAhead},
	{name: "while settling", run: lossWhileSettling},
	{name: "again and again", run: lossAgainAndAgain},
}

func (f *fixture) needCut() {
	f.Helper()
	f.skipUnless(f.q.CutLink != nil, "the harness can't break a link (Queue.CutLink)")
}

// awaitEnd receives until the epoch ends, and gives what came before.
func (c *consumer) awaitEnd() []*transport.Delivery {
	c.f.Helper()
	ctx, cancel := c.f.wait()
	defer cancel()
	var all []*transport.Delivery
	for {
		ds, err := c.r.Receive(ctx)
		c.got += len(ds)
		all = append(all, ds...)
		var temporary *transport.TemporaryError
		switch {
		case ctx.Err() != nil:
			c.f.Fatalf("Receive noticed no lost link within %v", c.f.h.Timeout)
		case errors.As(err, &temporary):
			pause(ctx, 10*time.Millisecond)
		case err != nil:
			return all
		}
	}
}

// leave closes after a loss: it may report an error, but has to come back.
func (c *consumer) leave() {
	c.f.Helper()
	ctx, cancel := c.f.wait()
	defer cancel()
	_ = c.closeWith(ctx)
	if ctx.Err() != nil {
		c.f.Errorf("Close after a lost link took longer than %v", c.f.h.Timeout)
	}
}

// lossEndsTheEpoch: Receive says so, no lease is live any more, and settling is
// refused.
func lossEndsTheEpoch(f *fixture) {
	f.needCut()
	f.publish(2, keys(2)...)
	c := f.open(3)
	ds := c.receive(2)
	f.q.CutLink()
	c.awaitEnd()
	for _, d := range ds {
		if transport.LeaseOf(d).Live(time.Now()) {
			f.Errorf("%v: its lease is live after the epoch ended", d)
		}
	}
	c.start(accept, ds[0])
	if err := c.result(ds[0]); !errors.Is(err, transport.ErrLeaseLost) {
		f.Errorf("accept after the epoch ended: %v, want ErrLeaseLost", err)
	}
	c.leave()
	next := f.open(2)
	again := next.drain(2)
	f.want(again, bodies(ds))
	if again[0].Epoch <= ds[0].Epoch {
		f.Errorf("epoch %d after epoch %d: want it to grow", again[0].Epoch, ds[0].Epoch)
	}
	next.close()
}

func lossComesAgain(f *fixture) {
	f.needCut()
	want := f.publish(10, "k")
	c := f.open(f.several(4))
	f.order(c.receive(f.several(4)), 0)
	f.q.CutLink()
	c.awaitEnd()
	c.leave()
	c = f.open(10)
	f.want(c.drain(10), want)
	c.close()
	f.empty()
}

// lossFetchedAhead: so does what the client had and nobody received.
func lossFetchedAhead(f *fixture) {
	f.needCut()
	want := f.publish(30, keys(10)...)
	c := f.open(30)
	c.receiveSome()
	f.q.CutLink()
	c.awaitEnd()
	c.leave()
	c = f.open(30)
	f.want(c.drain(30), want)
	c.close()
}

// lossWhileSettling: each settlement is reported once, and what was never
// settled comes again.
func lossWhileSettling(f *fixture) {
	f.needCut()
	const n = 60
	f.publish(n, keys(n)...)
	c := f.open(n)
	ds := c.receive(n)
	must := map[string]bool{}
	var wg sync.WaitGroup
	for lane := range 4 {
		wg.Go(func() {
			for i := lane; i < n; i += 6 {
				c.start(accept, ds[i])
			}
		})
	}
	for i, d := range ds {
		if i%6 >= 4 {
			must[string(d.Body)] = true
		}
	}
	f.q.CutLink()
	wg.Wait()
	c.awaitEnd()
	for i, d := range ds {
		if i%6 >= 4 {
			continue
		}
		if err := c.result(d); err != nil && !errors.Is(err, transport.ErrLeaseLost) {
			f.Errorf("accept of %v during the loss: %v, want nil or ErrLeaseLost", d, err)
		}
	}
	c.leave()
	c = f.open(n)
	for len(must) > 0 {
		got := c.receiveSome()
		if len(got) == 0 {
			f.Fatalf("%d messages that were never settled didn't come again", len(must))
		}
		for _, d := range got {
			delete(must, string(d.Body))
		}
		c.accept(got...)
	}
	c.close()
}

// lossAgainAndAgain: a few messages get through between one loss and the next;
// nothing is lost and the key keeps its order.
func lossAgainAndAgain(f *fixture) {
	f.needCut()
	const n = 12
	f.publish(n, "k")
	seen := map[int]bool{}
	note := func(ds []*transport.Delivery) {
		for _, d := range ds {
			// One that came before may come again: its accept didn't arrive.
			if i := number(d); f.exact && i > len(seen) {
				f.Fatalf("received number %d before number %d", i, len(seen))
			}
			seen[number(d)] = true
		}
	}
	for range 6 {
		c := f.open(2)
		if len(seen) < n {
			ds := c.receiveSome()
			note(ds)
			c.start(accept, ds...)
		}
		f.q.CutLink()
		c.awaitEnd()
		c.leave()
	}
	c := f.open(n)
	for len(seen) < n {
		ds := c.receiveSome()
		if len(ds) == 0 {
			f.Fatalf("only %d of %d messages came", len(seen), n)
		}
		note(ds)
		c.accept(ds...)
	}
	c.close()
}
