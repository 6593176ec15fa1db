package actors_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// Interleaving 4. The link dies while A1 runs. A1 comes again in the next epoch: it waits until
// the first has returned, also where another lane is free, and the first one's success touches
// nothing of it.
func TestLinkDiesWhileA1Runs(t *testing.T) {
	for _, d := range everyMode {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, s := newRig(t, nil), newScript()
				var steps trail
				release := make(chan struct{})
				var runs atomic.Int32
				pid := r.spawnOn(s, func(ctx context.Context, d *transport.Delivery) error {
					n := runs.Add(1)
					steps.add("start %s", d.ID)
					if n == 1 {
						<-ctx.Done()
						if !errors.Is(context.Cause(ctx), transport.ErrLeaseLost) {
							t.Errorf("cause %v, want ErrLeaseLost", context.Cause(ctx))
						}
						<-release
					}
					steps.add("end %s", d.ID)
					return nil
				}, actors.Options{Dispatch: d})
				synctest.Wait()
				first := s.last(t)
				if first.credit() != 256 {
					t.Errorf("%d granted, want the whole credit", first.credit())
				}
				// Without order 2 would run beside 1.
				brought := ids(1, 2, "A")
				if d == actors.Workers(4) {
					brought = brought[:1]
				}
				first.deliver(brought...)
				synctest.Wait()
				first.fail <- errors.New("cut")
				time.Sleep(time.Second)
				second := s.last(t)
				if second == first {
					t.Fatal("no new receiver")
				}
				second.deliver(brought...)
				time.Sleep(time.Second)
				steps.want(t, "start 1")
				close(release)
				synctest.Wait()
				want, settled := []string{"start 1", "end 1", "start 1", "end 1"}, "[] [1 accept]"
				if len(brought) > 1 {
					want, settled = append(want, "start 2", "end 2"), "[] [1 accept 2 accept]"
				}
				steps.want(t, want...)
				if got := fmt.Sprint(first.outcomes(), second.outcomes()); got != settled {
					t.Errorf("settled %s, want %s: nothing on the first receiver", got, settled)
				}
				r.drain(pid)
			})
		})
	}
}

// A panic of the pump's goroutine: made safe first, then the parent decides. A
// restart and a resume both begin afresh, and what was held comes again in order.
func TestPumpPanicGoesToTheParent(t *testing.T) {
	for name, decide := range map[string]func(actor.Supervisor, *actor.PID){
		"restart": func(s actor.Supervisor, c *actor.PID) { s.RestartChildren(c) },
		"resume":  func(s actor.Supervisor, c *actor.PID) { s.ResumeChildren(c) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, s := newRig(t, nil), newScript()
				evs := listen(r.sys)
				var boom atomic.Bool
				s.receive = func(ctx context.Context, rcv *scriptRcv) ([]*transport.Delivery, error) {
					ds, err := rcv.wait(ctx)
					if boom.Swap(false) {
						panic("receive")
					}
					return ds, err
				}
				var steps trail
				p := r.spawnUnder(r.props(s, func(_ context.Context, d *transport.Delivery) error {
					steps.add("%s", d.ID)
					return nil
				}, actors.Options{}), func(sup actor.Supervisor, child *actor.PID, _ any) {
					if !s.rcvs[0].closed {
						t.Error("the parent is asked before the epoch has ended")
					}
					decide(sup, child)
				})
				synctest.Wait()
				boom.Store(true)
				s.last(t).deliver("1:A")
				time.Sleep(time.Minute)
				if fs := p.failures(); len(fs) != 1 {
					t.Fatalf("failures %v, want one", fs)
				} else if c, ok := fs[0].(*actors.CrashError); !ok || c.Part != "pump" {
					t.Errorf("failure %v, want the pump's *CrashError", fs[0])
				}
				s.last(t).deliver(ids(1, 3, "A")...)
				synctest.Wait()
				steps.want(t, "1", "2", "3")
				evs.want(t, 2, actors.EventAttached)
				r.drain(p.child)
				r.stop(p.pid)
			})
		})
	}
}

// The policy escalates: nothing runs and the message is back when the parent is
// asked; after a restart the order goes on.
func TestEscalateIsSafeFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		var steps trail
		var fails atomic.Bool
		fails.Store(true)
		p := r.spawnUnder(r.props(r.queue.Source(), func(_ context.Context, d *transport.Delivery) error {
			steps.add("%s", d.ID)
			if d.ID == "2" && fails.Swap(false) {
				return errBoom
			}
			return nil
		}, actors.Options{Policy: supervision.Always(supervision.Escalate())}), func(sup actor.Supervisor, child *actor.PID, reason any) {
			if e, ok := reason.(*actors.EscalatedError); !ok || !errors.Is(e, errBoom) || e.ID != "2" {
				t.Errorf("reason %v, want an *EscalatedError of message 2", reason)
			}
			if n := r.queue.InFlight(); n != 0 {
				t.Errorf("%d in flight when the parent is asked", n)
			}
			sup.RestartChildren(child)
		})
		r.publish(1, "A", "A", "A")
		time.Sleep(time.Minute)
		steps.want(t, "1", "2", "2", "3")
		if n := steps.count("2"); n != 2 || len(p.failures()) != 1 {
			t.Errorf("message 2 ran %d times with %d failures", n, len(p.failures()))
		}
		r.drain(p.child)
		r.stop(p.pid)
		r.left(0)
	})
}

