package actors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

var errNoQueue = &transport.FatalError{Op: "open queue \"orders\"", Fix: "make it", Err: errBoom}

func nothing(context.Context, *transport.Delivery) error { return nil }

// Run ends cleanly with its context: what runs finishes, the rest goes back.
func TestRunDrainsWhenItsContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		var steps trail
		ctx, cancel := context.WithCancel(context.Background())
		r.publish(1, "A", "A")
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		err := actors.Run(ctx, r.queue.Source(), transport.HandlerFunc(func(hctx context.Context, d *transport.Delivery) error {
			time.Sleep(5 * time.Second)
			steps.add("%s %v", d.ID, hctx.Err())
			return nil
		}), &actors.Options{Logger: quiet(), DeadLetter: r.dead.Publisher()})
		if err != nil {
			t.Errorf("run: %v", err)
		}
		// To the millisecond: Run also outwaits protoactor's throttle of dead letters.
		if took := time.Since(start).Truncate(time.Millisecond); took != 5*time.Second {
			t.Errorf("it took %v, want as long as the handler", took)
		}
		steps.want(t, "1 <nil>")
		r.left(1)
	})
}

// A context that has ended already is a drain at once.
func TestRunWithAnEndedContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		r.publish(1, "A")
		if err := actors.Run(ctx, r.queue.Source(), transport.HandlerFunc(nothing), &actors.Options{Logger: quiet(), DeadLetter: r.dead.Publisher()}); err != nil {
			t.Errorf("run: %v", err)
		}
		if s := r.queue.Stats(); s.InFlight != 0 || s.Receivers != 0 {
			t.Errorf("left: %+v", s)
		}
	})
}

// What Run can't cure ends it, with a typed error that says what and why.
func TestRunReturnsWhatItCantCure(t *testing.T) {
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	for name, c := range map[string]struct {
		policy supervision.Policy
		break_ func(*script)
		typed  func(error) bool
		cause  func(error) bool
	}{
		"fatal open": {supervision.Default(), func(s *script) { s.open = func(int) error { return fmt.Errorf("dial: %w", errNoQueue) } },
			func(err error) bool { var e *actors.StartError; return errors.As(err, &e) && e.Name == "orders" }, is(errNoQueue)},
		"escalate": {supervision.Always(supervision.Escalate()), nil,
			func(err error) bool {
				var e *actors.EscalatedError
				return errors.As(err, &e) && e.ID == "1" && e.Key == "A"
			}, is(errBoom)},
		"stop": {supervision.Always(supervision.StopSubscription()), nil,
			func(err error) bool {
				return strings.Contains(err.Error(), "the policy stopped subscription \"orders\"")
			}, is(errBoom)},
		"pump crash": {supervision.Default(), func(s *script) {
			s.receive = func(context.Context, *scriptRcv) ([]*transport.Delivery, error) { panic("receive") }
		}, func(err error) bool { var e *actors.CrashError; return errors.As(err, &e) && e.Part == "pump" },
			func(err error) bool { return strings.Contains(err.Error(), "receive") }},
		"router crash": {supervision.Always(supervision.AcceptAnyway()), func(s *script) {
			s.settle = func(*scriptRcv, *transport.Delivery, transport.Outcome) { panic(errNoQueue) }
		}, func(err error) bool { var e *actors.CrashError; return errors.As(err, &e) && e.Part == "router" }, is(errNoQueue)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, s := newRig(t, nil), newScript()
				if c.break_ != nil {
					c.break_(s)
				}
				ended := make(chan error, 1)
				go func() {
					ended <- actors.Run(context.Background(), s, transport.HandlerFunc(func(context.Context, *transport.Delivery) error { return errBoom }),
						&actors.Options{Name: "orders", Logger: quiet(), DeadLetter: r.dead.Publisher(), Policy: c.policy})
				}()
				synctest.Wait()
				s.mu.Lock()
				opened := len(s.rcvs) > 0
				s.mu.Unlock()
				if opened {
					s.last(t).deliver("1:A")
				}
				select {
				case err := <-ended:
					if err == nil || !c.typed(err) || !c.cause(err) {
						t.Errorf("run: %T %v, want the typed error and its cause", err, err)
					}
				case <-time.After(time.Hour):
					t.Fatal("it goes on")
				}
				if opened && !s.last(t).closed {
					t.Error("the receiver isn't closed")
				}
			})
		})
	}
}

