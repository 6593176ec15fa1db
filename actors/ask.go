package actors

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/transport"
)

// AwaitStarted waits until the subscription has attached to its queue for the
// first time, has failed to, or ctx ends. It may be called from any goroutine,
// but not from an actor's Receive: it blocks.
func AwaitStarted(ctx context.Context, root *actor.RootContext, pid *actor.PID) error {
	return askDone(ctx, root, pid, &awaitStarted{}, false)
}

// Drain stops the subscription gracefully and waits until nothing of it is left:
// intake ends, running handlers finish, or are cancelled after StopTimeout, what
// is done is settled, the rest goes back. nil after a clean drain; an error that
// is ErrHandlerStuck names the handlers that ignore their cancelled context; an
// *EscalatedError or *CrashError says that it failed to its parent meanwhile,
// which may have restarted it.
// When ctx ends it returns, and the drain goes on. Any goroutine, but no actor's
// Receive: it blocks.
func Drain(ctx context.Context, root *actor.RootContext, pid *actor.PID) error {
	return askDone(ctx, root, pid, &DrainMessage{}, true)
}

// Ready says whether the subscription is attached and flowing; the error says
// why it isn't. Any goroutine, but no actor's Receive: it blocks.
func Ready(ctx context.Context, root *actor.RootContext, pid *actor.PID) error {
	st, err := StatsOf(ctx, root, pid)
	if err != nil {
		return err
	}
	return st.NotReady
}

// StatsOf asks for the subscription's stats. Any goroutine, but no actor's
// Receive: it blocks.
func StatsOf(ctx context.Context, root *actor.RootContext, pid *actor.PID) (*Stats, error) {
	reply, err := ask(ctx, root, pid, &GetStats{}, false)
	if err != nil {
		return nil, err
	}
	st, ok := reply.(*Stats)
	if !ok {
		return nil, fmt.Errorf("asked for stats, got %T: is the address a subscription's?", reply)
	}
	return st, nil
}

func askDone(ctx context.Context, root *actor.RootContext, pid *actor.PID, message any, untilGone bool) error {
	reply, err := ask(ctx, root, pid, message, untilGone)
	if err != nil {
		return err
	}
	done, ok := reply.(*Done)
	if !ok {
		return fmt.Errorf("asked %T, got %T: is the address a subscription's?", message, reply)
	}
	return done.Err
}

type gone struct{}

// ask sends message and waits for the answer and, with untilGone, for the end of
// the actor after it. An actor of its own asks, since a future can't be waited
// for together with a context, and misses an actor that stops meanwhile.
func ask(ctx context.Context, root *actor.RootContext, pid *actor.PID, message any, untilGone bool) (any, error) {
	if pid == nil {
		return nil, &transport.OptionError{Field: "pid", Value: "nil", Want: "must be a subscription's address"}
	}
	type answer struct {
		reply any
		err   error
	}
	answers := make(chan answer, 1)
	give := func(a answer) {
		select {
		case answers <- a:
		default:
		}
	}
	var reply any
	asker := root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		switch m := c.Message().(type) {
		case *actor.Started:
			c.Watch(pid)
			c.Request(pid, message)
		case *actor.Terminated:
			// A system message, which overtakes an answer that was sent before
			// the actor stopped: look again behind what is in the mailbox.
			c.Send(c.Self(), &gone{})
		case *gone:
			if reply == nil {
				give(answer{err: ErrNotRunning})
				return
			}
			give(answer{reply: reply})
		case *actor.DeadLetterResponse:
			give(answer{err: ErrNotRunning})
		case actor.SystemMessage, actor.AutoReceiveMessage:
		default:
			reply = m
			if done, ok := m.(*Done); !untilGone || (ok && done.failed) {
				give(answer{reply: reply})
			}
		}
	}))
	defer root.Stop(asker)
	select {
	case a := <-answers:
		return a.reply, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Run reads src with h until ctx ends, then drains, and returns nil after a clean
// drain. It brings its own actor system, for programs that have none. The
// handler's context isn't a child of ctx: what runs when ctx ends may finish,
// within StopTimeout.
//
// It returns early, with what it couldn't cure, when the queue can't be attached
// to at start, when the policy stops or escalates, and when a part of the
// subscription has crashed.
func Run(ctx context.Context, src transport.Source, h transport.Handler, o *Options) error {
	props, err := Subscription(src, h, o)
	if err != nil {
		return err
	}
	return RunProps(ctx, props)
}

// RunBatch is Run for a handler that works on several deliveries at once; see
// BatchSubscription.
func RunBatch(ctx context.Context, src transport.Source, h transport.BatchHandler, o *Options) error {
	props, err := BatchSubscription(src, h, o)
	if err != nil {
		return err
	}
	return RunProps(ctx, props)
}

// RunProps is Run for the props of a subscription, whichever function made them.
func RunProps(ctx context.Context, props *actor.Props) error {
	// What an operator should see goes to Options.Logger; protoactor's own log
	// repeats it. The throttle of its dead letters (a stop of a part that has just
	// ended is one) starts a goroutine that nothing but the interval ends, so the
	// interval is short, and Run sits it out: it leaves no goroutine, and a test in
	// virtual time, where time stands still once the test's function has returned,
	// doesn't find one.
	const throttle = time.Microsecond
	defer time.Sleep(2 * throttle)
	system := actor.NewActorSystemWithConfig(actor.Configure(
		actor.WithDeadLetterThrottleInterval(throttle),
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) })))
	defer system.Shutdown()
	top := &runTop{
		props: props, spawned: make(chan *actor.PID, 1), ended: make(chan struct{}),
		failure: make(chan error, 1), stopped: make(chan error, 1),
	}
	// Its event says how the subscription ended. To ask for that would be too
	// late when it ends at once.
	system.EventStream.Subscribe(func(m any) {
		if e, ok := m.(*Event); ok && e.Kind == EventStopped {
			select {
			case top.stopped <- e.Err:
			default:
			}
		}
	})
	parent := system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return top }))
	pid := <-top.spawned
	select {
	case <-ctx.Done():
		system.Root.Send(pid, &DrainMessage{})
		<-top.ended
	case <-top.ended:
	}
	_ = system.Root.StopFuture(parent).Wait() // its child is gone, so there is nothing that it could say
	select {
	case err := <-top.failure: // the typed reason says more than the stop that followed it
		return err
	default:
	}
	select {
	case err := <-top.stopped:
		return err
	default:
		return ErrNotRunning
	}
}

// runTop is the parent of Run's subscription: a failure is what Run returns.
type runTop struct {
	props   *actor.Props
	spawned chan *actor.PID
	ended   chan struct{} // closed when the subscription is gone
	failure chan error
	stopped chan error
}

// Receive implements actor.Actor.
func (r *runTop) Receive(ctx actor.Context) {
	switch ctx.Message().(type) {
	case *actor.Started:
		r.spawned <- ctx.Spawn(r.props)
	case *actor.Terminated: // a parent hears of its children's end
		close(r.ended)
	}
}

// HandleFailure implements actor.SupervisorStrategy.
func (r *runTop) HandleFailure(_ *actor.ActorSystem, sup actor.Supervisor, child *actor.PID, _ *actor.RestartStatistics, reason, _ any) {
	err, ok := reason.(error)
	if !ok {
		err = fmt.Errorf("the subscription failed: %v", reason)
	}
	select {
	case r.failure <- err:
	default:
	}
	sup.StopChildren(child)
}
