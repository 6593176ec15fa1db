package actors

import (
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/transport"
)

// cancel ends the context of item's handler, if it runs.
func (rs *runners) cancel(it *plan.Item, cause error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for r := range rs.all {
		if c := r.at.Load(); c != nil && c.item == it {
			if c.cancel(cause) {
				c.cancelledAt = time.Now()
			}
			return
		}
	}
}

// each calls f for whatever runs.
func (rs *runners) each(f func(r *runner, c *handlerContext)) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for r := range rs.all {
		if c := r.at.Load(); c != nil {
			f(r, c)
		}
	}
}

// handlerDue is when a running handler has to be looked at: at its timeout, or
// when it has ignored its cancelled context for StuckAfter. A handler that
// starts later is due later than one that runs now, so looking at each due time
// finds them all.
func (r *router) handlerDue() int64 {
	t := r.t
	timeout := t.opts.HandlerTimeout
	if !r.planner.Busy() || (timeout == 0 && !r.planner.AnyLost()) {
		return 0
	}
	var at time.Time
	sooner := func(due time.Time) {
		if at.IsZero() || due.Before(at) {
			at = due
		}
	}
	t.runners.each(func(_ *runner, c *handlerContext) {
		switch {
		case !c.cancelledAt.IsZero():
			if !r.draining {
				sooner(c.cancelledAt.Add(t.opts.StuckAfter))
			}
		case timeout > 0:
			sooner(c.started.Add(timeout))
		}
	})
	if at.IsZero() {
		if timeout == 0 {
			return 0
		}
		return r.now() + int64(timeout) // nothing has begun yet
	}
	return int64(at.Sub(r.base)) + 1
}

// watchHandlers cancels handlers that ran into their timeout, and replaces the
// lanes of those that ignore it.
func (r *router) watchHandlers() {
	t := r.t
	if t.opts.HandlerTimeout == 0 && !r.planner.AnyLost() {
		return
	}
	now := time.Now()
	var stuck []*runner
	t.runners.each(func(run *runner, c *handlerContext) {
		switch {
		case !c.cancelledAt.IsZero():
			if now.Sub(c.cancelledAt) >= t.opts.StuckAfter && !run.replaced && !r.draining {
				run.replaced = true
				stuck = append(stuck, run)
			}
		case t.opts.HandlerTimeout > 0 && now.Sub(c.started) >= t.opts.HandlerTimeout:
			if c.cancel(transport.ErrHandlerTimeout) {
				c.cancelledAt = now
			}
		}
	})
	for _, run := range stuck {
		r.replaceLane(run)
	}
}

// replaceLane gives a lane whose handler is stuck a new actor for its other
// keys. The old actor stops; its runner reports when the handler returns.
func (r *router) replaceLane(run *runner) {
	i := run.index
	if !r.lanes[i].pid.Equal(run.self) {
		return
	}
	es, it := r.planner.Replace(r.now(), i)
	if it != nil {
		old := r.lanes[i].pid
		r.spawn(i)
		r.ctx.Stop(old)
		r.t.event(Event{Kind: EventHandlerStuck, Lane: i, Key: it.D.Key, ID: it.D.ID, Err: ErrHandlerStuck,
			Reason: "the handler ignores its cancelled context: its key starts nothing until it returns, other keys go on"})
	}
	r.apply(es)
}
