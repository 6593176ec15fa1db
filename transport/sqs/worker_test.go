package sqs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/transport"
)

// worker drives a receiver as the tree would: it receives, settles after a
// while, extends, and stops at a moment of its own.
type worker struct {
	t        testing.TB
	rng      *rand.Rand
	r        transport.Receiver
	s        *sink
	lease    time.Duration
	accepted chan string // bodies whose accept was confirmed
	wg       sync.WaitGroup
}

func (w *worker) run(stop <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var mu sync.Mutex
	held := map[*transport.Delivery]bool{}
	ended := make(chan struct{})
	granter := make(chan struct{})
	go func() { // gives credit back
		defer close(granter)
		closed := (<-chan struct{})(ended)
		for done := false; !done || len(w.s.settled) > 0; {
			select {
			case e := <-w.s.settled:
				if e.err == nil && e.o.Kind == transport.Accept {
					w.accepted <- string(e.d.Body)
				}
				w.r.Grant(1)
			case <-closed:
				done = true
				closed = nil
			}
		}
	}()
	w.wg.Go(func() {
		tick := time.NewTicker(w.lease / 5)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				mu.Lock()
				var ds []*transport.Delivery
				for d := range held {
					ds = append(ds, d)
				}
				mu.Unlock()
				w.r.Extend(ds, until(w.lease))
			case <-ctx.Done():
				return
			}
		}
	})
	w.wg.Go(func() {
		for ctx.Err() == nil {
			ds, err := w.r.Receive(ctx)
			if is[*transport.TemporaryError](err) {
				time.Sleep(250 * time.Millisecond) // as a pump backs off; virtual
			} else if err != nil && !errors.Is(err, context.Canceled) {
				w.t.Errorf("receive: %v", err)
				return
			}
			for _, d := range ds {
				mu.Lock()
				held[d] = true
				o := accept
				if w.rng.IntN(5) == 0 {
					o = giveUp
				}
				delay := time.Duration(w.rng.Int64N(int64(3 * time.Second)))
				mu.Unlock()
				time.AfterFunc(delay, func() {
					mu.Lock()
					delete(held, d)
					mu.Unlock()
					w.r.Settle(d, o)
				})
			}
		}
	})
	<-stop
	cancel()
	w.wg.Wait()
	closeNow(w.t, w.r)
	close(ended)
	<-granter
}

// An outage of 20 s in the middle of the work: everything is accepted in the
// end, what comes twice was held or under way when it began, and the outage
// costs a few calls a second.
func TestNothingLostThroughOutage(t *testing.T) {
	for name, fault := range map[string]sqsfake.Fault{
		"cut": sqsfake.Drop, "black hole": sqsfake.BlackHole, "lost replies": sqsfake.LoseReply,
		"throttled": sqsfake.Fail(400, "RequestThrottled"), "denied": sqsfake.Fail(403, "ExpiredToken"), "500": sqsfake.FailText(500, "oops"),
	} {
		for _, kind := range []string{"", ".fifo"} {
			for _, lease := range []time.Duration{4 * time.Second, 60 * time.Second} {
				t.Run(fmt.Sprint(name, kind, lease), func(t *testing.T) {
					virtual(t, func(f *fake) { throughOutage(f, kind, lease, fault, name != "lost replies") })
				})
			}
		}
	}
}

func throughOutage(f *fake, kind string, lease time.Duration, fault sqsfake.Fault, confirmed bool) {
	const n, credit = 300, 40
	q := newQueue(f, f.client, kind, map[string]string{"VisibilityTimeout": fmt.Sprint(int(lease / time.Second))})
	for i := range n {
		put(f, f.client, q, fmt.Sprint("g", i%30), fmt.Sprint(i))
	}
	w := &worker{t: f, rng: rand.New(rand.NewPCG(1, 8)), accepted: make(chan string, 10*n), lease: lease}
	w.r, w.s = open(f, f.client, q, &Options{WaitTime: time.Second})
	w.r.Grant(credit)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		w.run(stop)
		close(done)
	}()
	time.Sleep(3 * time.Second)
	before := f.wire.Total()
	f.wire.Script(func(sqsfake.Call) sqsfake.Fault { return fault })
	time.Sleep(20 * time.Second)
	f.wire.Script(nil)
	if calls := f.wire.Total() - before; calls > 20*8 {
		f.Errorf("%d calls in 20 s without a reply", calls)
	}
	time.Sleep(5 * time.Minute)
	close(stop)
	<-done
	f.atServer(q, "0", "0")
	close(w.accepted)
	times := map[string]int{}
	for b := range w.accepted {
		times[b]++
	}
	again := 0
	for _, c := range times {
		again += c - 1
	}
	f.Logf("%d of %d accepted, %d twice, %d leases lost", len(times), n, again, len(w.s.lost))
	if confirmed && len(times) != n { // else deletes are carried out that nobody hears of
		f.Errorf("%d of %d were accepted", len(times), n)
	}
	if again > credit {
		f.Errorf("%d were accepted twice", again)
	}
}
