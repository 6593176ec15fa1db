package actors

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// Dispatch says how deliveries are spread over lanes. Make one with Sequential,
// Workers, ByKey or PerKey; the zero value is Sequential.
type Dispatch struct {
	mode plan.Mode
	n    int
}

// Sequential runs one handler at a time, in the order handed out, whatever the
// keys: the whole stream is one key, and a parked head holds everything.
func Sequential() Dispatch { return Dispatch{mode: plan.Sequential, n: 1} }

// Workers runs up to n handlers at once and keeps no order at all. n is 1 to
// 4096.
func Workers(n int) Dispatch { return Dispatch{mode: plan.Workers, n: n} }

// ByKey runs n lanes. A delivery goes to the lane that its key hashes to
// (LaneOf), where keys take turns: a slow key delays the other keys of its lane.
// n is 1 to 4096.
func ByKey(n int) Dispatch { return Dispatch{mode: plan.ByKey, n: n} }

// PerKey lends the next ready keys to any of n pooled lanes: no key waits for a
// colliding one. n is 1 to 4096.
func PerKey(n int) Dispatch { return Dispatch{mode: plan.PerKey, n: n} }

// String is what it was made with: "bykey(8)".
func (d Dispatch) String() string {
	switch d.mode {
	case plan.Workers:
		return fmt.Sprintf("workers(%d)", d.n)
	case plan.ByKey:
		return fmt.Sprintf("bykey(%d)", d.n)
	case plan.PerKey:
		return fmt.Sprintf("perkey(%d)", d.n)
	default:
		return "sequential"
	}
}

// Lanes is how many lanes it has.
func (d Dispatch) Lanes() int { return max(d.n, 1) }

// LaneOf is the lane of a key under ByKey(n): XXH64, with seed 0, of the key's
// bytes, modulo n. n must be positive.
func LaneOf(key string, n int) int { return plan.LaneOf(key, n) }

// Options are a subscription's. Nil and zero values mean the defaults.
type Options struct {
	// Name appears in logs, events and dead letters as the source's name.
	// Default "subscription".
	Name string
	// Dispatch says how deliveries are spread over lanes. Default Sequential.
	Dispatch Dispatch
	// Credit is the ceiling on what is held: granted and on its way, queued,
	// running, parked, or whose settlement hasn't left yet. 1 to 100000,
	// default 256.
	Credit int
	// Key finds a message's key; nil takes the transport's. It runs once for
	// each delivery, on the pump's goroutine, and must not block. When it
	// panics, the delivery counts as keyless and undecodable. Refused where the
	// broker's groups are exclusive.
	Key func(*transport.Message) string
	// Policy decides what follows a failure. Default supervision.Default().
	Policy supervision.Policy
	// HandlerTimeout cancels a handler's context with ErrHandlerTimeout. Its
	// retry waits all the same until it has returned. 1 ms to 24 h; default 0:
	// none.
	HandlerTimeout time.Duration
	// StopTimeout is how long a drain lets running handlers finish before it
	// cancels them. 1 ms to 24 h, default 25 s: below the usual 30 s grace of
	// an orchestrator.
	StopTimeout time.Duration
	// StuckAfter is how long a handler may ignore its cancelled context before
	// its lane is replaced for the lane's other keys; its own key stays fenced.
	// During a stop it is how long a cancelled handler is waited for, at most
	// 5 s. 1 ms to 24 h, default 10 s.
	StuckAfter time.Duration
	// BlockedFor is how long the credit may be exhausted with nothing runnable
	// before the subscription says that it is blocked. 1 ms to 24 h, default
	// 10 s.
	BlockedFor time.Duration
	// OutageAfter is how long a dead-letter for exhausted attempts waits for
	// evidence that something works: for another success since the delivery
	// first failed. Negative: it doesn't wait. At most 24 h, default 15 min.
	OutageAfter time.Duration
	// Batch is how many deliveries a batch holds at most, for BatchSubscription.
	// 1 to 4096 and at most Credit; default 64, or Credit where that is less.
	// Where the broker is polled a batch is never more than one receive: on SQS
	// 10.
	Batch int
	// BatchWait is how long a batch that isn't full waits after its first
	// delivery came. 1 ms to 1 min, default 10 ms.
	BatchWait time.Duration
	// IdleAfter is how long a key's own handler or actor (PerLane and LaneActor
	// under PerKey) is kept after its key had its last delivery. 1 ms to 24 h,
	// default 1 min.
	IdleAfter time.Duration
	// MaxLanes is how many keys have their own handler or actor at most, under
	// PerKey: one more, and the one that was idle for longest goes. At least
	// Credit, so that there is an idle one, and at most 10 million; default 10000,
	// or Credit where that is more.
	MaxLanes int
	// Middleware wraps the handler, the first listed outermost.
	Middleware []transport.Middleware
	// SettleBeforeNext starts a key's next delivery only when the broker has
	// confirmed the accept of the one before, or has refused it. By default it
	// starts as soon as the accept is on its way; should that be lost, the message
	// comes again after its successor, as a duplicate. The lane waits meanwhile, a
	// round trip for each delivery, and on SQS up to 10 ms for a call to fill.
	// Under AMQP an accept has no confirmation: it counts as confirmed when it was
	// written. Workers has no order, and ignores it.
	SettleBeforeNext bool
	// DeadLetter is where dead letters are copied to. The subscription doesn't
	// close it.
	DeadLetter transport.Publisher
	// NativeDeadLetter uses the broker's own reject instead of a copy. Some
	// brokers drop the reason, and a queue without a dead-letter address
	// destroys the message.
	NativeDeadLetter bool
	// Logger gets what an operator should see. Default slog.Default().
	Logger *slog.Logger
	// Observer sees each step of each delivery. Default none.
	Observer Observer

	traits transport.Traits // what the source told at the start
}

