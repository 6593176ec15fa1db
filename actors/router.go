package actors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// router is the actor that decides who runs what: it turns messages into the
// planner's events and the planner's effects into messages. It is the supervisor
// of its lanes. All its fields belong to its own goroutine.
type router struct {
	t       *tree
	ctx     actor.Context
	planner *plan.Planner
	lanes   []laneRef

	timer   *time.Timer // sends tick; nil before the first
	timerAt int64       // what it is set to; 0 when it isn't

	failing  failing // what the planner is asking the policy about
	draining bool
	stopping bool // the lanes are stopping: nothing may be started any more

	succeeded, failedN, deadLettered, abandoned, laneRestarts uint64
	copyCtx                                                   context.Context
	stopCopies                                                context.CancelFunc
	tries                                                     map[*plan.Item]int // failed copies
	confirmed                                                 *plan.Item         // whose copy is being reported

	keyLanes keyLanes

	creditAt     int64 // when a part of a step is granted; 0 when not
	blockedSince int64
	blocked      bool
	blockedKey   string
	evidenceAt   int64 // before then nobody is told again that evidence is missing
}

// laneRef is what the router knows of a lane.
type laneRef struct {
	pid  *actor.PID
	feed *feed
	n    int // actors so far, for fresh names
}

// failing is the failure that is being decided.
type failing struct {
	err   error
	kind  supervision.Kind
	took  time.Duration
	elems []element // of a batch
}

// Messages to the router.
type (
	tick struct{}
	// drainRouter: start nothing any more; answered with routerDrained when
	// nothing runs.
	drainRouter struct{}
	// cancelRunning ends every running handler's context, and every copy.
	cancelRunning struct{ cause error }
	pauseRouter   struct{}
	resumeRouter  struct{}
	copied        struct {
		item *plan.Item
		err  error
	}
	routerDrained struct{}
	// policyStop and policyEscalate tell the subscription what the policy wants.
	policyStop     struct{ err error }
	policyEscalate struct{ err *EscalatedError }
)

func newRouter(t *tree) *router {
	r := &router{
		t: t, tries: make(map[*plan.Item]int),
		lanes: make([]laneRef, t.opts.Dispatch.Lanes()),
		planner: plan.New(plan.Config{
			Mode: t.opts.Dispatch.mode, Lanes: t.opts.Dispatch.Lanes(), Traits: t.opts.traits,
			OutageAfter: t.opts.OutageAfter, NativeDeadLetter: t.opts.NativeDeadLetter,
			HasTarget: t.opts.DeadLetter != nil, ResetWait: t.opts.StopTimeout,
			Batch: t.opts.Batch, BatchWait: t.opts.BatchWait, Credit: t.opts.Credit,
		}),
	}
	r.copyCtx, r.stopCopies = context.WithCancel(context.Background())
	return r
}

// now is the planner's time: since the tree's base, never 0.
func (r *router) now() int64 { return int64(time.Since(r.t.base)) + 1 }

