package sqs

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

func always(d time.Duration) supervision.Policy { return supervision.Always(supervision.Retry(d)) }

// startError is something that is wrong from the start, or begins later.
type startError struct {
	name  string
	fault sqsfake.Fault // of every call
	queue string        // "": one that exists
	says  string        // in the error
}

var startErrors = []startError{
	{name: "missing queue", queue: "nowhere", says: "create the queue"},
	{name: "missing permission", fault: sqsfake.Fail(403, "AccessDenied"), says: "sqs:ReceiveMessage"},
	{name: "expired credentials", fault: sqsfake.Fail(403, "ExpiredToken"), says: "expired"},
	{name: "unknown access key", fault: sqsfake.Fail(403, "InvalidClientTokenId"), says: "credentials"},
	{name: "wrong region", fault: sqsfake.Fail(400, "InvalidAddress"), says: "region"},
	{name: "signature", fault: sqsfake.Fail(403, "SignatureDoesNotMatch"), says: "credentials"},
}

func (c startError) check(f *fake) {
	q := c.queue
	if q == "" {
		q = newQueue(f, f.client, "", nil)
	}
	if c.fault != nil {
		f.wire.Script(func(sqsfake.Call) sqsfake.Fault { return c.fault })
	}
	src, err := Queue(f.client, q, &Options{WaitTime: time.Second})
	if err != nil {
		f.Fatal(err)
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	h := keylanes.HandlerFunc(func(context.Context, *keylanes.Delivery) error { return nil })
	began := time.Now()
	err = keylanes.Run(f.Context(), src, h, &keylanes.Options{Policy: always(time.Second), Logger: quiet})
	var fatal *transport.FatalError
	if !errors.As(err, &fatal) || !strings.Contains(err.Error(), c.says) {
		f.Errorf("ended with %v, want a FatalError that says %q", err, c.says)
	}
	if took := time.Since(began); took > 5*time.Second {
		f.Errorf("it took %v to say so", took)
	}
	f.wire.Script(nil)
	if c.fault != nil {
		c.later(f)
	}
}

// later lets the same begin while messages are held, for half a minute.
func (c startError) later(f *fake) {
	const n = 60
	j := newJob(f, f, f.client, ".fifo", nil)
	j.publish(load(n, 6)...)
	done := newTally(n)
	r := j.start(nil, keylanes.Options{Dispatch: keylanes.ByKey(3)}, func(ctx context.Context, d *keylanes.Delivery) error {
		if err := work(ctx, time.Second); err != nil {
			return err
		}
		done.add(d.ID)
		return nil
	})
	time.Sleep(5 * time.Second)
	before := f.wire.Total()
	f.wire.Script(func(sqsfake.Call) sqsfake.Fault { return c.fault })
	time.Sleep(30 * time.Second)
	f.wire.Script(nil)
	if calls := f.wire.Total() - before; calls > 30*8 {
		f.Errorf("%d calls in 30 s that all failed", calls)
	}
	time.Sleep(5 * time.Minute)
	r.stop()
	j.checkDone(oracle.Rules{Duplicates: n})
}
