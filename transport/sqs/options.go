package sqs

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// What SQS allows.
const (
	maxBatch      = 10               // entries of a call, messages of a receive
	maxBytes      = 1 << 20          // bytes of a message, and of a whole send
	maxAttributes = 10               // message attributes
	maxVisibility = 12 * time.Hour   // since the receive, extensions included
	maxWait       = 20 * time.Second // of a long poll
	maxDelay      = 15 * time.Minute // of a published message
)

// Options of a Queue. The zero value, and nil, mean the defaults.
type Options struct {
	// VisibilityTimeout is how long a received message stays invisible without
	// an extension. Whole seconds, 1 s to 12 h. Default: the queue's own
	// (30 s unless it was configured). The tree extends it while a message is
	// held, so it bounds how long a message is stuck after a crash, not how
	// long a handler may take.
	VisibilityTimeout time.Duration
	// WaitTime is how long a receive waits for messages. Whole seconds, 1 s to
	// 20 s; default 20 s: three calls a minute on an idle queue. A stop waits
	// for the receive in flight, so it must fit in the stop timeout.
	WaitTime time.Duration
	// Pollers is how many receives may be in flight at once, 1 to 16; default
	// 1. More than one only on a standard queue whose handlers outrun one
	// poll (about 10 messages for each round trip).
	Pollers int
	// Linger is how long a settlement waits for others to fill its call of
	// ten. 0 means 10 ms, which is the most; a negative value turns it off:
	// more calls, lower latency.
	Linger time.Duration
	// CallTimeout bounds every call, a receive's on top of its WaitTime.
	// 100 ms to 1 min; default 5 s.
	CallTimeout time.Duration
	// AllowSingleReceive opens a queue whose redrive policy moves a message
	// away after one receive. Without it that is an error, because every stop
	// and crash would dead-letter messages that nobody has tried.
	AllowSingleReceive bool
	// Logger gets warnings about the queue's settings when it is opened.
	// Default: slog.Default().
	Logger *slog.Logger
}

// check copies, defaults and validates.
func (o *Options) check(fifo bool) (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if err := wholeSeconds("Options.VisibilityTimeout", c.VisibilityTimeout, time.Second, maxVisibility, "the queue's own"); err != nil {
		return c, err
	}
	if err := wholeSeconds("Options.WaitTime", c.WaitTime, time.Second, maxWait, "20 s"); err != nil {
		return c, err
	}
	if c.WaitTime == 0 {
		c.WaitTime = maxWait
	}
	switch {
	case c.Pollers < 0 || c.Pollers > 16:
		return c, &transport.OptionError{Field: "Options.Pollers", Value: c.Pollers, Want: "must be 1 to 16, or 0 for 1"}
	case fifo && c.Pollers > 1:
		return c, &transport.OptionError{Field: "Options.Pollers", Value: c.Pollers, Want: "must be 0 or 1 on a FIFO queue: start more subscriptions instead"}
	case c.Pollers == 0:
		c.Pollers = 1
	}
	var err error
	if c.Linger, err = checkLinger("Options.Linger", c.Linger); err != nil {
		return c, err
	}
	if c.CallTimeout, err = checkCallTimeout("Options.CallTimeout", c.CallTimeout); err != nil {
		return c, err
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

// The longest, and default, linger.
const defaultLinger = 10 * time.Millisecond

func checkLinger(field string, d time.Duration) (time.Duration, error) {
	switch {
	case d > defaultLinger:
		return d, &transport.OptionError{Field: field, Value: d, Want: "must be at most 10 ms; 0 means 10 ms, a negative value turns it off"}
	case d == 0:
		return defaultLinger, nil
	case d < 0:
		return 0, nil
	}
	return d, nil
}

func checkCallTimeout(field string, d time.Duration) (time.Duration, error) {
	if d == 0 {
		return 5 * time.Second, nil
	}
	if d < 100*time.Millisecond || d > time.Minute {
		return d, &transport.OptionError{Field: field, Value: d, Want: "must be 100 ms to 1 min, or 0 for 5 s"}
	}
	return d, nil
}

func wholeSeconds(field string, d, low, high time.Duration, zero string) error {
	if d == 0 || d >= low && d <= high && d%time.Second == 0 {
		return nil
	}
	return &transport.OptionError{Field: field, Value: d,
		Want: fmt.Sprintf("must be whole seconds from %v to %v, or 0 for %s", low, high, zero)}
}