// Receive implements actor.Actor.
func (r *router) Receive(ctx actor.Context) {
	r.ctx = ctx
	if r.stopping {
		// Messages still come while the lanes stop. A lane's crash would order
		// its restart, and protoactor restarts an actor that has stopped.
		return
	}
	switch m := ctx.Message().(type) {
	case *actor.Started:
		for i := range r.lanes {
			r.spawn(i)
		}
	case *arrived:
		r.t.inbound.Add(int64(-len(m.items)))
		r.apply(r.planner.Arrive(r.now(), m.items))
	case *plan.Run:
		r.succeeded += uint64(m.Succeeded())
		r.apply(r.planner.Done(r.now(), m))
	case *failed:
		r.reportFailed(m)
	case *laneCrashed:
		r.crashed(m)
	case *crashNote:
		if r.laneOf(m.lane) < 0 { // else the lane's failure comes, and its restart with it
			r.reportFailed(m.failed)
		}
	case *tick:
		r.timerAt = 0
		r.watchHandlers()
		r.passivate()
		r.apply(r.planner.Tick(r.now()))
	case *copied:
		r.copied(m)
	case *lost:
		r.apply(r.planner.Lost(r.now(), m.ds))
		r.forgetTries()
	case *leasesEnding:
		r.t.runners.endLeases(m.ds)
		r.apply(r.planner.Ending(r.now(), m.ds))
	case *acceptLost:
		r.planner.AcceptLost(m.d)
	case *attachedLimits:
		r.planner.SetMaxReceives(m.limits.MaxReceives)
	case *epochEnded:
		r.apply(r.planner.EpochEnded(r.now(), m.epoch))
		r.forgetTries()
	case *pauseRouter:
		r.apply(r.planner.Pause(r.now()))
	case *resumeRouter:
		r.apply(r.planner.Resume(r.now()))
	case *drainRouter:
		r.draining = true
		r.apply(r.planner.Drain(r.now()))
	case *cancelRunning:
		r.stopCopies()
		r.t.runners.cancelAll(m.cause)
	case *Unpark:
		r.unpark(m)
	case *actor.Terminated:
		r.keyLanes.terminated(m.Who)
	case *statsFor:
		st := r.stats()
		st.State, st.NotReady = m.state, m.notReady
		if st.NotReady == nil && st.Blocked {
			st.NotReady = fmt.Errorf("subscription %q is blocked: key %q holds most of the credit", st.Name, st.BlockedKey)
		}
		ctx.Send(r.t.subscription, &statsOf{to: m.to, stats: st})
	case *actor.Stopping, *actor.Restarting:
		r.stopping = true
		r.stopCopies()
		if r.timer != nil {
			r.timer.Stop()
		}
	}
}

// spawn gives lane i a new actor. The name is fresh, since an old actor's
// Terminated could otherwise evict the new one.
func (r *router) spawn(i int) {
	l := &r.lanes[i]
	l.n++
	f, t := newFeed(r.planner.Gen(i)), r.t
	l.feed = f
	props := actor.PropsFromProducer(func() actor.Actor { return &lane{t: t, index: i, feed: f} },
		actor.WithDispatcher(t.pool), actor.WithMailbox(newMailbox))
	pid, err := r.ctx.SpawnNamed(props, fmt.Sprintf("lane-%d-%d", i, l.n))
	if err != nil {
		panic(fmt.Errorf("lane %d can't be spawned: %w", i, err))
	}
	l.pid = pid
}

// reportFailed handles a run whose last claimed item failed.
func (r *router) reportFailed(f *failed) {
	if f.heard {
		return
	}
	f.heard = true
	r.succeeded += uint64(f.run.Succeeded())
	if f.run.Batch {
		r.failedN += uint64(len(f.elems))
	} else {
		r.failedN++
	}
	r.failing = failing{err: f.err, kind: f.kind, took: f.took, elems: f.elems}
	r.apply(r.planner.Done(r.now(), f.run))
	r.failing = failing{}
}

// laneCrashed is a lane's failure on its way through the router's own mailbox.
type laneCrashed struct {
	sup    actor.Supervisor
	child  *actor.PID
	reason any
}

// HandleFailure implements actor.SupervisorStrategy for the lanes, on the
// router's goroutine. A failure is a system message, and those overtake the
// report of the run before the one that crashed: A1's success would be heard
// after A2's panic. So the failure goes to the end of the router's mailbox.
func (r *router) HandleFailure(_ *actor.ActorSystem, sup actor.Supervisor, child *actor.PID, _ *actor.RestartStatistics, reason, _ any) {
	// A lane's factory may fail before the subscription has noted our address.
	r.t.send(r.ctx.Self(), &laneCrashed{sup: sup, child: child, reason: reason})
}