const (
	maxLanes = 4096
	// defaultKeyLanes is the default of MaxLanes.
	defaultKeyLanes = 10_000
	maxKeyLanes     = 10_000_000
	maxCredit       = 100_000
	maxSpan         = 24 * time.Hour
	// stopGrace bounds how long a stop waits for handlers that were cancelled.
	stopGrace = 5 * time.Second
)

// withDefaults copies o, fills it in and checks it against src's traits.
func (o *Options) withDefaults(src transport.Source) (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if src == nil {
		return c, &transport.OptionError{Field: "source", Value: "nil", Want: "must be a transport's source, such as memory's, amqp's or sqs's"}
	}
	if c.Name == "" {
		c.Name = "subscription"
	}
	if c.Dispatch.mode == plan.Sequential {
		c.Dispatch.n = 1
	}
	if c.Dispatch.n < 1 || c.Dispatch.n > maxLanes {
		return c, &transport.OptionError{Field: "Options.Dispatch", Value: c.Dispatch, Want: fmt.Sprintf("its n must be 1 to %d", maxLanes)}
	}
	if c.Credit == 0 {
		c.Credit = 256
	}
	if c.Credit < 1 || c.Credit > maxCredit {
		return c, &transport.OptionError{Field: "Options.Credit", Value: c.Credit, Want: fmt.Sprintf("must be 1 to %d, or 0 for 256", maxCredit)}
	}
	for _, f := range []struct {
		field string
		v     *time.Duration
		def   time.Duration
	}{
		{"Options.HandlerTimeout", &c.HandlerTimeout, 0},
		{"Options.StopTimeout", &c.StopTimeout, 25 * time.Second},
		{"Options.StuckAfter", &c.StuckAfter, 10 * time.Second},
		{"Options.BlockedFor", &c.BlockedFor, 10 * time.Second},
		{"Options.IdleAfter", &c.IdleAfter, time.Minute},
	} {
		if *f.v == 0 {
			*f.v = f.def
			continue
		}
		if *f.v < time.Millisecond || *f.v > maxSpan {
			return c, &transport.OptionError{Field: f.field, Value: *f.v, Want: fmt.Sprintf("must be 1ms to %v, or 0 for the default", maxSpan)}
		}
	}
	if c.MaxLanes == 0 {
		c.MaxLanes = max(defaultKeyLanes, c.Credit)
	}
	if c.MaxLanes < c.Credit || c.MaxLanes > maxKeyLanes {
		return c, &transport.OptionError{Field: "Options.MaxLanes", Value: c.MaxLanes, Want: fmt.Sprintf("must be at least Options.Credit, %d, so that an idle one can always go, and at most %d; or 0 for %d", c.Credit, maxKeyLanes, max(defaultKeyLanes, c.Credit))}
	}
	if c.Observer != nil && isNil(c.Observer) {
		return c, &transport.OptionError{Field: "Options.Observer", Value: "a nil function", Want: "must be an observer, or nil for none"}
	}
	if c.OutageAfter == 0 {
		c.OutageAfter = 15 * time.Minute
	}
	if c.OutageAfter > maxSpan {
		return c, &transport.OptionError{Field: "Options.OutageAfter", Value: c.OutageAfter, Want: fmt.Sprintf("must be at most %v, 0 for 15m, or negative to turn the wait off", maxSpan)}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Policy == nil {
		c.Policy = supervision.Default()
	}
	if err := c.askTraits(src); err != nil {
		return c, err
	}
	if c.Key != nil && c.traits.GroupsExclusive {
		return c, &transport.OptionError{Field: "Options.Key", Value: "a function", Want: "must be nil: this broker's groups are exclusive, and two keys of one group couldn't be settled apart; publish with the key as the group instead"}
	}
	return c, c.checkDeadLetter()
}

// askTraits asks the source, once for all spawns: its traits don't change.
func (o *Options) askTraits(src transport.Source) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &transport.OptionError{Field: "source", Value: v, Want: "must not panic when it is asked for its Traits"}
		}
	}()
	o.traits = src.Traits()
	return nil
}

func (o *Options) checkDeadLetter() error {
	if o.NativeDeadLetter {
		if o.traits.DeadLetter == transport.DeadLetterNone {
			return &transport.OptionError{Field: "Options.NativeDeadLetter", Value: true, Want: "must be false: this transport has no dead-letter path of its own; set Options.DeadLetter to a publisher"}
		}
		return nil
	}
	if o.DeadLetter != nil {
		return nil
	}
	if may, err := o.mayDeadLetter(); !may || err != nil {
		return err
	}
	return &transport.OptionError{Field: "Options.DeadLetter", Value: "nil", Want: "the policy may dead-letter, so it needs a target: set a publisher, or a policy that never dead-letters, such as supervision.RetryForever(supervision.Backoff{})"}
}

// mayDeadLetter asks the policy, which is the user's code.
func (o *Options) mayDeadLetter() (may bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &transport.OptionError{Field: "Options.Policy", Value: v, Want: "must not panic when it is asked MayDeadLetter"}
		}
	}()
	m, ok := o.Policy.(supervision.MayDeadLetter)
	return !ok || m.MayDeadLetter(), nil
}
