package actors_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// clawRig is a lane that works on A1 to A6, and what makes the router take back
// what the lane hasn't claimed: the abandon of another key, a drain, the loss of
// the link.
type clawRig struct {
	*rig
	t       *testing.T
	starts  trail // "epoch id"
	j       *journal
	trigger chan struct{} // closed: the other key abandons
	pid     *actorPID
	// at is what the lane stops at, until gate is closed.
	at      actors.ObservationKind
	id      string
	reached chan struct{}
	gate    chan struct{}
	once    sync.Once
}

const clawed = 6 // messages of the key

func newClawRig(t *testing.T, at actors.ObservationKind, id string) *clawRig {
	c := &clawRig{rig: newRig(t, nil), t: t, j: newJournal(clawed), trigger: make(chan struct{}),
		at: at, id: id, reached: make(chan struct{}), gate: make(chan struct{})}
	c.publish(1, slices.Repeat([]string{"A"}, clawed)...)
	c.publish(10, "B")
	c.start()
	return c
}

func (c *clawRig) start() {
	var abandoned atomic.Bool
	c.pid = c.spawn(func(_ context.Context, d *transport.Delivery) error {
		if d.Key == "B" {
			if <-c.trigger; !abandoned.Swap(true) {
				return errBoom
			}
			return nil
		}
		c.starts.add("%d %s", d.Epoch, d.ID)
		c.j.begin(d)
		c.j.end(d, true)
		return nil
	}, actors.Options{Dispatch: actors.PerKey(2), Policy: supervision.Always(supervision.Abandon(0)), Observer: actors.ObserverFunc(func(o actors.Observation) {
		if o.Kind == c.at && o.Delivery.ID == c.id && o.Delivery.Epoch == 1 {
			c.once.Do(func() { close(c.reached) })
			<-c.gate
		}
	})})
}

// claw makes the router take back what isn't claimed, and goes on when it has.
func (c *clawRig) claw(why string) (end func()) {
	drained := make(chan struct{})
	close(drained)
	switch why {
	case "abandon":
		close(c.trigger)
	case "drain":
		close(c.trigger) // so that B ends; its abandon is one more reason
		drained = make(chan struct{})
		go func() {
			defer close(drained)
			c.drain(c.pid)
		}()
	case "loss":
		c.queue.CutLinks()
	}
	return func() {
		<-drained
		if why == "loss" {
			close(c.trigger)
		}
		if why == "drain" {
			c.start()
		}
	}
}

// finish lets everything end, and checks that everything of the key has run in
// order, in the first epoch once at most, and none is left.
func (c *clawRig) finish() {
	c.await(c.pid, c.j.done)
	synctest.Wait()
	c.drain(c.pid)
	c.left(0)
	for _, f := range c.j.faults {
		c.t.Error(f)
	}
	for i := 1; i <= clawed; i++ {
		if n := c.starts.count(fmt.Sprint("1 ", i)); n > 1 {
			c.t.Errorf("%d started %d times in the first epoch", i, n)
		}
	}
}

// Interleaving 1. A lane claims A2 while the router claws back: for an abandon, a
// drain, the loss of the link. Exactly one wins. Where the lane comes first A2
// runs to its end and nothing behind it starts; where the router does, A2 doesn't
// start before it was handed out anew.
func TestInterleaving01ClaimMeetsClawBack(t *testing.T) {
	for _, why := range []string{"abandon", "drain", "loss"} {
		for _, first := range []string{"lane", "router"} {
			t.Run(why+"/"+first, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					// The lane stands behind the claim of 2, or before it.
					at, id, want := actors.ObserveStarted, "2", []string{"1 1", "1 2"}
					if first == "router" {
						at, id, want = actors.ObserveSucceeded, "1", []string{"1 1"}
					}
					c := newClawRig(t, at, id)
					<-c.reached
					end := c.claw(why)
					synctest.Wait() // the router has clawed
					close(c.gate)
					synctest.Wait()
					var got []string
					for _, s := range c.starts.all() {
						if s[:2] == "1 " {
							got = append(got, s)
						}
					}
					if !slices.Equal(got, want) {
						t.Errorf("starts in the first epoch are %q, want %q", got, want)
					}
					end()
					c.finish()
					if why == "loss" { // what ran then is handed out again
						return
					}
					c.j.check(t)
					if n := len(c.starts.all()); n != clawed {
						t.Errorf("%d starts, want each once: %q", n, c.starts.all())
					}
				})
			})
		}
	}
}

// The same with nothing in the way: whoever comes first at the word that both
// swap, over and over.
func TestInterleaving01ClaimRacesClawBack(t *testing.T) {
	for _, why := range []string{"abandon", "drain", "loss"} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			for range 40 {
				synctest.Test(t, func(t *testing.T) {
					c := newClawRig(t, actors.ObserveSucceeded, fmt.Sprint(1+rand.IntN(clawed-1)))
					<-c.reached
					go close(c.gate)
					end := c.claw(why)
					time.Sleep(time.Second)
					end()
					c.finish()
					if why != "loss" {
						c.j.check(t)
						if n := len(c.starts.all()); n != clawed {
							t.Errorf("%d starts, want each once: %q", n, c.starts.all())
						}
					}
				})
			}
		})
	}
}
