package actors

import (
	"slices"
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/transport"
)

// cancel ends the context of item's handler, if it runs. That of a batch ends
// when every element's lease is lost. On the router's goroutine only.
func (rs *runners) cancel(it *plan.Item, cause error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for r := range rs.all {
		c := r.at.Load()
		switch {
		case c == nil:
		case c.item == it && c.run == nil:
			c.cancel(cause)
			return
		case c.run != nil && it.In(c.run):
			if c.run.AllLost() { // else the others' leases stand
				c.cancel(cause)
			}
			return
		}
	}
}

// endLeases tells the handlers that work on any of ds, while there is time for
// the policy to decide: it is asked when they return. On the router's goroutine
// only.
func (rs *runners) endLeases(ds []*transport.Delivery) {
	rs.each(func(_ *runner, c *handlerContext) {
		if c.run == nil {
			if slices.Contains(ds, c.item.D) {
				c.cancel(transport.ErrLeaseEnding)
			}
			return
		}
		if slices.ContainsFunc(c.run.Items, func(it *plan.Item) bool { return it != nil && it.In(c.run) && slices.Contains(ds, it.D) }) {
			c.cancel(transport.ErrLeaseEnding)
		}
	})
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

// watches says whether any running handler has to be looked at.
func (r *router) watches() bool {
	return r.planner.Busy() && (r.t.opts.HandlerTimeout > 0 || r.t.ignoring.Load() > 0)
}

// handlerDue is when a running handler has to be looked at: at its timeout, or
// when it has ignored its cancelled context for StuckAfter. A handler that
// starts later is due later than one that runs now, so looking at each due time
// finds them all.
func (r *router) handlerDue() int64 {
	if !r.watches() {
		return 0
	}
	var at time.Duration
	sooner := func(due time.Duration) {
		if at == 0 || due < at {
			at = due
		}
	}
	timeout := r.t.opts.HandlerTimeout
	r.t.runners.each(func(run *runner, c *handlerContext) {
		switch ignored := c.ignored(); {
		case ignored > 0:
			if !run.replaced && !r.draining {
				sooner(ignored + r.t.opts.StuckAfter)
			}
		case timeout > 0:
			sooner(c.started + timeout)
		}
	})
	switch {
	case at > 0:
		return int64(at) + 1 // as now counts
	case timeout > 0:
		return r.now() + int64(timeout) // nothing has begun yet
	default:
		return 0
	}
}

// watchHandlers cancels handlers that ran into their timeout, and replaces the
// lanes of those that ignore it.
func (r *router) watchHandlers() {
	if !r.watches() {
		return
	}
	timeout, now := r.t.opts.HandlerTimeout, time.Since(r.t.base)
	var stuck []*runner
	r.t.runners.each(func(run *runner, c *handlerContext) {
		switch ignored := c.ignored(); {
		case ignored > 0:
			if now-ignored >= r.t.opts.StuckAfter && !run.replaced && !r.draining {
				run.replaced = true
				stuck = append(stuck, run)
			}
		case timeout > 0 && now-c.started >= timeout:
			c.cancel(transport.ErrHandlerTimeout)
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
	es, stuck := r.planner.Replace(r.now(), i)
	if len(stuck) > 0 {
		it := stuck[0] // of a batch, the others are in the same handler
		r.renew(it)
		old := r.lanes[i].pid
		r.spawn(i)
		r.ctx.Stop(old)
		r.t.event(Event{Kind: EventHandlerStuck, Lane: i, Key: it.D.Key, ID: it.D.ID, Err: ErrHandlerStuck,
			Reason: "the handler ignores its cancelled context: its key starts nothing until it returns, other keys go on"})
	}
	r.apply(es)
}