// crashed handles a lane's failure. A handler's panic or Goexit is a failed
// attempt: the lane gets a new incarnation, and the failed delivery stays first
// of its key. What else can break a lane is a fault of ours, or of the handler
// factory's.
func (r *router) crashed(m *laneCrashed) {
	if k, ok := r.keyLanes.of(m.child); ok {
		r.keyActorCrashed(m, k)
		return
	}
	i := r.laneOf(m.child)
	c, ok := m.reason.(*crash)
	switch {
	case i < 0: // a replaced lane's
		m.sup.StopChildren(m.child)
		if ok && c.failed.run != nil { // its handler has ended at last
			r.reportFailed(c.failed)
		}
		return
	case !ok || c.failed.run == nil:
		panic(&CrashError{Name: r.t.opts.Name, Part: fmt.Sprintf("lane %d", i), Reason: m.reason})
	}
	r.laneRestarts++
	ev := Event{Kind: EventLaneRestarted, Lane: i, Err: c.failed.err}
	if n := c.failed.run.Finished; n > 0 {
		it := c.failed.run.Items[n-1]
		r.renew(it)
		d := it.D
		ev.ID, ev.Key = d.ID, d.Key
		r.t.observe(Observation{Kind: ObserveLaneRestarted, Delivery: d, Lane: i, Err: c.failed.err})
	}
	r.t.event(ev)
	// The planner takes back what the old incarnation was lent and raises the
	// generation; what it lends from here on waits in the lane's feed for the
	// incarnation that has that generation.
	r.reportFailed(c.failed)
	if !r.lanes[i].pid.Equal(m.child) {
		// The policy asked for a restart too, so the actor was replaced and
		// stopped: protoactor would restart it all the same.
		return
	}
	r.lanes[i].feed.gen.Store(r.planner.Gen(i))
	m.sup.RestartChildren(m.child)
}

func (r *router) laneOf(pid *actor.PID) int {
	for i := range r.lanes {
		if r.lanes[i].pid.Equal(pid) {
			return i
		}
	}
	return -1
}

// apply carries out the planner's effects, and then what follows from its state.
// Asking the policy is an event of its own: its effects come after those that
// are left, so what is left is copied first.
func (r *router) apply(es []plan.Effect) {
	for len(es) > 0 {
		e := es[0]
		es = es[1:]
		if e.Kind == plan.Ask {
			rest := append([]plan.Effect(nil), es...)
			es = append(rest, r.ask(e.Item, e.Lane)...)
			continue
		}
		r.effect(e)
	}
	r.settleDown()
}

func (r *router) effect(e plan.Effect) {
	t := r.t
	switch e.Kind {
	case plan.Lend:
		if r.t.keyed() {
			r.own(e.Run)
		}
		select {
		case r.lanes[e.Lane].feed.work <- e.Run:
		default:
			panic(fmt.Sprintf("lane %d was lent more than %d runs", e.Lane, feedRoom))
		}
	case plan.Settle:
		r.settle(e.Item, e.Outcome)
	case plan.Copy:
		r.copy(e.Item)
	case plan.Cancel:
		t.runners.cancel(e.Item, transport.ErrLeaseLost)
	case plan.CancelAll:
		t.runners.cancelAll(transport.ErrLeaseLost)
	case plan.Restart:
		r.lanes[e.Lane].feed.gen.Store(r.planner.Gen(e.Lane))
		r.laneRestarts++
		t.event(Event{Kind: EventLaneRestarted, Lane: e.Lane, Reason: "the policy said so"})
		r.restartLane(e.Lane)
	case plan.EndEpoch:
		t.send(t.pump, &endEpoch{})
	case plan.Drained:
		t.send(t.subscription, &routerDrained{})
	case plan.Stop:
		t.send(t.subscription, &policyStop{err: r.failureOf(e.Item).err})
	case plan.Escalate:
		t.send(t.subscription, &policyEscalate{err: &EscalatedError{
			Name: t.opts.Name, Err: r.failureOf(e.Item).err, ID: e.Item.D.ID, Key: e.Item.D.Key}})
	case plan.Note:
		r.note(e)
	}
}

