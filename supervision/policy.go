package supervision

import (
	"errors"
	"math"
	"math/bits"
	"time"
)

// Policy decides what follows a failed attempt.
type Policy interface {
	// Decide maps a failure to a directive.
	//   - Called on the router actor's goroutine: it must be quick, and must
	//     not block, keep f.Message, or call the subscription.
	//   - The same failure gives the same directive: time and randomness are
	//     in f.
	//   - A panic in it is treated as Retry with the default backoff, loudly.
	Decide(f Failure) Directive
}

// MayDeadLetter is implemented by a policy that knows whether it can ever ask
// for a dead-letter. Without it the answer is yes, and a subscription with no
// dead-letter target fails at start.
type MayDeadLetter interface {
	// MayDeadLetter is asked once, at start; any goroutine.
	MayDeadLetter() bool
}

// PolicyFunc is a function as a Policy.
type PolicyFunc func(f Failure) Directive

// Decide calls p.
func (p PolicyFunc) Decide(f Failure) Directive { return p(f) }

// must panics where a combinator is given no policy: a programmer's error that
// would otherwise show at the first failed delivery.
func must(combinator string, ps ...Policy) {
	for _, p := range ps {
		if p == nil {
			panic("supervision: " + combinator + ": policy is nil: give it one, supervision.Default() for instance")
		}
	}
}

// described gives d the failure's error as its description, where it is a
// dead-letter that has none.
func described(d Directive, f Failure) Directive {
	if d.Action == ActionDeadLetter && d.Description == "" && f.Err != nil {
		d.Description = f.Err.Error()
	}
	return d
}

// mayDeadLetter asks p, with the default for those that don't say.
func mayDeadLetter(p Policy) bool {
	if m, ok := p.(MayDeadLetter); ok {
		return m.MayDeadLetter()
	}
	return true
}

// Backoff is a full-jitter exponential backoff: the delay of attempt n is
// uniform between half of Min and Min*Factor^(n-1), which is capped at Max. It
// never is zero. As a Policy it retries for ever.
type Backoff struct {
	Min    time.Duration // default 100 ms, at least 1 ms
	Max    time.Duration // default 1 min; below Min it counts as Min
	Factor float64       // default 2, at least 1
}

// Delay is the delay before the attempt after attempt (1 for the first), with
// rand uniform over all its values. A Min or Factor out of bounds counts as its
// default.
func (b Backoff) Delay(attempt int, rand uint64) time.Duration {
	b = b.withDefaults()
	top := uint64(b.Max) // in integers: a float64 would round a long Max up, past it
	if f := float64(b.Min) * math.Pow(b.Factor, float64(max(attempt, 1)-1)); f < float64(b.Max) {
		top = uint64(f)
	}
	low := uint64(b.Min / 2)
	span, _ := bits.Mul64(rand, top-low+1)
	return time.Duration(low + span)
}

func (b Backoff) withDefaults() Backoff {
	if b.Min < time.Millisecond {
		b.Min = 100 * time.Millisecond
	}
	if b.Max == 0 {
		b.Max = time.Minute
	}
	b.Max = max(b.Max, b.Min)
	if !(b.Factor >= 1) {
		b.Factor = 2
	}
	return b
}

// Decide retries after the delay.
func (b Backoff) Decide(f Failure) Directive { return Retry(b.Delay(f.Attempt, f.Rand)) }

// MayDeadLetter is false: a backoff only retries.
func (b Backoff) MayDeadLetter() bool { return false }

// composed is a policy made of others, which knows whether it may dead-letter.
type composed struct {
	decide func(Failure) Directive
	dead   bool
}

func (c composed) Decide(f Failure) Directive { return c.decide(f) }
func (c composed) MayDeadLetter() bool        { return c.dead }

// RetryForever retries with b for ever and dead-letters nothing, not even what
// doesn't decode.
func RetryForever(b Backoff) Policy { return b }

