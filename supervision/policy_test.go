package supervision

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

var errBoom = errors.New("boom")

// busyError and closedError are two error types for On.
type busyError struct{ host string }

func (e *busyError) Error() string { return e.host + " is busy" }

type closedError struct{}

func (closedError) Error() string { return "closed" }

// silent doesn't say whether it may dead-letter.
var silent = PolicyFunc(func(Failure) Directive { return AcceptAnyway() })

// exhausted is what Limit makes of DeadLetter(reason, description).
func exhausted(reason, description string, after time.Duration) Directive {
	return Directive{Action: ActionDeadLetter, Reason: reason, Description: description, Exhausted: true, After: after}
}

func failure(attempt int) Failure { return Failure{Err: errBoom, Attempt: attempt, BrokerCount: -1} }

func (f Failure) of(k Kind) Failure         { f.Kind = k; return f }
func (f Failure) with(err error) Failure    { f.Err = err; return f }
func (f Failure) brokerCount(n int) Failure { f.BrokerCount = n; return f }

func TestDecide(t *testing.T) {
	t.Parallel()
	const s = time.Second
	retry := Always(Retry(s))
	dead := DeadLetter("too often", "")
	for _, c := range []struct {
		name string
		p    Policy
		f    Failure
		want Directive
	}{
		{"PolicyFunc", silent, failure(1), AcceptAnyway()},
		{"Always", retry, failure(1), Retry(s)},
		{"Always dead-letters with the error's text", Always(dead), failure(1), DeadLetter("too often", "boom")},
		{"Always keeps a description", Always(DeadLetter("r", "mine")), failure(1), DeadLetter("r", "mine")},
		{"Always without an error", Always(dead), failure(1).with(nil), dead},
		{"Always keeps flags", Always(Directive{Action: ActionAccept, Park: true, RestartLane: true}), failure(1),
			Directive{Action: ActionAccept, Park: true, RestartLane: true}},
		{"RetryForever", RetryForever(Backoff{Min: s, Factor: 1}), failure(1 << 20), Retry(s / 2)},
		{"RetryForever keeps what doesn't decode", RetryForever(Backoff{Min: s, Factor: 1}), failure(1).of(Undecodable), Retry(s / 2)},

		{"Limit, below", Limit(3, dead, retry), failure(2), Retry(s)},
		{"Limit, reached", Limit(3, dead, retry), failure(3), exhausted("too often", "boom", s)},
		{"Limit, beyond: retries of an outage go on from here", Limit(3, dead, retry), failure(4), exhausted("too often", "boom", s)},
		{"Limit 1", Limit(1, dead, retry), failure(1), exhausted("too often", "boom", s)},
		{"Limit 0 counts as 1", Limit(0, dead, retry), failure(1), exhausted("too often", "boom", s)},
		{"Limit below zero counts as 1", Limit(math.MinInt, dead, retry), failure(1), exhausted("too often", "boom", s)},
		{"Limit keeps a description", Limit(1, DeadLetter("r", "mine"), retry), failure(1), exhausted("r", "mine", s)},
		{"Limit without an error", Limit(1, dead, retry), failure(1).with(nil), exhausted("too often", "", s)},
		{"Limit, then another action: not exhausted", Limit(1, Abandon(2*s), retry), failure(1), Abandon(2 * s)},
		{"Limit, uncounted retries don't exhaust", Limit(1, dead, Always(RetryUncounted(s))), failure(9), RetryUncounted(s)},
		{"Limit leaves another decision alone", Limit(1, dead, silent), failure(9), AcceptAnyway()},
		{"Limit leaves a dead-letter alone: not exhausted", Limit(1, dead, Always(DeadLetter("bad", "as such"))), failure(9), DeadLetter("bad", "as such")},
		{"Limit doesn't look at the broker's count", Limit(3, dead, retry), failure(1).brokerCount(1000), Retry(s)},
		{"CrashLimit, below", CrashLimit(3, dead, retry), failure(9).brokerCount(2), Retry(s)},
		{"CrashLimit, reached", CrashLimit(3, dead, retry), failure(1).brokerCount(3), exhausted("too often", "boom", s)},
		{"CrashLimit, unknown count", CrashLimit(1, dead, retry), failure(9), Retry(s)},
		{"CrashLimit 0 counts as 1: a first hand-out never crashed", CrashLimit(0, dead, retry), failure(1).brokerCount(0), Retry(s)},
		{"CrashLimit, uncounted retries don't exhaust", CrashLimit(3, dead, Always(RetryUncounted(s))), failure(1).brokerCount(3), RetryUncounted(s)},
		{"CrashLimit leaves another decision alone", CrashLimit(3, dead, silent), failure(1).brokerCount(3), AcceptAnyway()},
		{"CrashLimit, then another action", CrashLimit(3, Escalate(), retry), failure(1).brokerCount(3), Escalate()},
		{"Limit in Limit, below both", Limit(5, Escalate(), Limit(3, dead, retry)), failure(2), Retry(s)},
		{"Limit in Limit: the inner decides first", Limit(5, Escalate(), Limit(3, dead, retry)), failure(9), exhausted("too often", "boom", s)},

		{"On, a pointer type", On[*busyError](silent, retry), failure(1).with(&busyError{"db"}), AcceptAnyway()},
		{"On, a value type", On[closedError](silent, retry), failure(1).with(closedError{}), AcceptAnyway()},
		{"On, wrapped", On[*busyError](silent, retry), failure(1).with(fmt.Errorf("save: %w", &busyError{"db"})), AcceptAnyway()},
		{"On, joined", On[*busyError](silent, retry), failure(1).with(errors.Join(errBoom, &busyError{"db"})), AcceptAnyway()},
		{"On, under advice", On[*busyError](silent, retry), failure(1).with(With(&busyError{"db"}, Escalate())), AcceptAnyway()},
		{"On, panicked with", On[*busyError](silent, retry), failure(1).with(&PanicError{Value: &busyError{"db"}}), AcceptAnyway()},
		{"On, another error", On[*busyError](silent, retry), failure(1), Retry(s)},
		{"On, no error", On[*busyError](silent, retry), failure(1).with(nil), Retry(s)},
		{"On an interface", On[interface {
			error
			Timeout() bool
		}](silent, retry), failure(1), Retry(s)},

		{"OnKind, that kind", OnKind(TimedOut, silent, retry), failure(1).of(TimedOut), AcceptAnyway()},
		{"OnKind, another", OnKind(TimedOut, silent, retry), failure(1).of(Panicked), Retry(s)},

		{"Advised, with advice", Advised(retry), failure(1).with(With(errBoom, Escalate())), Escalate()},
		{"Advised, a dead-letter gets the error's text", Advised(retry), failure(1).with(With(errBoom, dead)), DeadLetter("too often", "boom")},
		{"Advised, without advice", Advised(retry), failure(1), Retry(s)},
		{"Advised, empty advice", Advised(retry), failure(1).with(With(errBoom, Directive{})), Retry(s)},
		{"without Advised advice is ignored", retry, failure(1).with(With(errBoom, Escalate())), Retry(s)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := c.p.Decide(c.f); got != c.want {
				t.Errorf("Decide = %+v, want %+v", got, c.want)
			}
			// Pure: the same failure, the same directive.
			if again := c.p.Decide(c.f); again != c.want {
				t.Errorf("the second Decide = %+v, want %+v", again, c.want)
			}
		})
	}
}

