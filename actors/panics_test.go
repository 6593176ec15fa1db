package actors_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/codec"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

type panickyCodec struct{}

func (panickyCodec) Decode(*transport.Message, any) error  { panic("decode") }
func (panickyCodec) Encode(any) (transport.Message, error) { panic("encode") }

// panickyPublisher panics once, and then passes on.
type panickyPublisher struct {
	transport.Publisher
	calm atomic.Bool
}

func (p *panickyPublisher) Publish(ctx context.Context, ms ...transport.Message) error {
	if !p.calm.Swap(true) {
		panic("publish")
	}
	return p.Publisher.Publish(ctx, ms...)
}

// A panic in any of the user's callbacks loses nothing: every message is handled
// or dead-lettered, in order, and the subscription goes on.
func TestPanicInEveryCallback(t *testing.T) {
	const n = 50
	type setup struct {
		o    actors.Options
		h    func(r *rig, next transport.Handler) transport.Handler
		on   func(r *rig)
		dead int // how many are dead-lettered
	}
	wrap := func(r *rig, h transport.Handler) transport.Handler { return h }
	for name, s := range map[string]setup{
		"codec": {dead: n, h: func(*rig, transport.Handler) transport.Handler {
			return transport.Typed(panickyCodec{}, func(context.Context, string, *transport.Delivery) error { return nil })
		}},
		"typed handler": {h: func(_ *rig, next transport.Handler) transport.Handler {
			return transport.Typed(codec.Raw, func(ctx context.Context, _ []byte, d *transport.Delivery) error {
				if transport.Attempt(ctx) == 1 && d.ID == "7" {
					panic("handler")
				}
				return next.Handle(ctx, d)
			})
		}},
		"key function": {dead: 1, o: actors.Options{Key: func(m *transport.Message) string {
			if m.ID == "7" {
				panic("key")
			}
			return m.Key
		}}},
		"policy": {h: failsOnce, o: actors.Options{Policy: supervision.PolicyFunc(func(supervision.Failure) supervision.Directive { panic("policy") })}},
		"policy orders nothing": {h: failsOnce, o: actors.Options{Policy: supervision.PolicyFunc(func(supervision.Failure) supervision.Directive {
			return supervision.Directive{}
		})}},
		"middleware": {o: actors.Options{Middleware: []transport.Middleware{func(next transport.Handler) transport.Handler {
			return transport.HandlerFunc(func(ctx context.Context, d *transport.Delivery) error {
				if transport.Attempt(ctx) == 1 {
					panic("middleware")
				}
				return next.Handle(ctx, d)
			})
		}}}},
		"observer": {h: failsOnce, o: actors.Options{Observer: actors.ObserverFunc(func(actors.Observation) { panic("observer") })}},
		"event subscriber": {h: failsOnce, on: func(r *rig) {
			r.sys.EventStream.Subscribe(func(m any) {
				if _, ours := m.(*actors.Event); ours {
					panic("subscriber")
				}
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				j := newJournal(n - s.dead)
				if s.dead == n {
					close(j.done)
				}
				var h transport.Handler = transport.HandlerFunc(func(_ context.Context, d *transport.Delivery) error {
					j.begin(d)
					j.end(d, true)
					return nil
				})
				if s.h == nil {
					s.h = wrap
				}
				if s.on != nil {
					s.on(r)
				}
				o := s.o
				o.Dispatch, o.OutageAfter = actors.ByKey(4), -1
				if o.Policy == nil {
					o.Policy = fast()
				}
				pid := r.spawn(s.h(r, h).Handle, o)
				r.publish(0, manyKeys(n, 5)...)
				r.await(pid, j.done)
				for r.dead.Depth() < s.dead {
					time.Sleep(time.Second) // virtual
				}
				r.drain(pid)
				j.check(t)
				r.left(0)
				if dead := r.dead.Depth(); dead != s.dead {
					t.Errorf("%d dead letters, want %d", dead, s.dead)
				}
			})
		})
	}
}

// failsOnce makes every seventh message fail at its first attempt.
func failsOnce(_ *rig, next transport.Handler) transport.Handler {
	return transport.HandlerFunc(func(ctx context.Context, d *transport.Delivery) error {
		if transport.Attempt(ctx) == 1 && len(d.ID)+int(d.ID[len(d.ID)-1]-'0') == 7 {
			return errBoom
		}
		return next.Handle(ctx, d)
	})
}

// A dead-letter publisher that panics is one that failed: the copy is tried
// again, and the message isn't accepted before it is confirmed.
func TestDeadLetterPublisherPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		evs := listen(r.sys)
		p := &panickyPublisher{Publisher: r.dead.Publisher()}
		pid := r.spawn(func(context.Context, *transport.Delivery) error {
			return supervision.With(errBoom, supervision.DeadLetter("declined", ""))
		}, actors.Options{DeadLetter: p})
		r.publish(0, "A")
		time.Sleep(time.Minute)
		evs.want(t, 1, actors.EventDeadLetterFailed)
		evs.want(t, 1, actors.EventDeadLettered)
		if ms := r.dead.Messages(); len(ms) != 1 || ms[0].Headers[transport.HeaderReason] != "declined" {
			t.Errorf("dead letters %v, want one", ms)
		}
		r.drain(pid)
		r.left(0)
	})
}

// The parent's own strategy panics: the parent fails, but the subscription was
// made safe before it was asked, so nothing is in flight and nothing is lost.
func TestParentStrategyPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		p := r.spawnUnder(r.props(r.queue.Source(), func(context.Context, *transport.Delivery) error { return errBoom },
			actors.Options{Policy: supervision.Always(supervision.Escalate())}),
			func(actor.Supervisor, *actor.PID, any) { panic(fmt.Errorf("strategy")) })
		r.publish(0, "A", "A")
		time.Sleep(time.Minute)
		r.left(2)
		if n := len(p.failures()); n == 0 {
			t.Error("the parent wasn't asked")
		}
		r.sys.Root.Stop(p.pid) // the guardian may have stopped it before
		time.Sleep(time.Minute)
		r.left(2)
	})
}
