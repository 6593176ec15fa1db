package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/transport"
)

// Subscription gives the props of a subscription actor that reads src and runs h.
// They are a template: they may be spawned many times, and each spawn is a
// subscription of its own. Options are checked here, so that bad ones don't
// surface as a crash of an actor.
//
// The actor understands Pause, Resume, GetStats, Unpark and DrainMessage. Stop
// and Poison stop it hard: running handlers are cancelled and waited for at most
// 5 s. What can't be cured inside fails to its parent, after it was made safe,
// with a *StartError, *EscalatedError or *CrashError; when the parent resumes it,
// it starts afresh, as if restarted.
func Subscription(src transport.Source, h transport.Handler, o *Options) (*actor.Props, error) {
	if isNil(h) {
		return nil, &transport.OptionError{Field: "handler", Value: "nil", Want: "must be a transport.Handler, such as a transport.HandlerFunc"}
	}
	opts, err := o.withoutBatch(src)
	if err != nil {
		return nil, err
	}
	wrapped, err := wrap(h, opts.Middleware)
	if err != nil {
		return nil, err
	}
	return opts.props(src, made{handler: func(Lane, *asked) transport.Handler { return wrapped }}), nil
}

// props makes the template.
func (o Options) props(src transport.Source, m made) *actor.Props {
	return actor.PropsFromProducer(func() actor.Actor { return &subscription{opts: o, src: src, made: m} })
}

// isNil says whether v is nothing, or a function type's nil: that would panic on
// each delivery, and so move the whole queue to the dead letters.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Func && r.IsNil()
}

// wrap calls the middleware, which is the user's code: a panic in it, or a nil
// handler from it, is an error.
func wrap(h transport.Handler, ms []transport.Middleware) (wrapped transport.Handler, err error) {
	bad := func(value any, want string) error {
		return &transport.OptionError{Field: "Options.Middleware", Value: value, Want: want}
	}
	defer func() {
		if v := recover(); v != nil {
			err = bad(v, "must not panic when it wraps the handler")
		}
	}()
	if wrapped = transport.Chain(h, ms...); isNil(wrapped) {
		err = bad("nil", "must give a handler")
	}
	return wrapped, err
}

// subscription is the public actor: it spawns the pump and the router, answers
// its users, and brings everything to rest before it stops or fails. Its fields
// belong to its own goroutine.
type subscription struct {
	opts Options
	src  transport.Source
	made made

	t     *tree
	lives int // trees begun, for fresh names

	state   State
	paused  bool
	lastErr error // why it isn't attached

	waiting  []*actor.PID // want to know of the first attachment
	draining []*actor.PID // want to know of the end
	asking   []*actor.PID // want stats, which the router still owes
	stopErr  error        // why the policy stopped it
	ending   *ending
	timer    *time.Timer
	failure  any  // what to fail to the parent with once all is safe
	broken   bool // a child is suspended: its part of the end won't come
}

// ending is how far a stop has come.
type ending struct {
	intake, quiet, cancelled, waited, closing, closed bool
	err                                               error
}

// Messages to the subscription.
type (
	awaitStarted struct{}
	// ready is answered with *Done.
	ready      struct{}
	drainLimit struct{ t *tree }
	graceOver  struct{ t *tree }
	// rebegin waits in the mailbox while the subscription fails: whoever resumes
	// it makes it handle this. A restarted incarnation ignores it.
	rebegin     struct{ s *subscription }
	childFailed struct{ reason any }
	// statsFor asks the router for stats on a user's behalf.
	statsFor struct {
		to       *actor.PID
		state    State
		notReady error
	}
	// statsOf is the router's answer.
	statsOf struct {
		to    *actor.PID
		stats *Stats
	}
)