// A part that has just ended is told to stop once more: a dead letter, whose
// throttle in protoactor is a goroutine. Run doesn't return before that has ended,
// or a test in virtual time would find it (time stands still by then).
func TestRunLeavesNoThrottle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var letters atomic.Int64
		err := actors.RunProps(ctx, actor.PropsFromFunc(func(c actor.Context) {
			switch c.Message().(type) {
			case *actor.Started:
				c.ActorSystem().EventStream.Subscribe(func(m any) {
					if _, ok := m.(*actor.DeadLetterEvent); ok {
						letters.Add(1)
					}
				})
			case *actors.DrainMessage:
				child := c.Spawn(actor.PropsFromFunc(func(actor.Context) {}))
				if err := c.StopFuture(child).Wait(); err != nil {
					t.Error(err)
				}
				c.Stop(child)
				c.Stop(c.Self())
			}
		}))
		if !errors.Is(err, actors.ErrNotRunning) {
			t.Errorf("an actor that isn't a subscription ended with %v", err)
		}
		if letters.Load() == 0 {
			t.Error("nothing became a dead letter: the test shows nothing")
		}
	})
}

// Bad options end Run before anything starts.
func TestRunRefusesBadOptions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		err := actors.Run(context.Background(), s, transport.HandlerFunc(nothing), &actors.Options{Credit: -1})
		wantOptionError(t, err, "Options.Credit", "-1", "1 to 100000")
		if s.opens != 0 {
			t.Error("the source was opened")
		}
	})
}

// AwaitStarted hears of a fatal open error at once; a passing one is waited out,
// and Ready says meanwhile why.
func TestAwaitStarted(t *testing.T) {
	t.Run("fatal", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r, s := newRig(t, nil), newScript()
			s.open = func(int) error { time.Sleep(time.Second); return errNoQueue }
			// Under a parent that stops it: a Stop from outside would race with
			// the guardian's Restart, and protoactor restarts what has stopped.
			p := r.spawnUnder(r.props(s, nothing, actors.Options{}), func(sup actor.Supervisor, child *actor.PID, _ any) {
				sup.StopChildren(child)
			})
			err := actors.AwaitStarted(context.Background(), r.sys.Root, p.child)
			var e *actors.StartError
			if !errors.As(err, &e) || !errors.Is(err, errNoQueue) {
				t.Errorf("%v, want a *StartError with its cause", err)
			}
			time.Sleep(time.Minute)
			r.stop(p.pid)
		})
	})
	t.Run("passing", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r, s := newRig(t, nil), newScript()
			s.open = func(n int) error {
				if n < 4 {
					return errBoom
				}
				return nil
			}
			pid := r.spawnOn(s, nothing, actors.Options{})
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			if err := actors.AwaitStarted(ctx, r.sys.Root, pid); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want the end of the context", err)
			}
			if err := actors.Ready(context.Background(), r.sys.Root, pid); !errors.Is(err, errBoom) {
				t.Errorf("ready: %v, want what keeps it from attaching", err)
			}
			if err := actors.AwaitStarted(context.Background(), r.sys.Root, pid); err != nil {
				t.Errorf("await: %v", err)
			}
			if err := actors.Ready(context.Background(), r.sys.Root, pid); err != nil {
				t.Errorf("ready: %v", err)
			}
			r.drain(pid)
			if err := actors.AwaitStarted(context.Background(), r.sys.Root, pid); !errors.Is(err, actors.ErrNotRunning) {
				t.Errorf("await after the end: %v, want ErrNotRunning", err)
			}
		})
	})
}

func (r *rig) request(pid *actorPID, message any) {
	r.t.Helper()
	if _, err := r.sys.Root.RequestFuture(pid, message, time.Minute).Result(); err != nil {
		r.t.Errorf("%T: %v", message, err)
	}
}

