package actors_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// However a subscription fails to its parent, nothing runs and nothing is in
// flight when the parent is asked, whatever it then orders. After a restart and a
// resume each key goes on in order.
func TestEscalationIsMadeSafeWhileOthersRun(t *testing.T) {
	for name, c := range map[string]struct {
		decide func(actor.Supervisor, *actor.PID)
		goesOn bool
	}{
		"restart": {func(s actor.Supervisor, c *actor.PID) { s.RestartChildren(c) }, true},
		"resume":  {func(s actor.Supervisor, c *actor.PID) { s.ResumeChildren(c) }, true},
		"stop":    {func(s actor.Supervisor, c *actor.PID) { s.StopChildren(c) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				evs := listen(r.sys)
				var steps trail
				var running, interrupted atomic.Int32
				var bad atomic.Bool
				bad.Store(true)
				p := r.spawnUnder(r.props(r.queue.Source(), func(ctx context.Context, d *transport.Delivery) error {
					running.Add(1)
					defer running.Add(-1)
					switch {
					case d.Key == "bad" && bad.Load():
						time.Sleep(time.Second)
						bad.Store(false)
						return fmt.Errorf("order %s: %w", d.ID, errBoom)
					case d.Key == "slow":
						select {
						case <-time.After(3 * time.Second):
						case <-ctx.Done():
							interrupted.Add(1)
							if !errors.Is(context.Cause(ctx), transport.ErrStopping) {
								t.Errorf("cause %v, want ErrStopping", context.Cause(ctx))
							}
							time.Sleep(time.Second) // not at once
							return ctx.Err()
						}
					}
					steps.add("%s", d.ID)
					return nil
				}, actors.Options{Dispatch: actors.PerKey(4), Policy: supervision.Always(supervision.Escalate())}),
					func(sup actor.Supervisor, child *actor.PID, reason any) {
						var e *actors.EscalatedError
						if err, ok := reason.(error); !ok || !errors.As(err, &e) || e.Key != "bad" || !errors.Is(err, errBoom) {
							t.Errorf("reason %v, want an *EscalatedError of the bad key", reason)
						}
						if n := running.Load(); n != 0 {
							t.Errorf("%d handlers run when the parent is asked", n)
						}
						r.left(4)
						c.decide(sup, child)
					})
				r.publish(1, "bad", "slow", "slow", "bad")
				time.Sleep(time.Minute)
				if n := interrupted.Load(); n != 1 || len(p.failures()) != 1 {
					t.Errorf("%d handlers interrupted, failures %v, want one each", n, p.failures())
				}
				if c.goesOn {
					steps.want(t, "1", "4", "2", "3")
					evs.want(t, 2, actors.EventAttached)
					r.drain(p.child)
					r.stop(p.pid)
					r.left(0)
					return
				}
				if err := actors.Ready(context.Background(), r.sys.Root, p.child); !errors.Is(err, actors.ErrNotRunning) {
					t.Errorf("ready: %v, want ErrNotRunning", err)
				}
				steps.want(t)
				r.stop(p.pid)
				r.left(4)
			})
		})
	}
}

// A subscription that escalates again and again is asked about each time, and
// makes progress in between.
func TestEscalatesAgainAndAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 20
		r := newRig(t, nil)
		var steps trail
		p := r.spawnUnder(r.props(r.queue.Source(), func(_ context.Context, d *transport.Delivery) error {
			if steps.count(d.ID+" fails") == 0 {
				steps.add("%s fails", d.ID)
				return errBoom
			}
			steps.add("%s", d.ID)
			return nil
		}, actors.Options{Policy: supervision.Always(supervision.Escalate())}), func(sup actor.Supervisor, child *actor.PID, _ any) {
			sup.RestartChildren(child)
		})
		var want, keys []string
		for i := range n {
			keys = append(keys, "A")
			want = append(want, fmt.Sprint(i, " fails"), fmt.Sprint(i))
		}
		r.publish(0, keys...)
		time.Sleep(time.Minute)
		steps.want(t, want...)
		if fs := p.failures(); len(fs) != n {
			t.Errorf("%d failures, want %d", len(fs), n)
		}
		r.drain(p.child)
		r.stop(p.pid)
		r.left(0)
	})
}

