package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// lane is an actor that owns one goroutine, its runner. The runner executes the
// runs that the router lends, so that the actor itself always sees Stop and
// Restart, whatever the handler does.
type lane struct {
	t        *tree
	index    int
	feed     *feed
	run      *runner
	asked    *asked // LaneActor: the user's actor, a child; else nil
	children int    // actors so far, for fresh names
	ending   bool   // it stops or restarts
}

// feed is how the router reaches the runners of a lane, one incarnation after
// the other. A run goes straight to the runner: the actor could only pass it on,
// at the cost of waking it.
type feed struct {
	// gen is the generation that the next incarnation's runner begins with. The
	// router sets it before it restarts the lane.
	gen atomic.Uint32
	// work holds runs, and nil to make a runner look whether it is to quit.
	work chan *plan.Run
}

// feedRoom bounds how many runs can be on their way to a runner: the planner
// lends two at a time, and those of an old generation are let go at once.
const feedRoom = 64

func newFeed(gen uint32) *feed {
	f := &feed{work: make(chan *plan.Run, feedRoom)}
	f.gen.Store(gen)
	return f
}

// crash is the failure of a lane whose handler panicked, or called Goexit. The
// lane panics with it, so that it passes through protoactor's supervision.
type crash struct{ failed *failed }

// LogValue keeps payloads out of the actor system's log.
func (c *crash) LogValue() slog.Value { return slog.StringValue(c.failed.err.Error()) }

// Error makes a crash readable in a supervisor event.
func (c *crash) Error() string { return c.failed.err.Error() }

// crashNote tells the router of a crash beside the lane's own failure.
type crashNote struct {
	lane   *actor.PID
	failed *failed
}

// failed is a lane's report of a run that ended in a failed attempt.
type failed struct {
	heard bool // the router has it; the router's

	run   *plan.Run
	err   error
	kind  supervision.Kind
	took  time.Duration
	stack []byte
	elems []element // of a batch, whatever failed for itself
}

// Receive implements actor.Actor.
func (l *lane) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actor.Started:
		l.spawnAsked(ctx)
		l.run = newRunner(l.t, l.index, l.feed, ctx.Self())
		l.run.asked = l.asked
		go l.run.loop()
	case *crash:
		panic(m)
	case *actor.Terminated:
		if l.asked != nil && l.asked.pid.Equal(m.Who) && !l.ending { // it has stopped itself
			l.asked.replace(l.spawnChild(ctx))
		}
	case *actor.Restarting, *actor.Stopping:
		l.ending = true // a new child would keep it from its end for ever
		// The runner isn't waited for: it ends when its handler returns.
		if l.run != nil {
			l.run.stop()
		}
	}
}

// runner is the goroutine that runs a lane's handlers.
type runner struct {
	t     *tree
	index int
	self  *actor.PID
	work  chan *plan.Run

	quit     chan struct{}
	quitOnce sync.Once

	gen uint32            // the runner's own
	h   transport.Handler // made on the runner's goroutine
	// asked is the actor that h asks, where there is one for each lane.
	asked *asked
	at    atomic.Pointer[handlerContext] // what runs; the router cancels it
	slab  []handlerContext
	ds    []*transport.Delivery // a batch's, reused

	timed bool // a clock is needed for each attempt

	replaced bool // the router has given up on it; the router's
}

func newRunner(t *tree, index int, f *feed, self *actor.PID) *runner {
	r := &runner{t: t, index: index, gen: f.gen.Load(), self: self, work: f.work, quit: make(chan struct{})}
	r.timed = t.opts.HandlerTimeout > 0 || t.opts.Observer != nil
	t.runners.add(r)
	return r
}

// end tells the runner to quit when it looks next. Any goroutine.
func (r *runner) end() {
	r.quitOnce.Do(func() { close(r.quit) })
	select {
	case r.work <- nil:
	default: // full: it will look
	}
}

// quits says whether the runner was told to quit.
func (r *runner) quits() bool {
	select {
	case <-r.quit:
		return true
	default:
		return false
	}
}

