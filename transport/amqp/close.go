package amqp

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// closeBound bounds a Close whose context has no end.
const closeBound = 30 * time.Second

// Close writes what was settled and waits until the broker has stored it, as far
// as it can say so. Then it detaches, by which the broker takes back in order
// whatever isn't settled, and ends the session and the connection.
func (r *receiver) Close(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, closeBound)
		defer cancel()
	}
	r.settle.stop(errClosing)
	told := r.told.Load() // by Receive: then it isn't news any more
	if r.wire.down() {
		// Nothing can be flushed or given back: the broker does that by itself.
		r.kill(errClosing)
		r.link.abort(errClosing)
		return r.uncertain(told, r.over())
	}
	err := r.wire.flush(ctx)
	if err == nil && r.lost() {
		err = r.deadErr
	} else if err == nil && isArtemis(r.link.conn) {
		err = r.confirm(ctx)
	}
	if errors.Is(err, errNoBarrier) {
		err = nil
	}
	r.kill(firstOf(err, errClosing))
	if ctx.Err() != nil || r.wire.down() {
		r.link.abort(firstOf(err, errClosing))
		return r.uncertain(told && ctx.Err() == nil, firstOf(err, context.Cause(ctx)))
	}
	// In good order also when the link is gone already: a socket that is closed
	// with bytes unread is reset, and the accepts in it are lost.
	err = firstOf(err, r.link.close(ctx))
	return r.uncertain(told && ctx.Err() == nil, err)
}

func (r *receiver) uncertain(told bool, err error) error {
	if told || err == nil {
		return nil
	}
	var known *Error
	if !errors.As(err, &known) {
		err = &Error{Op: r.op, Scope: scopeOf(err), Err: err}
	}
	return fmt.Errorf("close: what was settled last may come again: %w", err)
}

func (r *receiver) lost() bool {
	select {
	case <-r.dead:
		return true
	default:
		return false
	}
}
