package actors

import (
	"context"
	"fmt"
	"sync"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/transport"
)

// LaneActor is PerLane with an actor of the user's own, spawned from p, in place of
// each handler: it is sent a *Work for each delivery, one at a time, and what it
// responds settles, as with Ask.
//
//   - It is a child of its lane, or under PerKey of the subscription's router; what
//     has no key goes to the lane's own actor there.
//   - Its panic is seen at once and fails the attempt that it works on, which goes
//     to the policy like a handler's panic; the next attempt meets a fresh actor. A
//     panic without a delivery in its hands restarts it.
//   - When it stops itself the next delivery meets a fresh one.
//   - An actor that doesn't respond is waited for until the attempt's context ends:
//     set Options.HandlerTimeout. One that blocks in Receive holds up the stop of
//     the subscription.
//
// PerLane costs less, an actor a few microseconds a delivery; take it unless the
// state has to be an actor.
func LaneActor(src transport.Source, p *actor.Props, o *Options) (*actor.Props, error) {
	if p == nil {
		return nil, &transport.OptionError{Field: "props", Value: "nil", Want: "must be the props of the actor that each lane asks"}
	}
	opts, err := o.withoutBatch(src)
	if err != nil {
		return nil, err
	}
	return opts.props(src, made{stateful: true, child: p, handler: func(l Lane, a *asked) transport.Handler {
		return opts.wrapMade(a, l)
	}}), nil
}

// asked is the actor that a lane or a key asks.
type asked struct {
	system *actor.ActorSystem

	mu      sync.Mutex
	pid     *actor.PID
	working *work // nil while it has nothing to do
}

// work is what an asked actor has in its hands.
type work struct {
	crashed chan struct{} // closed when the actor panics
	reason  any           // with what
}

func newAsked(system *actor.ActorSystem, pid *actor.PID) *asked {
	return &asked{system: system, pid: pid}
}

// Handle implements transport.Handler. The actor's panic goes on here.
func (a *asked) Handle(ctx context.Context, d *transport.Delivery) error {
	w := &work{crashed: make(chan struct{})}
	a.mu.Lock()
	pid := a.pid
	a.working = w
	a.mu.Unlock()
	err := askActor(ctx, a.system, pid, d, w.crashed)
	a.mu.Lock()
	a.working = nil // from here on its supervisor restarts it
	a.mu.Unlock()
	select {
	case <-w.crashed: // also when ctx ended at the same time: it is suspended now
		panic(w.reason)
	default:
		return err
	}
}

// crash tells whoever waits for an answer that the actor has panicked, and says
// whether anybody does.
func (a *asked) crash(reason any) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.working
	if w == nil {
		return false
	}
	select {
	case <-w.crashed: // it is known
	default:
		w.reason = reason
		close(w.crashed)
	}
	return true
}

// replace puts another actor in the place of one that has stopped itself.
func (a *asked) replace(pid *actor.PID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pid = pid
}

// spawnAsked gives a lane its actor, if it is to have one.
func (l *lane) spawnAsked(ctx actor.Context) {
	if l.t.child != nil {
		l.asked = newAsked(l.t.system, l.spawnChild(ctx))
	}
}

func (l *lane) spawnChild(ctx actor.Context) *actor.PID {
	l.children++
	pid, err := ctx.SpawnNamed(l.t.child, fmt.Sprintf("actor-%d-%d", l.feed.gen.Load(), l.children))
	if err != nil {
		panic(fmt.Errorf("the actor of lane %d can't be spawned: %w", l.index, err))
	}
	return pid
}

// HandleFailure implements actor.SupervisorStrategy for the lane's actor. With a
// delivery in its hands the lane fails with it, and restarts; without one it alone
// is restarted.
func (l *lane) HandleFailure(_ *actor.ActorSystem, sup actor.Supervisor, child *actor.PID, _ *actor.RestartStatistics, reason, _ any) {
	if l.asked == nil || !l.asked.pid.Equal(child) {
		sup.StopChildren(child)
		return
	}
	if !l.asked.crash(reason) {
		sup.RestartChildren(child)
	}
}