func TestDefault(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	undecodable := &transport.DecodeError{Err: errBoom}
	for _, c := range []struct {
		name string
		f    Failure
		want Directive
	}{
		{"first", failure(1), Retry(50 * ms)},
		{"a panic", failure(1).of(Panicked), Retry(50 * ms)},
		{"a timeout", failure(1).of(TimedOut), Retry(50 * ms)},
		{"the last retry", failure(DefaultAttempts - 1), Retry(50 * ms)},
		{"exhausted", failure(DefaultAttempts), exhausted("attempts exhausted", "boom", 50*ms)},
		{"exhausted by panics", failure(DefaultAttempts).of(Panicked), exhausted("attempts exhausted", "boom", 50*ms)},
		{"still exhausted during an outage", failure(1000), exhausted("attempts exhausted", "boom", 50*ms)},
		{"a broker's count never exhausts", failure(1).brokerCount(math.MaxInt), Retry(50 * ms)},
		{"undecodable: at once, needs no evidence", failure(1).of(Undecodable).with(undecodable), DeadLetter("undecodable", undecodable.Error())},
		{"advice", failure(1).with(With(errBoom, AcceptAnyway())), AcceptAnyway()},
		{"advice beats the limit", failure(99).with(With(errBoom, Retry(time.Hour))), Retry(time.Hour)},
		{"advice beats the kind", failure(1).of(Undecodable).with(With(undecodable, Abandon(0))), Abandon(0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := Default().Decide(c.f); got != c.want {
				t.Errorf("Decide = %+v, want %+v", got, c.want)
			}
		})
	}
}

