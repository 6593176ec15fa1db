// Package supervision decides what follows a failed attempt. A Policy is a pure
// function from a Failure to a Directive: no goroutine, no clock, no random
// source of its own, so it is tested with a table. The router asks it and
// carries the directive out.
package supervision

import (
	"errors"
	"fmt"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// Kind says how an attempt failed.
type Kind uint8

// The kinds of failure.
const (
	// Returned: the handler returned an error.
	Returned Kind = iota
	// Panicked: the handler panicked, or called runtime.Goexit.
	Panicked
	// TimedOut: the handler returned an error after its timeout had passed, or
	// after it was told that its lease can't be extended any more (then Err is
	// transport.ErrLeaseEnding too).
	TimedOut
	// Undecodable: the payload didn't decode (transport.DecodeError), or the
	// key function panicked on it.
	Undecodable
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case Returned:
		return "returned"
	case Panicked:
		return "panicked"
	case TimedOut:
		return "timed out"
	case Undecodable:
		return "undecodable"
	default:
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
}

// Failure is one failed attempt.
type Failure struct {
	Err     error // what the handler returned; for a panic, a *PanicError
	Kind    Kind
	Message *transport.Message // read only
	// Attempt counts failed runs of this message seen by this subscription,
	// this one included: 1 for the first. Lost links don't count.
	Attempt int
	// BrokerCount is the broker's count of earlier hand-outs, -1 when unknown.
	// Lost links raise it too: it never shows that a message failed.
	BrokerCount int
	// FirstFailedAt is when this subscription first saw it fail.
	FirstFailedAt, Now time.Time
	// Rand is uniform over all its values, for jitter.
	Rand uint64
}

// PanicError is a panic of the handler, or a Goexit, as an error.
type PanicError struct {
	Value any    // what was panicked with; nil for Goexit
	Stack []byte // of the goroutine that panicked
	// Goexit is true when the handler called runtime.Goexit, as t.FailNow does.
	Goexit bool
}

// Error says what was panicked with, without the stack.
func (e *PanicError) Error() string {
	if e.Goexit {
		return "the handler called runtime.Goexit"
	}
	return fmt.Sprintf("the handler panicked: %v", e.Value)
}

// Unwrap gives the panic's value where it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Action is what a directive orders.
type Action uint8

// The actions. The zero action is none: a policy that returns it is treated as
// one that failed, and the delivery is retried.
const (
	_ Action = iota
	// ActionRetry runs the delivery again in place, its key parked meanwhile.
	ActionRetry
	// ActionAbandon gives it back to the broker as failed.
	ActionAbandon
	// ActionDeadLetter copies it to the dead-letter target, then accepts it.
	ActionDeadLetter
	// ActionAccept accepts it although it failed.
	ActionAccept
	// ActionStop stops the subscription.
	ActionStop
	// ActionEscalate fails the subscription to its parent actor.
	ActionEscalate
)

// String names the action.
func (a Action) String() string {
	names := [...]string{"none", "retry", "abandon", "dead-letter", "accept", "stop", "escalate"}
	if int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("action(%d)", uint8(a))
}

// Directive is what follows a failure.
type Directive struct {
	Action Action
	// After delays a retry or an abandon. For an exhausted dead-letter it is
	// the delay of the retries that go on until there is evidence.
	After time.Duration
	// Uncounted: this failure doesn't raise the attempt.
	Uncounted bool
	// Reason is a short, stable word for headers and metrics; Description is
	// for people.
	Reason, Description string
	// Exhausted: a dead-letter because attempts ran out, not because of what
	// the message is. It waits until something else of the subscription has
	// succeeded since this delivery first failed, or Options.OutageAfter has
	// passed: an outage is not poison.
	Exhausted bool
	// RestartLane gives the lane fresh state. A panic does so anyway.
	RestartLane bool
	// Park keeps the key parked after the directive is done, until Unpark.
	Park bool
}

// Retry runs the delivery again in place after at least d.
func Retry(d time.Duration) Directive { return Directive{Action: ActionRetry, After: d} }

// RetryUncounted is Retry without raising the attempt.
func RetryUncounted(d time.Duration) Directive {
	return Directive{Action: ActionRetry, After: d, Uncounted: true}
}

// Abandon gives the delivery back to the broker as failed, for another host.
// The delay is honoured where the broker can.
func Abandon(d time.Duration) Directive { return Directive{Action: ActionAbandon, After: d} }

// DeadLetter copies the message to the dead-letter target with reason and
// description, then accepts it.
func DeadLetter(reason, description string) Directive {
	return Directive{Action: ActionDeadLetter, Reason: reason, Description: description}
}

// AcceptAnyway accepts the delivery although it failed.
func AcceptAnyway() Directive { return Directive{Action: ActionAccept} }

// StopSubscription stops the subscription; the delivery goes back.
func StopSubscription() Directive { return Directive{Action: ActionStop} }

// Escalate fails the subscription to its parent actor, whose strategy decides;
// the delivery goes back.
func Escalate() Directive { return Directive{Action: ActionEscalate} }

type advice struct {
	err error
	d   Directive
}

func (a *advice) Error() string { return a.err.Error() }
func (a *advice) Unwrap() error { return a.err }

// With attaches a handler's advice to its error. Default obeys it; other
// policies do when they are made with Advised. With(nil, d) is an error too:
// a handler that wants d to happen has failed.
func With(err error, d Directive) error {
	if err == nil {
		err = fmt.Errorf("the handler asked to %s", d.Action)
	}
	return &advice{err: err, d: d}
}

// Advice gives the directive that With attached to err.
func Advice(err error) (Directive, bool) {
	var a *advice
	if errors.As(err, &a) && a.d.Action != 0 {
		return a.d, true
	}
	return Directive{}, false
}
