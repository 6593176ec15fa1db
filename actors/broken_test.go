package actors_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/transport"
)

// A receiver's Settle panics on a lane's goroutine, or its Extend on the
// extender's. That isn't the message's fault: no attempt is counted and nothing is
// dead-lettered; the subscription is made safe and fails to its parent, and after
// a restart or a resume everything that wasn't settled goes on in order.
func TestReceiverPanicsGoToTheParent(t *testing.T) {
	for name, c := range map[string]struct {
		part  string
		batch bool
		set   func(s *script)
	}{
		"settle": {part: "lane 0", set: func(s *script) {
			s.settle = func(rcv *scriptRcv, d *transport.Delivery, o transport.Outcome) {
				if rcv.n == 1 {
					panic("settle")
				}
				rcv.confirm(d, o)
			}
		}},
		"settle of a batch": {part: "lane 0", batch: true, set: func(s *script) {
			s.settle = func(rcv *scriptRcv, d *transport.Delivery, o transport.Outcome) {
				if rcv.n == 1 {
					panic("settle")
				}
				rcv.confirm(d, o)
			}
		}},
		"extend": {part: "pump", set: func(s *script) {
			s.traits.LeaseExpires = true
			s.limits.Lease = 10 * time.Second
			s.extend = func() { panic("extend") }
			s.settle = func(rcv *scriptRcv, d *transport.Delivery, o transport.Outcome) {
				if rcv.n > 1 {
					rcv.confirm(d, o)
				}
			}
		}},
	} {
		for how, decide := range map[string]func(actor.Supervisor, *actor.PID){
			"restart": func(s actor.Supervisor, c *actor.PID) { s.RestartChildren(c) },
			"resume":  func(s actor.Supervisor, c *actor.PID) { s.ResumeChildren(c) },
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r, s := newRig(t, nil), newScript()
					c.set(s)
					var steps trail
					var running atomic.Int32
					handle := func(ctx context.Context, d *transport.Delivery) error {
						running.Add(1)
						defer running.Add(-1)
						steps.add("%d: %s/%d", d.Epoch, d.ID, transport.Attempt(ctx))
						if d.Epoch == 1 && c.part == "pump" { // until its lease has to be extended
							<-ctx.Done()
							return ctx.Err()
						}
						return nil
					}
					o := actors.Options{}
					props := r.props(s, handle, o)
					if c.batch {
						o = actors.Options{Logger: quiet(), DeadLetter: r.dead.Publisher(), Batch: 1}
						var err error
						props, err = actors.BatchSubscription(s, transport.BatchHandlerFunc(func(ctx context.Context, ds []*transport.Delivery) error {
							return handle(ctx, ds[0])
						}), &o)
						if err != nil {
							t.Fatal(err)
						}
					}
					p := r.spawnUnder(props, func(sup actor.Supervisor, child *actor.PID, reason any) {
						if e, ok := reason.(*actors.CrashError); !ok || e.Part != c.part {
							t.Errorf("reason %.80v, want the *CrashError of the %s", reason, c.part)
						}
						if n := running.Load(); n != 0 {
							t.Errorf("%d handlers run when the parent is asked", n)
						}
						if rcv := s.rcvs[0]; !rcv.closed {
							t.Error("the parent is asked before the epoch has ended")
						}
						decide(sup, child)
					})
					synctest.Wait()
					first := s.last(t)
					first.deliverOn(func() *transport.Lease {
						if s.traits.LeaseExpires {
							return transport.NewLeaseUntil(time.Now().Add(10 * time.Second))
						}
						return first.lease
					}, "1:A")
					time.Sleep(20 * time.Second)
					if n := len(p.failures()); n != 1 {
						t.Fatalf("%d failures, want one", n)
					}
					s.last(t).deliver("1:A", "2:A")
					synctest.Wait()
					steps.want(t, "1: 1/1", "2: 1/1", "2: 2/1")
					if got := fmt.Sprint(first.outcomes(), s.last(t).outcomes()); got != "[] [1 accept 2 accept]" {
						t.Errorf("settled %s", got)
					}
					if n := r.dead.Depth(); n != 0 {
						t.Errorf("%d dead letters, want none", n)
					}
					r.drain(p.child)
					r.stop(p.pid)
				})
			})
		}
	}
}

// panicky is a source that panics when it is asked for its traits more often than
// it likes.
type panicky struct {
	*script
	likes int32
	asked atomic.Int32
}

func (p *panicky) Traits() transport.Traits {
	if p.asked.Add(1) > p.likes {
		panic("traits")
	}
	return p.script.Traits()
}

// A source that panics on Traits is refused before anything starts. It is asked
// once: what it does later can't break a subscription that restarts.
func TestTraitsPanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &panicky{script: newScript()}
		o := &actors.Options{Logger: quiet(), Policy: retryEvery(time.Second)}
		_, err := actors.Subscription(s, transport.HandlerFunc(nothing), o)
		wantOptionError(t, err, "source", "traits", "must not panic")
		_, err = actors.BatchSubscription(s, transport.BatchHandlerFunc(func(context.Context, []*transport.Delivery) error { return nil }), o)
		wantOptionError(t, err, "source", "traits", "must not panic")
		if s.opens != 0 {
			t.Error("the source was opened")
		}

		r := newRig(t, nil)
		s = &panicky{script: newScript(), likes: 1}
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
		}, actors.Options{}), func(sup actor.Supervisor, child *actor.PID, _ any) { sup.RestartChildren(child) })
		synctest.Wait()
		boom.Store(true)
		s.last(t).deliver("1:A")
		time.Sleep(time.Minute)
		s.last(t).deliver("1:A", "2:A")
		synctest.Wait()
		steps.want(t, "1", "2")
		if n := len(p.failures()); n != 1 {
			t.Errorf("%d failures, want one", n)
		}
		r.drain(p.child)
		r.stop(p.pid)
	})
}

// lines is a log that is kept.
type lines struct {
	trail
}

func (l *lines) Write(b []byte) (int, error) {
	l.add("%s", bytes.TrimSpace(b))
	return len(b), nil
}

// A queue of nothing but poison: the log says why nothing is dead-lettered yet,
// about which message, and why it was then.
func TestLogSaysWhyItWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		log := &lines{}
		pid := r.spawn(func(context.Context, *transport.Delivery) error { return errBoom },
			actors.Options{Name: "orders", OutageAfter: 10 * time.Minute, Logger: slog.New(slog.NewTextHandler(log, nil))})
		r.publish(1, "A")
		find := func(words ...string) int {
			n := 0
			for _, l := range log.all() {
				ok := true
				for _, w := range words {
					ok = ok && strings.Contains(l, w)
				}
				if ok {
					n++
				}
			}
			return n
		}
		time.Sleep(9 * time.Minute)
		if find("level=WARN", "waits for evidence", "looks like an outage", "boom", "orders", "id=1", "key=A") == 0 {
			t.Errorf("no line says why it waits: %.2000q", log.all())
		}
		if n := find("dead-lettered"); n > find("waits for evidence") {
			t.Errorf("%d lines speak of a dead letter", n)
		}
		time.Sleep(2 * time.Minute)
		if n := find("level=WARN", " event=dead-lettered", "attempts exhausted: boom", "id=1"); n != 1 {
			t.Errorf("%d lines say that it was dead-lettered, want one: %.2000q", n, log.all())
		}
		if n := len(log.all()); n > 11*6+20 {
			t.Errorf("%d lines in eleven minutes, want one in ten seconds and a few", n)
		}
		r.drain(pid)
		r.left(0)
	})
}