// The policy stops the subscription: what runs may finish, the rest goes back, and
// the actor stops without bothering its parent.
func TestStopSubscriptionDirective(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		evs := listen(r.sys)
		var steps trail
		p := r.spawnUnder(r.props(r.queue.Source(), func(ctx context.Context, d *transport.Delivery) error {
			if d.Key == "bad" {
				time.Sleep(time.Second) // so that the slow one has begun: either lane may be first
				return errBoom
			}
			time.Sleep(5 * time.Second)
			steps.add("%s %v", d.ID, ctx.Err())
			return nil
		}, actors.Options{Dispatch: actors.PerKey(4), Policy: supervision.Always(supervision.StopSubscription())}),
			func(sup actor.Supervisor, child *actor.PID, reason any) {
				t.Errorf("the parent is asked: %v", reason)
				sup.StopChildren(child)
			})
		r.publish(1, "slow", "slow", "bad", "bad")
		time.Sleep(time.Minute)
		steps.want(t, "1 <nil>")
		if es := evs.of(actors.EventStopped); len(es) != 1 || !errors.Is(es[0].Err, errBoom) {
			t.Errorf("events %+v, want one that says why it stopped", es)
		}
		if err := actors.Ready(context.Background(), r.sys.Root, p.child); !errors.Is(err, actors.ErrNotRunning) {
			t.Errorf("ready: %v, want ErrNotRunning", err)
		}
		r.stop(p.pid)
		r.left(3)
	})
}

// A panic on the router's goroutine, here of a receiver's Settle: what runs is
// cancelled and waited for, the epoch ends, and then the parent is asked.
func TestRouterCrashGoesToTheParent(t *testing.T) {
	for name, c := range map[string]struct {
		decide func(actor.Supervisor, *actor.PID)
		goesOn bool
	}{
		"restart": {func(s actor.Supervisor, c *actor.PID) { s.RestartChildren(c) }, true},
		"resume":  {func(s actor.Supervisor, c *actor.PID) { s.ResumeChildren(c) }, true},
		"stop":    {func(s actor.Supervisor, c *actor.PID) { s.StopChildren(c) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, s := newRig(t, nil), newScript()
				s.settle = func(rcv *scriptRcv, d *transport.Delivery, o transport.Outcome) {
					if d.ID == "1" && rcv.n == 1 {
						panic("settle")
					}
					rcv.confirm(d, o)
				}
				var steps trail
				var running atomic.Int32
				p := r.spawnUnder(r.props(s, func(ctx context.Context, d *transport.Delivery) error {
					running.Add(1)
					defer running.Add(-1)
					steps.add("%s", d.ID)
					switch d.ID {
					case "1":
						time.Sleep(time.Second)
						return errBoom
					case "9":
						select {
						case <-time.After(3 * time.Second):
						case <-ctx.Done():
							return context.Cause(ctx)
						}
					}
					return nil
				}, actors.Options{Dispatch: actors.PerKey(2), Policy: supervision.Always(supervision.AcceptAnyway())}),
					func(sup actor.Supervisor, child *actor.PID, reason any) {
						if e, ok := reason.(*actors.CrashError); !ok || e.Part != "router" {
							t.Errorf("reason %v, want the router's *CrashError", reason)
						}
						if n := running.Load(); n != 0 {
							t.Errorf("%d handlers run when the parent is asked", n)
						}
						rcv := s.last(t)
						rcv.mu.Lock()
						defer rcv.mu.Unlock()
						if !rcv.closed {
							t.Error("the parent is asked before the epoch has ended")
						}
						c.decide(sup, child)
					})
				synctest.Wait()
				s.last(t).deliver("1:A", "9:B", "2:A")
				time.Sleep(time.Minute)
				if fs := p.failures(); len(fs) != 1 {
					t.Fatalf("failures %v, want one", fs)
				}
				if c.goesOn {
					second := s.last(t)
					second.deliver("1:A", "2:A")
					time.Sleep(2 * time.Second)
					got := steps.all()
					slices.Sort(got[:2]) // on two lanes
					if !slices.Equal(got, []string{"1", "9", "1", "2"}) {
						t.Errorf("steps %s, want what was under way, and then the order again", got)
					}
					if got := fmt.Sprint(second.outcomes()); got != "[1 accept 2 accept]" {
						t.Errorf("settled %s", got)
					}
					r.drain(p.child)
				}
				r.stop(p.pid)
				if got := fmt.Sprint(s.rcvs[0].outcomes()); got != "[]" {
					t.Errorf("settled %s on the first receiver, want nothing", got)
				}
			})
		})
	}
}