// Five is documented, and brokers are configured around it.
func TestDefaultAttemptsIsFive(t *testing.T) {
	t.Parallel()
	if got := Default().Decide(failure(4)).Action; got != ActionRetry {
		t.Errorf("fourth failure: %v, want %v", got, ActionRetry)
	}
	if got := Default().Decide(failure(5)).Action; got != ActionDeadLetter {
		t.Errorf("fifth failure: %v, want %v", got, ActionDeadLetter)
	}
}

func TestDefaultWith(t *testing.T) {
	t.Parallel()
	p := DefaultWith(2, Backoff{Min: time.Second, Factor: 1})
	if got, want := p.Decide(failure(1)), Retry(time.Second/2); got != want {
		t.Errorf("first: %+v, want %+v", got, want)
	}
	if got, want := p.Decide(failure(2)), exhausted("attempts exhausted", "boom", time.Second/2); got != want {
		t.Errorf("second: %+v, want %+v", got, want)
	}
}

func TestMayDeadLetter(t *testing.T) {
	t.Parallel()
	retry, dead := Always(Retry(1)), Always(DeadLetter("bad", ""))
	for _, c := range []struct {
		name string
		p    Policy
		want bool
	}{
		{"a policy that doesn't say", silent, true},
		{"Backoff", Backoff{}, false},
		{"RetryForever", RetryForever(Backoff{}), false},
		{"Always, another action", retry, false},
		{"Always, a dead-letter", dead, true},
		{"Limit, then a dead-letter", Limit(3, DeadLetter("bad", ""), retry), true},
		{"Limit, then an abandon", Limit(3, Abandon(0), retry), false},
		{"CrashLimit, then a dead-letter", CrashLimit(3, DeadLetter("bad", ""), retry), true},
		{"CrashLimit, then an abandon", CrashLimit(3, Abandon(0), retry), false},
		{"CrashLimit of a policy that may", CrashLimit(3, Abandon(0), dead), true},
		{"Limit of a policy that may", Limit(3, Abandon(0), dead), true},
		{"Limit of a policy that doesn't say", Limit(3, Abandon(0), silent), true},
		{"On, neither", On[*busyError](retry, retry), false},
		{"On, the first", On[*busyError](dead, retry), true},
		{"On, the second", On[*busyError](retry, dead), true},
		{"OnKind, neither", OnKind(Panicked, retry, retry), false},
		{"OnKind, the first", OnKind(Panicked, dead, retry), true},
		{"OnKind, the second", OnKind(Panicked, retry, dead), true},
		{"Advised: the handler may ask for it", Advised(retry), true},
		{"Default", Default(), true},
		{"deeply nested, none", OnKind(Panicked, Limit(2, Escalate(), retry), On[*busyError](Backoff{}, retry)), false},
		{"deeply nested, one", OnKind(Panicked, Limit(2, Escalate(), retry), On[*busyError](Backoff{}, Limit(1, DeadLetter("r", ""), retry))), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := mayDeadLetter(c.p); got != c.want {
				t.Errorf("MayDeadLetter = %v, want %v", got, c.want)
			}
		})
	}
}

// A missing policy shows where the policy is built, not at the first failure.
func TestCombinatorsRefuseNil(t *testing.T) {
	t.Parallel()
	retry := Always(Retry(1))
	for name, build := range map[string]func() Policy{
		"CrashLimit":        func() Policy { return CrashLimit(1, Escalate(), nil) },
		"Limit":             func() Policy { return Limit(1, Escalate(), nil) },
		"On":                func() Policy { return On[*busyError](nil, retry) },
		"On, otherwise":     func() Policy { return On[*busyError](retry, nil) },
		"OnKind":            func() Policy { return OnKind(Panicked, nil, retry) },
		"OnKind, otherwise": func() Policy { return OnKind(Panicked, retry, nil) },
		"Advised":           func() Policy { return Advised(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				text, _ := recover().(string)
				combinator, _, _ := strings.Cut(name, ",")
				if !strings.HasPrefix(text, "supervision: "+combinator+": policy is nil") {
					t.Errorf("panic = %q, want one that names %s", text, combinator)
				}
			}()
			build()
		})
	}
}

// The policy runs on the router, once for each failure: a retry may cost the
// target of errors.As and nothing else.
func TestAllocDefaultRetry(t *testing.T) {
	p, f := Default(), failure(1)
	if n := testing.AllocsPerRun(100, func() { p.Decide(f) }); n > 1 {
		t.Errorf("%v allocations for a retry, want at most 1", n)
	}
}
