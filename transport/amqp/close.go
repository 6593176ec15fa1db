package amqp

import (
	"context"
	"fmt"
	"time"
)

// closeBound bounds a Close whose context has no end.
const closeBound = 30 * time.Second

// Close writes what was settled, detaches, by which the broker takes back in
// order whatever isn't settled, and waits until the broker has ended the
// session: then it has every settlement for certain.
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
	// In good order also when only the link is gone: a socket that is closed
	// with bytes unread is reset, and the accepts in it are lost.
	err := r.wire.flush(ctx)
	if err != nil {
		r.kill(err)
		r.link.abort(err)
	} else {
		r.kill(errClosing)
		err = r.link.close(ctx)
	}
	return r.uncertain(told && ctx.Err() == nil, err)
}

func (r *receiver) uncertain(told bool, err error) error {
	if told || err == nil {
		return nil
	}
	return fmt.Errorf("close: %s: what was settled last may come again: %w", r.op, err)
}
