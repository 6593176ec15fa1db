package actors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// failures collects what attempts failed with, and retries them.
type failures struct {
	mu   sync.Mutex
	errs []error
}

func (f *failures) Decide(x supervision.Failure) supervision.Directive {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, x.Err)
	return supervision.Retry(time.Millisecond)
}

func (*failures) MayDeadLetter() bool { return false }

// spawnHandler starts a subscription with a handler that isn't a function.
func (r *rig) spawnHandler(h transport.Handler, o actors.Options) *actor.PID {
	return r.spawn(h.Handle, o)
}

// Many lanes ask one actor at the same time; what it responds settles.
func TestAskFromManyLanes(t *testing.T) {
	for _, d := range everyMode {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				sum, fails := 0, map[string]int{}
				done := make(chan struct{})
				target := r.sys.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
					w, ok := ctx.Message().(*actors.Work)
					if !ok {
						return
					}
					if w.Delivery.ID[len(w.Delivery.ID)-1] == '7' && fails[w.Delivery.ID] == 0 {
						fails[w.Delivery.ID]++
						ctx.Respond(errBoom)
						return
					}
					if sum++; sum == 100 {
						close(done)
					}
					ctx.Respond(actors.Accepted{})
				}))
				f := &failures{}
				pid := r.spawnHandler(actors.Ask(r.sys.Root, target, time.Second), actors.Options{Dispatch: d, Policy: f})
				r.publish(0, inTurn(100, 9)...)
				r.await(pid, done)
				r.drain(pid)
				r.left(0)
				if len(f.errs) != 10 || !errors.Is(f.errs[0], errBoom) {
					t.Errorf("%d attempts failed, %v, want 10 with boom", len(f.errs), f.errs)
				}
				_ = r.sys.Root.StopFuture(target).Wait()
			})
		})
	}
}

// What can go wrong with an actor that is asked, each told apart.
func TestAskFails(t *testing.T) {
	type asked struct {
		receive actor.ReceiveFunc
		stopped bool
		timeout time.Duration
		opts    actors.Options
		want    error
	}
	silent := func(actor.Context) {}
	for name, c := range map[string]asked{
		"no response":         {silent, false, time.Second, actors.Options{}, actors.ErrAskTimeout},
		"panics":              {func(ctx actor.Context) { panicAtWork(ctx) }, false, time.Second, actors.Options{}, actors.ErrAskTimeout},
		"stopped before":      {silent, true, time.Second, actors.Options{}, actors.ErrActorGone},
		"handler timeout":     {silent, false, 0, actors.Options{HandlerTimeout: time.Second}, transport.ErrHandlerTimeout},
		"handler's is sooner": {silent, false, time.Minute, actors.Options{HandlerTimeout: time.Second}, transport.ErrHandlerTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				target := r.sys.Root.Spawn(actor.PropsFromFunc(c.receive))
				if c.stopped {
					_ = r.sys.Root.StopFuture(target).Wait()
				}
				f := &failures{}
				c.opts.Policy = f
				pid := r.spawnHandler(actors.Ask(r.sys.Root, target, c.timeout), c.opts)
				r.publish(1, "A")
				for {
					time.Sleep(time.Second)
					f.mu.Lock()
					n := len(f.errs)
					f.mu.Unlock()
					if n > 0 {
						break
					}
				}
				r.stop(pid)
				if !errors.Is(f.errs[0], c.want) {
					t.Errorf("the attempt failed with %v, want %v", f.errs[0], c.want)
				}
				if !c.stopped {
					_ = r.sys.Root.StopFuture(target).Wait()
				}
			})
		})
	}
}

func panicAtWork(ctx actor.Context) {
	if _, ok := ctx.Message().(*actors.Work); ok {
		panic("at work")
	}
}

// A response to attempt 1 that comes when attempt 2 waits isn't taken for it.
func TestAskLateResponse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		done := make(chan struct{})
		var first *actor.PID
		var attempts []int
		target := r.sys.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
			w, ok := ctx.Message().(*actors.Work)
			if !ok {
				return
			}
			attempts = append(attempts, w.Attempt)
			switch w.Attempt {
			case 1:
				first = ctx.Sender()
			case 2:
				ctx.Send(first, actors.Accepted{}) // late
			case 3:
				close(done)
				ctx.Respond(actors.Accepted{})
			}
		}))
		f := &failures{}
		pid := r.spawnHandler(actors.Ask(r.sys.Root, target, time.Second), actors.Options{Policy: f})
		r.publish(1, "A")
		r.await(pid, done)
		r.drain(pid)
		r.left(0)
		if fmt.Sprint(attempts) != "[1 2 3]" || len(f.errs) != 2 {
			t.Errorf("attempts %v, failures %v, want three and two timeouts", attempts, f.errs)
		}
		_ = r.sys.Root.StopFuture(target).Wait()
	})
}

// The actor's advice reaches the policy, and a stop ends the wait.
func TestAskAdviceAndStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		asked := make(chan struct{}, 1)
		ended := make(chan error, 1)
		target := r.sys.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
			w, ok := ctx.Message().(*actors.Work)
			switch {
			case !ok:
			case w.Delivery.ID == "1":
				ctx.Respond(supervision.With(errBoom, supervision.DeadLetter("refused", "by the actor")))
			default:
				context.AfterFunc(w.Context, func() { ended <- context.Cause(w.Context) })
				asked <- struct{}{} // and no response
			}
		}))
		pid := r.spawnHandler(actors.Ask(r.sys.Root, target, 0), actors.Options{})
		r.publish(1, "A", "B")
		<-asked
		r.stop(pid)
		if ms := r.dead.Messages(); len(ms) != 1 || ms[0].Headers[transport.HeaderReason] != "refused" {
			t.Errorf("dead letters %v, want the one that the actor refused", ms)
		}
		r.left(1)
		if err := <-ended; !errors.Is(err, transport.ErrStopping) {
			t.Errorf("the actor's context ended with %v, want ErrStopping", err)
		}
		_ = r.sys.Root.StopFuture(target).Wait()
	})
}

// Nothing that protoactor may log prints a payload.
func TestWorkDoesntPrintItsPayload(t *testing.T) {
	t.Parallel()
	w := &actors.Work{Delivery: &transport.Delivery{Message: transport.Message{ID: "7", Body: []byte("secret")}}, Attempt: 2}
	if s := w.LogValue().String(); strings.Contains(s, "secret") || !strings.Contains(s, "7") {
		t.Errorf("it prints %q", s)
	}
}

// Ask panics at once when it has nobody to ask.
func TestAskNobody(t *testing.T) {
	t.Parallel()
	sys := system()
	for field, f := range map[string]func(){
		"root": func() { actors.Ask(nil, actor.NewPID("nohost", "x"), 0) },
		"pid":  func() { actors.Ask(sys.Root, nil, 0) },
	} {
		func() {
			defer func() {
				e, _ := recover().(*transport.OptionError)
				wantOptionError(t, e, field, "nil", "must be")
			}()
			f()
		}()
	}
}