// Receive implements actor.Actor.
func (s *subscription) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actor.Started:
		s.begin(ctx)
	case *rebegin:
		if m.s == s {
			s.begin(ctx)
		}
	case *Pause:
		s.pause(ctx, true)
	case *Resume:
		s.pause(ctx, false)
	case *GetStats:
		s.asking = append(s.asking, ctx.Sender())
		ctx.Send(s.t.router, &statsFor{to: ctx.Sender(), state: s.state, notReady: s.notReady()})
	case *statsOf:
		s.tellStats(ctx, m)
	case *Unpark:
		ctx.Forward(s.t.router)
	case *DrainMessage:
		s.drain(ctx)
	case *awaitStarted:
		s.awaitStarted(ctx)
	case *ready:
		ctx.Respond(&Done{Err: s.notReady()})
	case *actor.Stopping:
		s.hardStop(ctx)
	case *actor.Stopped:
		if s.t != nil {
			s.t.pool.close()
		}
	case *actor.Restarting:
		s.hardStop(ctx)
		if s.t != nil {
			s.t.pool.close()
		}
	default:
		s.progress(ctx)
	}
}

// progress handles what the tree reports.
func (s *subscription) progress(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *attached:
		s.lastErr = nil
		if s.state == StateStarting || s.state == StateDetached {
			s.state = StateFlowing
			if s.paused {
				s.state = StatePaused
			}
		}
		s.t.event(Event{Kind: EventAttached, Lane: -1, Epoch: m.epoch})
		s.tellStarted(ctx, nil)
	case *detached:
		s.lastErr = m.err
		if s.lastErr == nil {
			s.lastErr = errors.New("the receiver was closed to give everything back in order")
		}
		if s.state == StateFlowing || s.state == StatePaused {
			s.state = StateDetached
		}
		s.t.event(Event{Kind: EventDetached, Lane: -1, Err: m.err, Wait: m.wait})
	case *openFailed:
		s.lastErr = m.err
		if m.fatal && s.state == StateStarting {
			err := &StartError{Name: s.opts.Name, Err: m.err}
			s.t.event(Event{Kind: EventAttachFailed, Lane: -1, Err: err})
			s.tellStarted(ctx, err)
			s.fail(ctx, err)
			return
		}
		s.t.event(Event{Kind: EventAttachFailed, Lane: -1, Err: m.err, Wait: m.wait})
	case *policyStop:
		s.stopErr = fmt.Errorf("the policy stopped subscription %q: %w", s.opts.Name, m.err)
		s.drain(ctx)
	case *policyEscalate:
		s.fail(ctx, m.err)
	case *childFailed:
		s.broken = true
		s.fail(ctx, m.reason)
	case *intakeEnded:
		if s.ending != nil {
			s.ending.intake = true
			s.advance(ctx)
		}
	case *routerDrained:
		if s.ending != nil {
			s.ending.quiet = true
			s.advance(ctx)
		}
	case *pumpClosed:
		if s.ending != nil {
			s.ending.closed, s.ending.err = true, m.err
			s.advance(ctx)
		}
	case *drainLimit:
		if m.t == s.t {
			s.cancelRunning(ctx)
		}
	case *graceOver:
		if m.t == s.t && s.ending != nil && !s.ending.quiet {
			s.ending.quiet, s.ending.waited = true, true
			s.advance(ctx)
		}
	}
}

// begin builds a tree.
func (s *subscription) begin(ctx actor.Context) {
	if s.t != nil {
		s.t.pool.close()
	}
	s.lives++
	t := &tree{
		opts: s.opts, src: s.src, made: s.made, system: ctx.ActorSystem(),
		log: slog.New(safeLog{s.opts.Logger.Handler()}), pool: newGoroutines(), subscription: ctx.Self(), wake: make(chan struct{}, 1), base: time.Now(),
	}
	t.loop = newPumpLoop(t)
	s.t, s.state, s.ending, s.failure, s.broken, s.lastErr = t, StateStarting, nil, nil, false, nil
	spawn := func(part string, a func() actor.Actor) *actor.PID {
		pid, err := ctx.SpawnNamed(actor.PropsFromProducer(a, actor.WithDispatcher(t.pool), actor.WithMailbox(newMailbox)), fmt.Sprintf("%s-%d", part, s.lives))
		if err != nil {
			panic(fmt.Errorf("%s can't be spawned: %w", part, err))
		}
		return pid
	}
	// Nobody looks at these addresses before startPump arrives.
	t.router = spawn("router", func() actor.Actor { return newRouter(t) })
	t.pump = spawn("pump", func() actor.Actor { return &pump{t: t} })
	if s.paused {
		s.applyPause(ctx)
	}
	ctx.Send(t.pump, &startPump{})
}