// A pause lets what runs finish and starts nothing; a receive that was under way
// brings what it brings, and that waits. Resume goes on in order.
func TestPauseRacesAReceive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, s := newRig(t, nil), newScript()
		evs := listen(r.sys)
		inFlight := make(chan struct{}, 64)
		s.receive = func(ctx context.Context, rcv *scriptRcv) ([]*transport.Delivery, error) {
			inFlight <- struct{}{}
			ds, err := rcv.wait(ctx)
			if err != nil { // the poll is waited for, and brings what it brings
				select {
				case ds = <-rcv.belt:
				case <-time.After(time.Second):
				}
			}
			return ds, err
		}
		var steps trail
		pid := r.spawnOn(s, func(ctx context.Context, d *transport.Delivery) error {
			time.Sleep(2 * time.Second)
			steps.add("%s %v", d.ID, ctx.Err())
			return nil
		}, actors.Options{Dispatch: actors.ByKey(2)})
		synctest.Wait()
		rcv := s.last(t)
		rcv.deliver("1:A", "2:A")
		synctest.Wait()
		r.request(pid, &actors.Pause{})
		r.request(pid, &actors.Pause{}) // twice is once
		rcv.deliver("3:A", "4:B")       // while the poll ends
		time.Sleep(time.Hour)
		steps.want(t, "1 <nil>")
		if st := r.stats(pid); st.State != actors.StatePaused || st.NotReady == nil || st.Held != 3 || st.Running != 0 {
			t.Errorf("stats %+v, want paused with 3 held", st)
		}
		granted := rcv.credit()
		r.request(pid, &actors.Resume{})
		time.Sleep(time.Minute)
		if got := steps.all(); len(got) != 4 {
			t.Errorf("steps %q, want all four", got)
		}
		if a2, a3 := steps.at("2 <nil>"), steps.at("3 <nil>"); !a3.After(a2) {
			t.Errorf("3 ends at %v, 2 at %v", a3, a2)
		}
		if granted != 256 || rcv.credit() < 256 {
			t.Errorf("%d granted in the pause, %d after it: a pause grants nothing", granted, rcv.credit())
		}
		evs.want(t, 1, actors.EventPaused)
		evs.want(t, 1, actors.EventResumed)
		if err := actors.Ready(context.Background(), r.sys.Root, pid); err != nil {
			t.Errorf("ready: %v", err)
		}
		r.drain(pid)
	})
}

// Pauses and resumes at any moment of a flow lose nothing, and keep the order.
func TestPauseAndResumeDuringAFlow(t *testing.T) {
	for _, d := range dispatches {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const n = 500
				r := newRig(t, nil)
				j := newJournal(n)
				var paused atomic.Bool
				pid := r.spawn(func(_ context.Context, d *transport.Delivery) error {
					if paused.Load() {
						t.Errorf("%v starts in a pause", d)
					}
					j.begin(d)
					defer j.end(d, true)
					time.Sleep(700 * time.Microsecond)
					return nil
				}, actors.Options{Dispatch: d, Credit: 20})
				r.publish(0, manyKeys(n, 20)...)
				for range 50 {
					time.Sleep(time.Millisecond)
					r.request(pid, &actors.Pause{})
					synctest.Wait() // the router has heard
					paused.Store(true)
					time.Sleep(3 * time.Millisecond)
					paused.Store(false)
					r.request(pid, &actors.Resume{})
				}
				r.await(pid, j.done)
				if d != actors.Workers(8) {
					j.check(t)
				}
				r.drain(pid)
				r.left(0)
			})
		})
	}
}

