package actors_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

var errCut = errors.New("cut")

// backedOff checks that opens, at those times, kept to the waits that were told
// after each, links having lived for lived; and that the waits are those of a
// backoff that doubles from 100 ms to 30 s, with jitter.
func backedOff(t *testing.T, at []time.Time, told []actors.Event, lived time.Duration) {
	t.Helper()
	if len(at) < 4 || len(told) < len(at)-1 {
		t.Fatalf("%d opens and %d waits", len(at), len(told))
	}
	for i, e := range told {
		if most := min(100*time.Millisecond<<i, 30*time.Second); e.Wait < 50*time.Millisecond || e.Wait > most {
			t.Errorf("wait %d is %v, want 50ms to %v", i, e.Wait, most)
		}
	}
	for i := range len(at) - 1 {
		if gap := at[i+1].Sub(at[i]); gap != told[i].Wait+lived {
			t.Errorf("open %d comes %v after the one before, and a wait of %v was told", i+1, gap, told[i].Wait)
		}
	}
}

// A source that attaches and loses its link is attached again at growing
// distances, like one that doesn't attach: whether it hands nothing out, or hands
// out what then never can be settled. A link that did its work, or lived for a
// while, is replaced at once.
func TestLinkOfNoUseBacksOff(t *testing.T) {
	for name, c := range map[string]struct {
		delivers    bool
		settles     bool
		lives       time.Duration
		waits       bool
		least, most int // opens in a minute, where nothing waits
	}{
		"at once":            {waits: true},
		"after a delivery":   {delivers: true, waits: true},
		"after a second":     {lives: time.Second, waits: true},
		"after a settlement": {delivers: true, settles: true, lives: time.Second, least: 59, most: 61},
		"after a while":      {lives: 6 * time.Second, least: 10, most: 11},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, s := newRig(t, nil), newScript()
				evs, opens := listen(r.sys), &trail{}
				s.open = func(int) error {
					opens.add("open")
					return nil
				}
				s.receive = func(ctx context.Context, rcv *scriptRcv) ([]*transport.Delivery, error) {
					if c.delivers && rcv.credit() > 0 {
						rcv.mu.Lock()
						rcv.granted = 0
						rcv.mu.Unlock()
						rcv.deliver("1:A")
						return <-rcv.belt, nil
					}
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(c.lives):
					}
					rcv.lease.Lose()
					return nil, errCut
				}
				pid := r.spawnOn(s, func(ctx context.Context, _ *transport.Delivery) error {
					if c.settles {
						return nil
					}
					<-ctx.Done()
					return context.Cause(ctx)
				}, actors.Options{})
				time.Sleep(time.Minute)
				at := opens.when()
				if c.waits {
					backedOff(t, at, evs.of(actors.EventDetached), c.lives)
				} else if n := len(at); n < c.least || n > c.most {
					t.Errorf("%d opens in a minute, want %d to %d", n, c.least, c.most)
				}
				for _, e := range evs.of(actors.EventDetached) {
					if waits := e.Wait > 0; waits != c.waits || !errors.Is(e.Err, errCut) {
						t.Errorf("event %+v, want the cause, and a wait: %v", e, c.waits)
					}
				}
				r.drain(pid)
			})
		})
	}
}

// Pauses that come and go while it waits don't make it attach any sooner.
func TestPauseDoesntCutTheBackoffShort(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, s := newRig(t, nil), newScript()
		evs, opens := listen(r.sys), &trail{}
		s.open = func(int) error {
			opens.add("open")
			return errBoom
		}
		pid := r.spawnOn(s, nothing, actors.Options{})
		for range 600 {
			time.Sleep(50 * time.Millisecond)
			r.request(pid, &actors.Pause{})
			time.Sleep(50 * time.Millisecond)
			r.request(pid, &actors.Resume{})
		}
		backedOff(t, opens.when(), evs.of(actors.EventAttachFailed), 0)
		start := time.Now()
		r.drain(pid)
		if took := time.Since(start); took != 0 {
			t.Errorf("the drain took %v, want none: it waits for nothing", took)
		}
	})
}

// A link that is lost in a pause is seen at once: who still runs is told, and a
// new link is there, with nothing granted, when the pause ends.
func TestLinkIsLostInAPause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		evs := listen(r.sys)
		j := newJournal(3)
		running, cause := make(chan struct{}), make(chan error, 1)
		pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
			j.begin(d)
			first := d.ID == "1" && d.Epoch == 1
			defer func() { j.end(d, !first) }()
			if first {
				close(running)
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return ctx.Err()
			}
			return nil
		}, actors.Options{Dispatch: actors.ByKey(2)})
		r.publish(1, "A", "A", "A")
		<-running
		r.request(pid, &actors.Pause{})
		time.Sleep(time.Minute)
		lost := time.Now()
		r.queue.CutLinks()
		if err := <-cause; !errors.Is(err, transport.ErrLeaseLost) || time.Since(lost) > 0 {
			t.Errorf("cause %v after %v, want ErrLeaseLost at once", err, time.Since(lost))
		}
		time.Sleep(time.Minute)
		evs.want(t, 1, actors.EventDetached)
		evs.want(t, 2, actors.EventAttached)
		if st := r.stats(pid); st.State != actors.StatePaused || st.Held != 0 || st.Epoch != 2 {
			t.Errorf("stats %+v, want it paused, attached again, with nothing held", st)
		}
		r.left(3)
		r.request(pid, &actors.Resume{})
		r.await(pid, j.done)
		j.check(t)
		r.drain(pid)
		r.left(0)
	})
}

// An abandon ends the epoch while another key's handler runs for longer than
// StopTimeout: that one is told to give up, and its error counts for nothing. So
// it does with batches.
func TestResetCountsNoAttemptOfOthers(t *testing.T) {
	for _, batch := range []bool{false, true} {
		name := "single"
		if batch {
			name = "batch"
		}
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const resets = 6 // more than the policy allows attempts
				r := newRig(t, nil)
				var steps trail
				done := make(chan struct{})
				left := resets
				handle := func(ctx context.Context, d *transport.Delivery) error {
					switch {
					case d.Key == "abandoned":
						time.Sleep(time.Second)
						if left--; left < 0 {
							return nil
						}
						return supervision.With(errBoom, supervision.Abandon(0))
					case len(steps.all()) < resets:
						<-ctx.Done()
						steps.add("%v", context.Cause(ctx))
						return ctx.Err()
					}
					steps.add("attempt %d", transport.Attempt(ctx))
					close(done)
					return nil
				}
				o := actors.Options{Dispatch: actors.PerKey(2), StopTimeout: 2 * time.Second, Logger: quiet(), DeadLetter: r.dead.Publisher()}
				h := transport.HandlerFunc(handle)
				props, err := actors.Subscription(r.queue.Source(), h, &o)
				if batch {
					o.Batch = 1
					props, err = actors.BatchSubscription(r.queue.Source(), transport.BatchHandlerFunc(func(ctx context.Context, ds []*transport.Delivery) error {
						return handle(ctx, ds[0])
					}), &o)
				}
				if err != nil {
					t.Fatal(err)
				}
				pid := r.sys.Root.Spawn(props)
				r.publish(1, "abandoned", "slow")
				r.await(pid, done)
				synctest.Wait()
				want := []string{}
				for range resets {
					want = append(want, transport.ErrLeaseLost.Error())
				}
				steps.want(t, append(want, "attempt 1")...)
				if n := r.dead.Depth(); n != 0 {
					t.Errorf("%d dead letters, want none", n)
				}
				r.drain(pid)
				r.left(0)
			})
		})
	}
}