func (s *subscription) pause(ctx actor.Context, on bool) {
	changed := s.paused != on
	s.paused = on
	if s.ending == nil && s.t != nil {
		s.applyPause(ctx)
		switch {
		case on && s.state == StateFlowing:
			s.state = StatePaused
		case !on && s.state == StatePaused:
			s.state = StateFlowing
		}
		if changed {
			kind := EventResumed
			if on {
				kind = EventPaused
			}
			s.t.event(Event{Kind: kind, Lane: -1})
		}
	}
	if ctx.Sender() != nil {
		ctx.Respond(&Done{})
	}
}

func (s *subscription) applyPause(ctx actor.Context) {
	if s.paused {
		ctx.Send(s.t.router, &pauseRouter{})
	} else {
		ctx.Send(s.t.router, &resumeRouter{})
	}
	ctx.Send(s.t.pump, &holdIntake{on: s.paused})
}

func (s *subscription) awaitStarted(ctx actor.Context) {
	if s.state != StateStarting {
		ctx.Respond(&Done{})
		return
	}
	s.waiting = append(s.waiting, ctx.Sender())
}

func (s *subscription) tellStarted(ctx actor.Context, err error) {
	for _, w := range s.waiting {
		ctx.Send(w, &Done{Err: err})
	}
	s.waiting = nil
}

func (s *subscription) tellStats(ctx actor.Context, m *statsOf) {
	if i := slices.IndexFunc(s.asking, m.to.Equal); i >= 0 {
		s.asking = slices.Delete(s.asking, i, i+1)
		ctx.Send(m.to, m.stats)
	}
}

// tellEnd answers everybody who waits for something. A router that stops drops
// what waits in its mailbox, requests for stats too.
func (s *subscription) tellEnd(ctx actor.Context, done *Done) {
	for _, w := range s.asking {
		ctx.Send(w, &Stats{Name: s.opts.Name, State: s.state, NotReady: s.notReady(), Depth: -1})
	}
	started := done.Err
	if started == nil {
		started = ErrNotRunning
	}
	s.tellStarted(ctx, started)
	for _, w := range s.draining {
		ctx.Send(w, done)
	}
	s.asking, s.draining = nil, nil
}

// notReady says why the subscription isn't ready.
func (s *subscription) notReady() error {
	switch s.state {
	case StateFlowing:
		return nil
	case StateStarting, StateDetached:
		if s.lastErr != nil {
			return fmt.Errorf("subscription %q is %s: %w", s.opts.Name, s.state, s.lastErr)
		}
	}
	return fmt.Errorf("subscription %q is %s", s.opts.Name, s.state)
}

// drain begins the graceful end. Each one who asks is answered at its end.
func (s *subscription) drain(ctx actor.Context) {
	if from := ctx.Sender(); from != nil {
		if _, asked := ctx.Message().(*DrainMessage); asked {
			s.draining = append(s.draining, from)
		}
	}
	if s.ending != nil {
		return
	}
	s.t.event(Event{Kind: EventDraining, Lane: -1})
	s.endTree(ctx, s.opts.StopTimeout)
}

// fail brings everything to rest and then fails to the parent.
func (s *subscription) fail(ctx actor.Context, reason any) {
	if s.failure == nil {
		s.failure = reason
	}
	if s.ending == nil {
		s.endTree(ctx, 0)
		return
	}
	s.cancelRunning(ctx)
	s.advance(ctx)
}

// endTree ends the intake and lets what runs finish within limit, or cancels it
// at once when limit is 0.
func (s *subscription) endTree(ctx actor.Context, limit time.Duration) {
	s.state = StateDraining
	s.ending = &ending{}
	t := s.t
	ctx.Send(t.pump, &endIntake{})
	ctx.Send(t.router, &drainRouter{})
	if limit == 0 {
		s.cancelRunning(ctx)
	} else {
		s.after(limit, &drainLimit{t: t})
	}
	s.advance(ctx)
}

// cancelRunning ends the contexts of what still runs, and gives it a moment.
func (s *subscription) cancelRunning(ctx actor.Context) {
	if s.ending == nil || s.ending.cancelled {
		return
	}
	s.ending.cancelled = true
	s.t.runners.cancelAll(transport.ErrStopping)
	ctx.Send(s.t.router, &cancelRunning{cause: transport.ErrStopping})
	s.after(s.grace(), &graceOver{t: s.t})
}