// stop lets the runner end, after the attempt that it is at, whose context ends
// now.
func (r *runner) stop() {
	r.end()
	if c := r.at.Load(); c != nil {
		c.cancel(transport.ErrStopping)
	}
}

// loop executes runs until the runner is stopped, or a handler's panic or Goexit
// ends it.
func (r *runner) loop() {
	var run *plan.Run
	var started time.Time
	normal := false
	defer func() {
		// A panic arrives here with its value, a Goexit with none and without
		// the loop having ended.
		value := recover()
		if normal {
			r.t.runners.remove(r)
			return
		}
		f := &failed{run: run, kind: supervision.Panicked, stack: debug.Stack(), took: since(started)}
		f.err = &supervision.PanicError{Value: value, Stack: f.stack, Goexit: value == nil}
		if run != nil { // else it was the factory, before any run
			if c := r.at.Load(); c != nil {
				_ = c.finish() // why it was cancelled doesn't matter any more
			}
			if run.Batch {
				r.at.Store(nil)
				f.elems = failWhole(run, element{err: f.err, kind: f.kind})
			} else {
				r.closeRun(run, plan.VerdictFailed)
			}
		}
		r.t.runners.remove(r)
		switch {
		case !r.quits():
			r.t.send(r.self, &crash{failed: f})
			if run != nil {
				// Should the lane be replaced before it hears of the crash, its
				// mailbox is dropped, and this is what the router hears.
				r.report(&crashNote{lane: r.self, failed: f})
			}
		case run != nil: // the actor is gone, or going: nobody else would report
			r.report(f)
		}
	}()
	if r.t.batch == nil && !r.t.keyed() {
		r.h = r.t.handler(Lane{Index: r.index}, r.asked)
	}
	for {
		run = <-r.work
		if r.quits() {
			// What was lent is taken back by the router, or falls with it.
			normal = true
			return
		}
		if run == nil || run.Gen != r.gen {
			run = nil
			continue // the router took it back
		}
		if run.Batch {
			f := r.batch(run, &started)
			r.at.Store(nil)
			if f != nil {
				r.gen++ // what waits behind it is void
				r.report(f)
			} else {
				r.report(run)
			}
			run = nil
			continue
		}
		for {
			i, ok := run.Claim()
			if !ok {
				break
			}
			v, f := r.one(run, run.Items[i], &started)
			run.Finished = i + 1
			if v != plan.VerdictOK {
				r.closeRun(run, v)
				r.gen++ // what waits behind it is void
				if f != nil {
					f.run = run
					r.report(f)
				} else {
					r.report(run)
				}
				run = nil
				break
			}
		}
		if run != nil {
			r.at.Store(nil)
			r.report(run)
			run = nil
		}
	}
}

// closeRun closes a run at the item that was claimed last, and notes how that
// ended.
func (r *runner) closeRun(run *plan.Run, v plan.Verdict) {
	r.at.Store(nil)
	run.Finished, run.Verdict = run.Claw(), v
}

func (r *runner) report(message any) { r.t.send(r.t.router, message) }

// one runs one attempt. A panic or Goexit in it is loop's business.
func (r *runner) one(run *plan.Run, it *plan.Item, started *time.Time) (plan.Verdict, *failed) {
	if err := it.KeyErr(); err != nil {
		return plan.VerdictFailed, &failed{err: err, kind: supervision.Undecodable}
	}
	d := it.D
	lease := transport.LeaseOf(d)
	expires := lease.Expires()
	var now time.Time
	if r.timed || expires {
		now = time.Now()
	}
	if lease.Lost() || (expires && !lease.Live(now)) {
		return plan.VerdictLapsed, nil
	}
	c := r.newContext(it, now)
	*started = now
	r.at.Store(c)
	if r.quits() { // between the claim and the store: nobody would cancel it
		_ = c.finish() // it hasn't begun
		return plan.VerdictLapsed, nil
	}
	if r.t.opts.Observer != nil {
		r.t.observe(Observation{Kind: ObserveStarted, Delivery: d, Lane: r.index, Attempt: it.Attempt})
	}
	err := r.handlerOf(it).Handle(c, d)
	cause := c.finish()
	v := verdictOf(err, cause, lease.Lost() || (expires && !lease.Live(time.Now())))
	switch v {
	case plan.VerdictFailed:
		return v, r.failure(err, cause, now)
	case plan.VerdictOK:
		if r.t.opts.Observer != nil {
			r.t.observe(Observation{Kind: ObserveSucceeded, Delivery: d, Lane: r.index, Attempt: it.Attempt, Took: since(now)})
		}
		r.confirmed(d, r.accept(d))
	}
	return v, nil
}

