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
	item    *plan.Item
	attempt int
	started time.Time     // zero when nobody needs it
	timeout time.Duration // 0 without one

	mu          sync.Mutex
	ended       bool
	cause       error
	cancelledAt time.Time // when the router cancelled it; the router's
	inner       context.Context
	cancelInner context.CancelCauseFunc
}

// real gives the context that does the work, made on demand.
func (c *handlerContext) real() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.cancelInner = context.WithCancelCause(context.Background())
		if c.ended {
			c.cancelInner(c.cause)
		}
	}
	return c.inner
}

// Deadline is when the handler's timeout cancels it.
func (c *handlerContext) Deadline() (time.Time, bool) {
	if c.timeout == 0 {
		return time.Time{}, false
	}
	return c.started.Add(c.timeout), true
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
	c.ended, c.cause = true, cause
	if c.cancelInner != nil {
		c.cancelInner(cause)
	}
	return true
}

// finish ends it after the handler has returned, and gives the cause with which
// it was cancelled before, nil when it wasn't.
func (c *handlerContext) finish() error {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return c.cause
	}
	c.ended = true
	if c.cancelInner != nil {
		c.cancelInner(context.Canceled)
	}
	c.mu.Unlock()
	return nil
}
