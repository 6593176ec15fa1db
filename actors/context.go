package actors

import (
	"context"
	"sync"
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/transport"
)

// handlerContext is the context of one attempt. It lives in a slab and makes a
// real cancellable context only when the handler asks for something that needs
// one: most never do, and WithCancelCause costs two allocations.
//
// The runner makes and finishes it; the router may cancel it at any time.
type handlerContext struct {
	t       *tree
	item    *plan.Item
	run     *plan.Run     // the batch, of which item is the first; else nil
	started time.Duration // since the tree's base; 0 when nobody needs it
	attempt int

	mu    sync.Mutex
	ended bool
	over  bool         // the handler has returned
	more  *contextMore // nil until something needs it
}

// contextMore is what only few attempts need.
type contextMore struct {
	cause       error         // with which it was cancelled
	cancelledAt time.Duration // since the tree's base; 0 when it wasn't
	inner       context.Context
	cancelInner context.CancelCauseFunc
}

// extend gives the rare half. The caller holds mu.
func (c *handlerContext) extend() *contextMore {
	if c.more == nil {
		c.more = &contextMore{}
	}
	return c.more
}

// real gives the context that does the work, made on demand.
func (c *handlerContext) real() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.extend()
	if m.inner == nil {
		m.inner, m.cancelInner = context.WithCancelCause(context.Background())
		if c.ended {
			m.cancelInner(m.cause)
		}
	}
	return m.inner
}

// Deadline is when the handler's timeout cancels it.
func (c *handlerContext) Deadline() (time.Time, bool) {
	if c.t.opts.HandlerTimeout == 0 {
		return time.Time{}, false
	}
	return c.t.base.Add(c.started + c.t.opts.HandlerTimeout), true
}

// Done is closed when the attempt is cancelled, or over.
func (c *handlerContext) Done() <-chan struct{} { return c.real().Done() }

// Err is context.Canceled after Done is closed; context.Cause says why.
func (c *handlerContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return context.Canceled
	}
	return nil
}

// Value knows the attempt. Everything else is the real context's business, which
// is how context.Cause and child contexts find it.
func (c *handlerContext) Value(key any) any {
	if key == transport.AttemptKey() {
		return c.attempt
	}
	return c.real().Value(key)
}

// cancel ends it with a cause, and says whether it was still going on.
func (c *handlerContext) cancel(cause error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.ended = true
	c.t.ignoring.Add(1)
	m := c.extend()
	m.cause, m.cancelledAt = cause, max(time.Since(c.t.base), 1)
	if m.cancelInner != nil {
		m.cancelInner(cause)
	}
	return true
}

// finish ends it after the handler has returned, or panicked, and gives the cause
// with which it was cancelled before, nil when it wasn't. Only the first call
// counts.
func (c *handlerContext) finish() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil
	}
	c.over = true
	if c.ended {
		c.t.ignoring.Add(-1)
		return c.more.cause
	}
	c.ended = true
	if c.more != nil && c.more.cancelInner != nil {
		c.more.cancelInner(context.Canceled)
	}
	return nil
}

// ignored says since when it has been cancelled; 0 when it isn't.
func (c *handlerContext) ignored() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.more == nil {
		return 0
	}
	return c.more.cancelledAt
}