// What comes in adds up with what went out.
func TestStatsAddUp(t *testing.T) {
	for _, d := range dispatches {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const n = 700
				r := newRig(t, nil)
				pid := r.spawn(func(ctx context.Context, m *transport.Delivery) error {
					switch {
					case strings.HasSuffix(m.ID, "7"):
						return supervision.With(errBoom, supervision.DeadLetter("declined", ""))
					case strings.HasSuffix(m.ID, "3") && transport.Attempt(ctx) == 1:
						return errBoom
					case strings.HasSuffix(m.ID, "5") && transport.Attempt(ctx) == 1:
						panic("boom")
					}
					return nil
				}, actors.Options{Dispatch: d, Name: "orders"})
				r.publish(0, manyKeys(n, 50)...)
				time.Sleep(time.Hour)
				st := r.stats(pid)
				if st.Received != n || st.Settled != n || st.Succeeded != n*9/10 || st.Failed != n*3/10 || st.DeadLettered != n/10 || st.LaneRestarts != n/10 {
					t.Errorf("counts don't add up: %+v", st)
				}
				if st.Held+st.Queued+st.Running+st.Parked+st.Copying+st.Stuck+st.Keys != 0 || st.Lost+st.Abandoned+st.SettleFailed+st.OverDelivered != 0 {
					t.Errorf("at rest there is %+v", st)
				}
				if st.Name != "orders" || st.State != actors.StateFlowing || st.Epoch != 1 || st.NotReady != nil || st.Blocked || st.Outage {
					t.Errorf("it should flow: %+v", st)
				}
				r.drain(pid)
			})
		})
	}
}

// One key that stands still takes the whole credit: after BlockedFor that is said,
// with the key that holds most, and Ready tells it. When it goes on, so does all.
func TestBlockedAndRecovery(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		evs := listen(r.sys)
		var once sync.Once
		done := make(chan struct{})
		pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
			if d.ID == "0" && transport.Attempt(ctx) == 1 {
				return errBoom
			}
			if d.Key == "other" {
				once.Do(func() { close(done) })
			}
			return nil
		}, actors.Options{Dispatch: actors.ByKey(4), Credit: 8, BlockedFor: 5 * time.Second, Policy: retryEvery(time.Minute)})
		keys := make([]string, 20)
		for i := range keys {
			keys[i] = "hot"
		}
		r.publish(0, append(keys, "other")...)
		time.Sleep(4 * time.Second)
		evs.want(t, 0, actors.EventBlocked)
		time.Sleep(2 * time.Second)
		evs.want(t, 1, actors.EventBlocked)
		if es := evs.of(actors.EventBlocked); es[0].Key != "hot" || es[0].Count != 8 {
			t.Errorf("event %+v, want the hot key with 8 held", es[0])
		}
		st := r.stats(pid)
		if !st.Blocked || st.BlockedKey != "hot" || st.Held != 8 || st.Parked != 1 || st.Queued != 7 || st.OldestHeld < 5*time.Second {
			t.Errorf("stats %+v, want them blocked", st)
		}
		if err := actors.Ready(context.Background(), r.sys.Root, pid); err == nil || !strings.Contains(err.Error(), `"hot"`) {
			t.Errorf("ready: %v, want it to name the hot key", err)
		}
		r.await(pid, done)
		synctest.Wait()
		evs.want(t, 1, actors.EventUnblocked)
		if err := actors.Ready(context.Background(), r.sys.Root, pid); err != nil {
			t.Errorf("ready: %v", err)
		}
		r.drain(pid)
		r.left(0)
	})
}

// Credit 1 does everything, one delivery at a time.
func TestCreditOfOne(t *testing.T) {
	for _, d := range dispatches {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, &memory.QueueOptions{Lease: time.Minute})
				j := newJournal(100)
				var most atomic.Int64
				pid := r.spawn(func(ctx context.Context, m *transport.Delivery) error {
					j.begin(m)
					ok := transport.Attempt(ctx) > 1 || len(m.ID) > 1
					defer j.end(m, ok)
					most.Store(max(most.Load(), int64(r.queue.InFlight())))
					if !ok {
						return errBoom
					}
					return nil
				}, actors.Options{Dispatch: d, Credit: 1, Policy: fast()})
				r.publish(0, manyKeys(100, 5)...)
				r.await(pid, j.done)
				if n := most.Load(); n != 1 {
					t.Errorf("%d in flight at once, want 1", n)
				}
				r.drain(pid)
				r.left(0)
			})
		})
	}
}
