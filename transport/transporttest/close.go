package transporttest

import (
	"context"
	"errors"
	"sync"

	"github.com/keylanes/keylanes/transport"
)

var closeScenarios = []scenario{
	{name: "gives back in order", run: closeGivesBack},
	{name: "respects holes", run: closeRespectsHoles},
	{name: "flushes first", run: closeFlushes},
	{name: "gives back what was fetched ahead", run: closeFetchedAhead},
	{name: "refuses settlements afterwards", run: settleAfterClose},
	{name: "ends receiving", run: receiveAfterClose},
	{name: "with an ended context", need: Need{ShortLease: true}, run: closeWithEndedContext},
	{name: "returned comes again", run: returnedComesAgain},
	{name: "races settlements", run: closeRacesSettlements},
}

func closeGivesBack(f *fixture) {
	want := f.publish(8, "k")
	c := f.open(5)
	f.order(c.receive(f.several(5)), 0)
	c.close()
	c = f.open(8)
	f.want(c.drain(8), want)
	c.close()
}

func closeRespectsHoles(f *fixture) {
	f.skipUnless(f.traits.MaxReceive >= 5, "Traits.MaxReceive is below 5")
	want := f.publish(8, "k")
	c := f.open(5)
	ds := c.receive(5)
	done := []*transport.Delivery{ds[0], ds[3]}
	c.accept(done...)
	c.close()
	c = f.open(6)
	f.want(c.drain(6), without(want, done))
	c.close()
	f.empty()
}

// closeFlushes: when Close returns without an error, what was settled before is
// sure, and reported.
func closeFlushes(f *fixture) {
	f.publish(20, keys(20)...)
	c := f.open(20)
	ds := c.receive(20)
	c.start(accept, ds...)
	c.close()
	if left, _ := c.rec.unreported(); len(left) > 0 {
		f.Errorf("Close returned before %d settlements were reported", len(left))
	}
	for _, d := range ds {
		if err := c.result(d); err != nil {
			f.Errorf("accept of %v before Close: %v", d, err)
		}
	}
	f.empty()
}

// closeFetchedAhead: what the client had and nobody received comes back too.
func closeFetchedAhead(f *fixture) {
	want := f.publish(30, keys(10)...)
	c := f.open(30)
	ds := c.receiveSome()
	c.close()
	c = f.open(30)
	f.want(c.drain(30), want)
	c.close()
	if len(ds) == 0 {
		f.Errorf("received nothing")
	}
}

func settleAfterClose(f *fixture) {
	want := f.publish(1, "k")
	c := f.open(1)
	ds := c.receive(1)
	c.close()
	c.start(accept, ds...)
	if err := c.result(ds[0]); !errors.Is(err, transport.ErrLeaseLost) {
		f.Errorf("accept after Close: %v, want ErrLeaseLost", err)
	}
	c.r.Grant(1) // refused, without a panic
	c = f.open(1)
	f.want(c.drain(1), want)
	c.close()
}

func receiveAfterClose(f *fixture) {
	f.publish(1, "k")
	c := f.open(1)
	c.close()
	ctx, cancel := f.wait()
	defer cancel()
	ds, err := c.r.Receive(ctx)
	var temporary *transport.TemporaryError
	if len(ds) > 0 || err == nil || errors.As(err, &temporary) || ctx.Err() != nil {
		f.Errorf("Receive after Close gave %v, %v; want an error that ends the epoch", bodies(ds), err)
	}
}

// closeWithEndedContext: it returns, releases everything, and what was held
// comes again, at the latest when its lease lapses.
func closeWithEndedContext(f *fixture) {
	f.skipUnless(!f.traits.LeaseExpires || f.h.Lease > 0, "Harness.Lease is 0: nothing waits for a lease to lapse")
	want := f.publish(3, keys(3)...)
	c := f.open(3)
	c.receive(3)
	ctx, cancel := context.WithCancel(f.Context())
	cancel()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		_ = c.closeWith(ctx) // the error is the transport's choice when nothing was settled
	}()
	limit, stop := f.wait()
	defer stop()
	select {
	case <-returned:
	case <-limit.Done():
		f.Fatalf("Close with an ended context didn't return within %v", f.h.Timeout)
	}
	c = f.open(3)
	again := c.receiveWithin(3, f.h.Timeout+f.h.Lease)
	f.want(again, want)
	c.accept(again...)
	c.close()
}

func returnedComesAgain(f *fixture) {
	want := f.publish(2, "k")
	c := f.open(1)
	ds := c.receive(1)
	f.order(ds, 0)
	c.settle(transport.Outcome{Kind: transport.Return}, ds...)
	c.close()
	c = f.open(2)
	f.want(c.drain(2), want)
	c.close()
	f.empty()
}

// closeRacesSettlements: while Close runs, lanes settle. What was reported as
// accepted is gone, what wasn't settled at all comes again, and each settlement
// is reported once.
func closeRacesSettlements(f *fixture) {
	const n = 60
	want := f.publish(n, keys(n)...)
	c := f.open(n)
	ds := c.receive(n)
	var wg sync.WaitGroup
	for lane := range 4 {
		wg.Go(func() {
			for i := lane; i < n; i += 6 { // two sixths are never settled
				c.start(accept, ds[i])
			}
		})
	}
	c.close()
	wg.Wait()
	var gone []*transport.Delivery
	must := map[string]bool{}
	for i, d := range ds {
		switch {
		case i%6 >= 4:
			must[string(d.Body)] = true
		case c.result(d) == nil:
			gone = append(gone, d)
		}
	}
	may := map[string]bool{}
	for _, b := range without(want, gone) {
		may[b] = true
	}
	c = f.open(n)
	for len(must) > 0 {
		got := c.receiveSome()
		if len(got) == 0 {
			f.Fatalf("%d messages that were never settled didn't come again", len(must))
		}
		for _, d := range got {
			if !may[string(d.Body)] {
				f.Errorf("%q came again, though it was accepted, or twice", d.Body)
			}
			delete(may, string(d.Body))
			delete(must, string(d.Body))
		}
		c.accept(got...)
	}
	// What was refused may be left: nothing else.
	for {
		ctx, cancel := context.WithTimeout(f.Context(), f.h.Quiet)
		got, _ := c.r.Receive(ctx)
		cancel()
		if len(got) == 0 {
			break
		}
		for _, d := range got {
			if !may[string(d.Body)] {
				f.Errorf("%q came again, though it was accepted", d.Body)
			}
		}
		c.accept(got...)
	}
	c.close()
}