func (s *subscription) grace() time.Duration { return min(s.opts.StuckAfter, stopGrace) }

func (s *subscription) after(d time.Duration, message any) {
	if s.timer != nil {
		s.timer.Stop()
	}
	t := s.t
	s.timer = time.AfterFunc(d, func() { t.send(t.subscription, message) })
}

// advance takes the next step of the end that nothing stands in the way of.
func (s *subscription) advance(ctx actor.Context) {
	e := s.ending
	if s.broken && !e.closing {
		// The part that failed can't report: what runs is waited for here.
		s.t.runners.cancelAll(transport.ErrStopping)
		s.t.runners.quit(s.grace())
		e.quiet, e.intake = true, true
	}
	if e.quiet && e.intake && !e.closing {
		e.closing = true
		s.t.loop.order(func(o *orders) { o.closing = true })
		if s.broken {
			// A loop that crashed has told of its end before anybody knew of
			// the crash. The wait is bounded by the receiver's Close.
			<-s.t.loop.closed
			e.closed = true
		}
	}
	if e.closed {
		s.ended(ctx)
	}
}

// ended: the receiver is closed, nothing can start.
func (s *subscription) ended(ctx actor.Context) {
	if s.state == StateStopped {
		return
	}
	s.state = StateStopped
	if s.timer != nil {
		s.timer.Stop()
	}
	err := errors.Join(s.stopErr, s.ending.err)
	wait := s.grace()
	if s.ending.waited {
		wait = 0
	}
	if left := s.t.runners.quit(wait); len(left) > 0 {
		err = errors.Join(&StuckError{Deliveries: left}, err)
	}
	if s.failure != nil {
		s.failToParent(ctx)
		return
	}
	s.t.event(Event{Kind: EventStopped, Lane: -1, Err: err})
	s.tellEnd(ctx, &Done{Err: err})
	ctx.Stop(ctx.Self())
}

// failToParent fails with the reason. Everything is at rest. Protoactor tells a
// resumed actor nothing, so a message waits in the mailbox that begins anew.
func (s *subscription) failToParent(ctx actor.Context) {
	reason := s.failure
	for _, child := range []*actor.PID{s.t.pump, s.t.router} {
		ctx.Stop(child)
	}
	err, ok := reason.(error)
	if !ok {
		err = fmt.Errorf("%v", reason)
	}
	s.t.event(Event{Kind: EventStopped, Lane: -1, Err: err})
	s.tellEnd(ctx, &Done{Err: err, failed: true})
	ctx.Send(ctx.Self(), &rebegin{s: s})
	panic(reason)
}

// hardStop brings everything to rest, before protoactor stops the children. It
// blocks this actor for as long as cancelled handlers and the receiver's close
// are waited for.
func (s *subscription) hardStop(ctx actor.Context) {
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.t == nil || s.state == StateStopped {
		return
	}
	t := s.t
	s.state = StateStopped
	t.send(t.router, &drainRouter{})
	t.send(t.router, &cancelRunning{cause: transport.ErrStopping})
	t.runners.cancelAll(transport.ErrStopping)
	left := t.runners.quit(s.grace())
	t.loop.order(func(o *orders) { o.closing = true })
	<-t.loop.closed // bounded by the receiver's Close
	var err error
	if len(left) > 0 {
		err = errors.Join(&StuckError{Deliveries: left}, err)
	}
	t.event(Event{Kind: EventStopped, Lane: -1, Err: err})
	s.tellEnd(ctx, &Done{Err: err})
}

// HandleFailure implements actor.SupervisorStrategy for the pump and the router:
// everything is made safe, and then the subscription fails to its parent.
func (s *subscription) HandleFailure(_ *actor.ActorSystem, _ actor.Supervisor, child *actor.PID, _ *actor.RestartStatistics, reason, _ any) {
	if s.t == nil || (!child.Equal(s.t.pump) && !child.Equal(s.t.router)) {
		return // of a tree that is gone
	}
	crash, ok := reason.(*CrashError)
	if !ok {
		part := "router"
		if child.Equal(s.t.pump) {
			part = "pump"
		}
		crash = &CrashError{Name: s.opts.Name, Part: part, Reason: reason}
	}
	s.t.send(s.t.subscription, &childFailed{reason: crash})
}