// restartLane restarts lane i without a failure of its own. Protoactor restarts
// a child only through supervision, so the actor is replaced: same lane, next
// incarnation.
func (r *router) restartLane(i int) {
	old := r.lanes[i].pid
	r.spawn(i)
	r.ctx.Stop(old)
}

func (r *router) settle(it *plan.Item, o transport.Outcome) {
	d := it.D
	kind, err := ObserveReturned, r.failureOf(it).err
	switch o.Kind {
	case transport.Accept:
		kind = ObserveAcceptedAnyway
		if it == r.confirmed {
			kind = 0 // told when the copy was confirmed
			if e := r.t.epoch.Load(); e != nil {
				e.noteCopied(d)
			}
		}
	case transport.Abandon:
		r.abandoned++
		kind = ObserveAbandoned
	case transport.Reject:
		r.deadLettered++
		kind = ObserveDeadLettered
		r.t.event(Event{Kind: EventDeadLettered, Lane: -1, Key: d.Key, ID: d.ID, Reason: o.Reason, Err: err})
	}
	if kind != 0 {
		r.t.observe(Observation{Kind: kind, Delivery: d, Lane: -1, Attempt: it.Attempt - 1, Err: err, Reason: o.Reason})
	}
	r.t.settle(d, o)
}

// failureOf is what is being decided about it.
func (r *router) failureOf(it *plan.Item) failing {
	f := r.failing
	for _, e := range f.elems {
		if e.item == it {
			f.err, f.kind = e.err, e.kind
		}
	}
	return f
}

// ask asks the policy, and lets the planner carry out what it says.
func (r *router) ask(it *plan.Item, lane int) []plan.Effect {
	d, f := it.D, r.failureOf(it)
	r.t.observe(Observation{Kind: ObserveFailed, Delivery: d, Lane: lane, Attempt: it.Attempt, Took: f.took, Err: f.err})
	failure := supervision.Failure{
		Err: f.err, Kind: f.kind, Message: &d.Message, Attempt: it.Attempt, BrokerCount: d.Count,
		FirstFailedAt: r.t.base.Add(time.Duration(it.FirstFailed)), Now: time.Now(), Rand: rand.Uint64(),
	}
	directive := r.decide(failure)
	if directive.RestartLane {
		r.renew(it)
	}
	return r.planner.Decide(r.now(), it, directive)
}

