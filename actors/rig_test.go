package actors_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

var errBoom = errors.New("boom")

// bubble runs f in a bubble of virtual time. The bubble also is the check that
// nothing is left: it fails when a goroutine outlives f.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// events records what a system's event stream brought.
type events struct {
	mu  sync.Mutex
	all []actors.Event
}

func listen(sys *actor.ActorSystem) *events {
	e := &events{}
	sys.EventStream.Subscribe(func(m any) {
		if ev, ok := m.(*actors.Event); ok {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.all = append(e.all, *ev)
		}
	})
	return e
}

func (e *events) of(k actors.EventKind) []actors.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var es []actors.Event
	for _, ev := range e.all {
		if ev.Kind == k {
			es = append(es, ev)
		}
	}
	return es
}

// want fails the test unless there were exactly n events of kind k.
func (e *events) want(t *testing.T, n int, k actors.EventKind) {
	t.Helper()
	if got := e.of(k); len(got) != n {
		t.Errorf("%d %q events, want %d: %+v", len(got), k, n, got)
	}
}

// trail is a list of what happened, in order.
type trail struct {
	mu    sync.Mutex
	steps []string
	times []time.Time
}

func (r *trail) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps = append(r.steps, fmt.Sprintf(format, args...))
	r.times = append(r.times, time.Now())
}

func (r *trail) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.steps)
}

// when is when each step happened.
func (r *trail) when() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.times)
}

// at is when step happened first; the zero time when it hasn't.
func (r *trail) at(step string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.steps, step); i >= 0 {
		return r.times[i]
	}
	return time.Time{}
}

func (r *trail) count(step string) int {
	n := 0
	for _, s := range r.all() {
		if s == step {
			n++
		}
	}
	return n
}

// want fails the test unless exactly these steps happened.
func (r *trail) want(t *testing.T, steps ...string) {
	t.Helper()
	if got := r.all(); !slices.Equal(got, steps) {
		t.Errorf("steps are\n  %q, want\n  %q", got, steps)
	}
}

// spawnOn starts a subscription to src.
func (r *rig) spawnOn(src transport.Source, h transport.HandlerFunc, o actors.Options) *actor.PID {
	r.t.Helper()
	return r.sys.Root.Spawn(r.props(src, h, o))
}

func (r *rig) props(src transport.Source, h transport.HandlerFunc, o actors.Options) *actor.Props {
	r.t.Helper()
	if o.Logger == nil {
		o.Logger = quiet()
	}
	if o.DeadLetter == nil {
		o.DeadLetter = r.dead.Publisher()
	}
	props, err := actors.Subscription(src, h, &o)
	if err != nil {
		r.t.Fatal(err)
	}
	return props
}

// stop stops pid hard and waits for its end.
func (r *rig) stop(pid *actor.PID) {
	r.t.Helper()
	if err := r.sys.Root.StopFuture(pid).Wait(); err != nil {
		r.t.Errorf("stop: %v", err)
	}
}

func (r *rig) stats(pid *actor.PID) *actors.Stats {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	st, err := actors.StatsOf(ctx, r.sys.Root, pid)
	if err != nil {
		r.t.Fatalf("stats: %v", err)
	}
	return st
}

// parent is an actor that spawns one subscription and supervises it as decide
// says.
type parent struct {
	pid, child *actor.PID
	mu         sync.Mutex
	reasons    []any
}

// spawnUnder starts props under a parent of the test's.
func (r *rig) spawnUnder(props *actor.Props, decide func(sup actor.Supervisor, child *actor.PID, reason any)) *parent {
	r.t.Helper()
	p := &parent{}
	spawned := make(chan *actor.PID, 1)
	p.pid = r.sys.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		if _, ok := c.Message().(*actor.Started); ok {
			child := c.Spawn(props)
			select {
			case spawned <- child:
			default: // a restarted parent's
			}
		}
	}, actor.WithSupervisor(strategyFunc(func(sup actor.Supervisor, child *actor.PID, reason any) {
		p.mu.Lock()
		p.reasons = append(p.reasons, reason)
		p.mu.Unlock()
		decide(sup, child, reason)
	}))))
	p.child = <-spawned
	return p
}

// failures lists the reasons with which the child failed so far.
func (p *parent) failures() []any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.reasons)
}

type strategyFunc func(sup actor.Supervisor, child *actor.PID, reason any)

func (f strategyFunc) HandleFailure(_ *actor.ActorSystem, sup actor.Supervisor, child *actor.PID, _ *actor.RestartStatistics, reason, _ any) {
	f(sup, child, reason)
}

// retryEvery retries for ever at a fixed distance.
func retryEvery(d time.Duration) supervision.Policy {
	return supervision.Always(supervision.Retry(d))
}

type actorPID = actor.PID
