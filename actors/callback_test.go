package actors_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// panickyLog is a log handler that panics on whatever keylanes tells it.
type panickyLog struct{ slog.Handler }

func (panickyLog) Enabled(context.Context, slog.Level) bool  { return true }
func (panickyLog) Handle(context.Context, slog.Record) error { panic("log") }

// A log handler of the user's runs on every goroutine that there is, the router's
// and the pump's too. When it panics the flow goes on.
func TestLoggerPanics(t *testing.T) {
	for name, o := range map[string]actors.Options{
		"events":   {Policy: fast()},
		"observer": {Policy: fast(), Observer: actors.ObserverFunc(func(actors.Observation) { panic("observer") })},
		"policy":   {Policy: supervision.PolicyFunc(func(supervision.Failure) supervision.Directive { panic("policy") })},
		"nothing":  {Policy: supervision.PolicyFunc(func(supervision.Failure) supervision.Directive { return supervision.Directive{} })},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const n = 50
				r := newRig(t, nil)
				j := newJournal(n)
				o.Dispatch, o.Logger = actors.ByKey(4), slog.New(panickyLog{})
				pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
					j.begin(d)
					ok := transport.Attempt(ctx) > 1 || d.ID[len(d.ID)-1] != '7'
					defer j.end(d, ok)
					if !ok {
						panic("handler")
					}
					return nil
				}, o)
				r.publish(0, manyKeys(n, 5)...)
				r.await(pid, j.done)
				synctest.Wait() // else the last accept may still be on its way
				r.queue.CutLinks()
				time.Sleep(time.Minute)
				r.drain(pid)
				j.check(t)
				r.left(0)
			})
		})
	}
}

// badAdvisor is a policy that panics when it is asked whether it may dead-letter.
type badAdvisor struct{ supervision.Policy }

func (badAdvisor) MayDeadLetter() bool { panic("advisor") }

// What may be asked of the user's code before the start is asked safely.
func TestPolicyPanicsBeforeTheStart(t *testing.T) {
	t.Parallel()
	s := newScript()
	_, err := actors.Subscription(s, transport.HandlerFunc(nothing), &actors.Options{Policy: badAdvisor{fast()}})
	wantOptionError(t, err, "Options.Policy", "advisor", "must not panic")
	if s.opens != 0 {
		t.Error("the source was opened")
	}
}