// decide calls the user's policy. A panic in it, or a directive that orders
// nothing, is a retry with the default backoff.
func (r *router) decide(f supervision.Failure) (d supervision.Directive) {
	fallback := supervision.Backoff{}.Decide(f)
	defer func() {
		if v := recover(); v != nil {
			r.t.log.Error("keylanes: the policy panicked; the delivery is retried", "subscription", r.t.opts.Name,
				"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			d = fallback
		}
	}()
	d = r.t.opts.Policy.Decide(f)
	if d.Action == 0 || d.Action > supervision.ActionEscalate {
		r.t.log.Error("keylanes: the policy ordered nothing that there is; the delivery is retried", "subscription", r.t.opts.Name, "action", d.Action.String())
		d = fallback
	}
	return d
}

func (r *router) unpark(m *Unpark) {
	es, found := r.planner.Unpark(r.now(), m.Key, m.Skip)
	r.apply(es)
	if r.ctx.Sender() == nil {
		return
	}
	var err error
	if !found {
		err = fmt.Errorf("key %q: %w", m.Key, ErrNotParked)
	}
	r.ctx.Respond(&Done{Err: err})
}

// settleDown does what follows from the planner's state after every message:
// give back credit, tell the pump, set the timer.
func (r *router) settleDown() {
	t := r.t
	s := r.planner.Runnable()
	t.runnable.Store(int64(s))
	if t.opts.traits.LeaseExpires && int64(s)+t.inbound.Load() < int64(t.opts.traits.MaxReceive) {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
	e := t.epoch.Load()
	r.giveCredit(e, s)
	r.watchBlocked(e, s)
	r.arm()
}

// creditPause is how long credit that isn't a whole step yet waits for more of
// it, while some lanes work and others idle.
const creditPause = int64(time.Millisecond)

// giveCredit grants what was given back, where the steps of epoch.release may
// not: at once when nothing runs, so that nothing else would, and after a moment
// when a lane idles beside busy ones. Granting at every chance would make every
// receive a small one.
func (r *router) giveCredit(e *epoch, runnable int) {
	switch {
	case e == nil || e.freed.Load() <= 0:
		r.creditAt = 0
	case !r.planner.Busy():
		r.creditAt = 0
		e.flush()
	case runnable > 0 && !r.planner.Idle():
		r.creditAt = 0
	case r.creditAt == 0:
		r.creditAt = r.now() + creditPause
	case r.now() >= r.creditAt:
		r.creditAt = 0
		e.flush()
	}
}

// watchBlocked notices that the credit is exhausted with nothing to run.
func (r *router) watchBlocked(e *epoch, runnable int) {
	stands := e != nil && runnable == 0 && !r.planner.Busy() && e.exhausted() && !r.draining
	switch {
	case !stands && r.blocked:
		r.blocked = false
		r.t.event(Event{Kind: EventUnblocked, Lane: -1, Key: r.blockedKey})
		fallthrough
	case !stands:
		r.blockedSince = 0
	case r.blockedSince == 0:
		r.blockedSince = r.now()
	case !r.blocked && r.now()-r.blockedSince >= int64(r.t.opts.BlockedFor):
		r.blocked = true
		var n int
		r.blockedKey, n = r.planner.MostHeld()
		r.t.event(Event{Kind: EventBlocked, Lane: -1, Key: r.blockedKey, Count: n,
			Reason: "the credit is exhausted and nothing held can run; the key named holds most"})
	}
}

// arm sets the timer to whatever is due first.
func (r *router) arm() {
	at := r.planner.NextTimer()
	sooner := func(due int64) {
		if due != 0 && (at == 0 || due < at) {
			at = due
		}
	}
	sooner(r.handlerDue())
	sooner(r.keyLanes.due(r.t.opts.IdleAfter))
	sooner(r.creditAt)
	if r.blockedSince != 0 && !r.blocked {
		sooner(r.blockedSince + int64(r.t.opts.BlockedFor))
	}
	if at == 0 || (r.timerAt != 0 && r.timerAt <= at) {
		return // a timer that fires early does no harm
	}
	r.timerAt = at
	d := max(time.Duration(at-r.now()), 0)
	if r.timer == nil {
		t := r.t
		r.timer = time.AfterFunc(d, func() { t.send(t.router, &tick{}) })
		return
	}
	r.timer.Reset(d)
}

// stats answers GetStats; the subscription adds what it knows.
func (r *router) stats() *Stats {
	t, s := r.t, r.planner.Snapshot()
	st := &Stats{
		Name: t.opts.Name, Queued: s.Queued, Runnable: s.Runnable, Running: s.LanesBusy, Parked: s.Parked,
		Copying: s.Copying, Stuck: s.Stuck, Keys: s.Keys, Outage: s.Outage,
		Received: t.counts.received.Load(), Settled: t.counts.settled.Load(), SettleFailed: t.counts.settleFailed.Load(),
		Lost: t.counts.lost.Load(), OverDelivered: t.counts.overDelivered.Load(),
		Succeeded: r.succeeded, Failed: r.failedN, DeadLettered: r.deadLettered, Abandoned: r.abandoned, LaneRestarts: r.laneRestarts,
		Blocked: r.blocked, Depth: -1, KeyLanes: len(r.keyLanes.byKey),
	}
	if r.blocked {
		st.BlockedKey = r.blockedKey
	}
	if e := t.epoch.Load(); e != nil {
		st.Epoch, st.Held = e.n, int(e.held.Load())
	}
	if s.OldestArrived != 0 {
		st.OldestHeld = time.Duration(r.now() - s.OldestArrived)
	}
	return st
}

var errCopyStopped = errors.New("the subscription stops")