// verdictOf judges an attempt that has returned err, by the cause with which its
// context was cancelled before, nil when it wasn't, and by whether its lease is lost.
func verdictOf(err, cause error, lost bool) plan.Verdict {
	switch {
	case err != nil && !gaveUp(cause):
		return plan.VerdictFailed
	case lost:
		return plan.VerdictRefused
	case err != nil:
		return plan.VerdictGaveUp
	default:
		return plan.VerdictOK
	}
}

// accept hands over that d is done. A receiver that panics on it is broken, which
// isn't the message's fault: it fails the subscription, and as d isn't settled it
// comes again. What it gives is closed when the broker has it, nil when nobody is to
// wait for that.
func (r *runner) accept(d *transport.Delivery) (ch <-chan struct{}) {
	defer func() {
		if v := recover(); v != nil {
			r.t.send(r.t.pump, &pumpCrash{part: fmt.Sprintf("lane %d", r.index), value: v, stack: debug.Stack()})
		}
	}()
	if r.t.opts.SettleBeforeNext && r.t.opts.Dispatch.mode != plan.Workers {
		r.at.Store(nil) // the attempt is over: there is nothing to time out or cancel
		ch = r.t.confirmations.expect(d)
	}
	r.t.settle(d, transport.Outcome{Kind: transport.Accept})
	return ch
}

// gaveUp says that a handler was told to give up, as its lease is gone, its epoch
// ends or the subscription stops. Its error says nothing about the message then:
// neither lost links nor resets count as attempts.
func gaveUp(cause error) bool {
	return errors.Is(cause, transport.ErrLeaseLost) || errors.Is(cause, transport.ErrStopping)
}

// handlerOf is the handler of it's key, or the lane's own.
func (r *runner) handlerOf(it *plan.Item) transport.Handler {
	if k, ok := it.Owner.(*keyLane); ok {
		return k.handler(r.t)
	}
	if r.h == nil { // keys have their own: this is for what has no key
		r.h = r.t.handler(Lane{Index: r.index}, r.asked)
	}
	return r.h
}

// newContext gives the context of an attempt at it that begins now.
func (r *runner) newContext(it *plan.Item, now time.Time) *handlerContext {
	if len(r.slab) == 0 {
		r.slab = make([]handlerContext, plan.MaxRun)
	}
	c := &r.slab[0]
	r.slab = r.slab[1:]
	c.t, c.item, c.attempt = r.t, it, it.Attempt
	if r.timed {
		c.started = now.Sub(r.t.base)
	}
	return c
}

func (r *runner) failure(err, cause error, started time.Time) *failed {
	f := &failed{err: err, kind: supervision.Returned, took: since(started)}
	var de *transport.DecodeError
	switch {
	case errors.Is(cause, transport.ErrLeaseEnding):
		f.kind = supervision.TimedOut
		if !errors.Is(err, cause) { // so that the policy can tell
			f.err = fmt.Errorf("%w: %w", cause, err)
		}
	case errors.Is(cause, transport.ErrHandlerTimeout):
		f.kind = supervision.TimedOut
	case errors.As(err, &de):
		f.kind = supervision.Undecodable
	}
	return f
}

func since(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Since(t)
}