// Ten minutes without the downstream, a thousand keys: nothing is dead-lettered,
// no lane calls it more than a handful of times a second, and a second after its
// return everything flows.
func TestOutageIsNotPoison(t *testing.T) {
	for _, d := range dispatches {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const n = 1000
				r := newRig(t, nil)
				var steps trail
				var down atomic.Bool
				down.Store(true)
				var calls atomic.Int64
				j := newJournal(n)
				pid := r.spawn(func(_ context.Context, d *transport.Delivery) error {
					j.begin(d)
					calls.Add(1)
					failed := down.Load()
					defer func() { j.end(d, !failed) }()
					if failed {
						return errBoom
					}
					steps.add("ok")
					return nil
				}, actors.Options{Dispatch: d})
				r.publish(0, manyKeys(n, n)...)
				time.Sleep(10 * time.Second)
				before := calls.Load()
				time.Sleep(590 * time.Second)
				rate := float64(calls.Load()-before) / 590 / float64(d.Lanes())
				if rate > 6 {
					t.Errorf("%.1f calls a second a lane during the outage, want a handful", rate)
				}
				if dead := r.dead.Depth(); dead != 0 {
					t.Errorf("%d dead letters in an outage", dead)
				}
				back := time.Now()
				down.Store(false)
				r.await(pid, j.done)
				if late := steps.at("ok").Sub(back); late > time.Second {
					t.Errorf("the first success is %v after the return", late)
				}
				if took := time.Since(back); took > 2*time.Second {
					t.Errorf("everything is done %v after the return", took)
				}
				if d != actors.Workers(8) {
					j.check(t)
				}
				r.drain(pid)
				r.left(0)
			})
		})
	}
}

// One poisonous key in a healthy flow reaches the dead letters after exactly five
// attempts; its successors and the other keys go on.
func TestPoisonAfterFiveAttempts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		var steps trail
		keys := []string{"bad"}
		for i := range 200 {
			keys = append(keys, fmt.Sprint("good-", i%20))
		}
		keys = append(keys, "bad")
		j := newJournal(len(keys) - 1)
		pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
			j.begin(d)
			bad := d.ID == "0"
			defer func() { j.end(d, !bad) }()
			if bad {
				steps.add("attempt %d", transport.Attempt(ctx))
				return errBoom
			}
			time.Sleep(50 * time.Millisecond)
			return nil
		}, actors.Options{Dispatch: actors.ByKey(4)})
		r.publish(0, keys...)
		r.await(pid, j.done)
		steps.want(t, "attempt 1", "attempt 2", "attempt 3", "attempt 4", "attempt 5")
		dead := r.dead.Messages()
		if len(dead) != 1 || dead[0].ID != "0" || dead[0].Headers[transport.HeaderAttempts] != int64(5) ||
			dead[0].Headers[transport.HeaderKey] != "bad" || dead[0].Headers[transport.HeaderDescription] != "boom" {
			t.Errorf("dead letters %+v, want message 0 with its five attempts", dead)
		}
		j.check(t)
		r.drain(pid)
		r.left(0)
	})
}

// Three messages of one key take 2 s each, ahead of 200 instant ones of 100 other
// keys: ByKey delays the slow key's lane only, PerKey nobody.
func TestSlowKeyDelaysItsLaneOnly(t *testing.T) {
	for _, d := range []actors.Dispatch{actors.ByKey(16), actors.PerKey(16)} {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				keys := []string{"slow", "slow", "slow"}
				for i := range 200 {
					keys = append(keys, strconv.Itoa(i%100))
				}
				r.publish(0, keys...)
				start := time.Now()
				j := newJournal(len(keys))
				pid := r.spawn(func(_ context.Context, m *transport.Delivery) error {
					j.begin(m)
					defer j.end(m, true)
					if m.Key == "slow" {
						time.Sleep(2 * time.Second)
						return nil
					}
					mayWait := d == actors.ByKey(16) && actors.LaneOf(m.Key, 16) == actors.LaneOf("slow", 16)
					if late := time.Since(start); late > 50*time.Millisecond && !mayWait {
						t.Errorf("%v starts %v late", m, late)
					}
					return nil
				}, actors.Options{Dispatch: d})
				r.await(pid, j.done)
				j.check(t)
				r.drain(pid)
				r.left(0)
			})
		})
	}
}

// Interleaving 3. A handler ignores its timeout, three times over: its retry starts only after
// it has returned, with a fresh context; other keys of its lane go on once the
// lane is replaced.
func TestHandlerIgnoresItsTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		var steps trail
		j := newJournal(3)
		pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
			j.begin(d)
			ok := false
			defer func() { j.end(d, ok) }()
			steps.add("start %s/%d", d.ID, transport.Attempt(ctx))
			if ctx.Err() != nil {
				t.Errorf("%v starts with an ended context", d)
			}
			if d.ID == "0" && transport.Attempt(ctx) == 1 {
				time.Sleep(30 * time.Second)
				if !errors.Is(context.Cause(ctx), transport.ErrHandlerTimeout) {
					t.Errorf("cause %v, want ErrHandlerTimeout", context.Cause(ctx))
				}
				steps.add("end 0")
				return ctx.Err()
			}
			ok = true
			return nil
		}, actors.Options{Dispatch: actors.ByKey(1), HandlerTimeout: 10 * time.Second, StuckAfter: 5 * time.Second, Policy: retryEvery(time.Second)})
		r.publish(0, "A", "A", "B")
		r.await(pid, j.done)
		steps.want(t, "start 0/1", "start 2/1", "end 0", "start 0/2", "start 1/1")
		if at := steps.at("start 2/1").Sub(steps.at("start 0/1")); at != 15*time.Second {
			t.Errorf("the other key starts after %v, want the timeout and StuckAfter", at)
		}
		j.check(t)
		r.drain(pid)
		r.left(0)
	})
}