// Limit asks p until a delivery has failed attempts times, and orders then from
// there on. A dead-letter in then is marked as exhausted (Directive.Exhausted),
// with p's delay for the retries while it waits for evidence, and the error's
// text where then has no description. attempts below 1 count as 1.
func Limit(attempts int, then Directive, p Policy) Policy {
	must("Limit", p)
	return limit(attempts, func(f Failure) int { return f.Attempt }, then, p)
}

// limit orders then instead of p's counted retries, once count is at least most.
func limit(most int, count func(Failure) int, then Directive, p Policy) Policy {
	return composed{
		dead: then.Action == ActionDeadLetter || mayDeadLetter(p),
		decide: func(f Failure) Directive {
			d := p.Decide(f)
			if count(f) < max(most, 1) || d.Action != ActionRetry || d.Uncounted {
				return d
			}
			t := then
			if t.Action == ActionDeadLetter {
				t.Exhausted, t.After = true, d.After
			}
			return described(t, f)
		},
	}
}

// CrashLimit asks p, and orders then instead of a retry where the broker has
// handed the message out hands times before, or more often
// (Failure.BrokerCount). It is for processes that go down so often, perhaps by
// that very message, that Attempt never adds up; but it decides only about a
// failure that this process has seen. Brokers count lost links, returns or stops
// as well, so hands should be well above what those add up to. Where the count is
// unknown, p alone decides. Everything else is as with Limit; hands below 1 count
// as 1.
func CrashLimit(hands int, then Directive, p Policy) Policy {
	must("CrashLimit", p)
	return limit(hands, func(f Failure) int { return f.BrokerCount }, then, p)
}

// On asks then for a failure whose error is, or wraps, an E, and otherwise for
// every other.
func On[E error](then, otherwise Policy) Policy {
	must("On", then, otherwise)
	return composed{
		dead: mayDeadLetter(then) || mayDeadLetter(otherwise),
		decide: func(f Failure) Directive {
			var e E
			if errors.As(f.Err, &e) {
				return then.Decide(f)
			}
			return otherwise.Decide(f)
		},
	}
}

// OnKind asks then for failures of kind k, and otherwise for every other.
func OnKind(k Kind, then, otherwise Policy) Policy {
	must("OnKind", then, otherwise)
	return composed{
		dead: mayDeadLetter(then) || mayDeadLetter(otherwise),
		decide: func(f Failure) Directive {
			if f.Kind == k {
				return then.Decide(f)
			}
			return otherwise.Decide(f)
		},
	}
}

// Always orders d for every failure. A dead-letter without a description gets
// the error's text.
func Always(d Directive) Policy {
	return composed{
		dead:   d.Action == ActionDeadLetter,
		decide: func(f Failure) Directive { return described(d, f) },
	}
}

// Advised obeys a handler's advice (With) and asks p where there is none. It
// may dead-letter, since a handler may advise it; without a description the
// copy gets the error's text.
func Advised(p Policy) Policy {
	must("Advised", p)
	return composed{
		dead: true,
		decide: func(f Failure) Directive {
			if d, ok := Advice(f.Err); ok {
				return described(d, f)
			}
			return p.Decide(f)
		},
	}
}

// DefaultAttempts is how often Default lets a delivery fail.
const DefaultAttempts = 5

// Default is the policy of a subscription that sets none: it obeys the
// handler's advice, dead-letters what doesn't decode, retries everything else
// with the default Backoff, and dead-letters after DefaultAttempts failures.
func Default() Policy { return DefaultWith(DefaultAttempts, Backoff{}) }

// DefaultWith is Default with other attempts and another backoff.
func DefaultWith(attempts int, b Backoff) Policy {
	return Advised(OnKind(Undecodable,
		Always(DeadLetter("undecodable", "")),
		Limit(attempts, DeadLetter("attempts exhausted", ""), b)))
}
