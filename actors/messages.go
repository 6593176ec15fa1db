package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/transport"
)

// Messages that a subscription actor understands. Send pointers.
type (
	// Pause lets nothing start and grants nothing more; running handlers
	// finish, and what is held stays held, its leases kept. Where the broker
	// pushes (AMQP), what was granted before may still come, and is held too; a
	// lost link is seen, and replaced, during the pause. Where it is polled
	// (SQS) nothing more is received. Answered with *Done when it was a request.
	Pause struct{}
	// Resume ends a pause. Answered with *Done when it was a request.
	Resume struct{}
	// GetStats is answered with *Stats.
	GetStats struct{}
	// Unpark lets a parked key go on: its head is tried again now or, with
	// Skip, accepted although it failed. Under Sequential, Key is ignored.
	// Answered with *Done, whose Err is ErrNotParked when there was nothing to
	// do, when it was a request.
	Unpark struct {
		Key  string
		Skip bool
	}
	// DrainMessage stops the subscription gracefully: intake ends, running
	// handlers finish, or are cancelled after StopTimeout, what is done is
	// settled, the rest goes back. Answered with *Done; then the actor stops.
	// The function Drain sends it and waits.
	DrainMessage struct{}
	// Done answers a request.
	Done struct {
		Err error
		// failed: the subscription fails to its parent, which may restart it, so
		// its end needn't follow.
		failed bool
	}
)

// Errors of a subscription.
var (
	// ErrNotParked: Unpark named a key that isn't parked.
	ErrNotParked = errors.New("the key isn't parked")
	// ErrHandlerStuck: a handler ignores its cancelled context; see StuckError.
	ErrHandlerStuck = errors.New("a handler ignores its cancelled context")
	// ErrNotRunning: the subscription actor has stopped.
	ErrNotRunning = errors.New("the subscription isn't running")
)

// StuckError says which handlers had not returned when the subscription stopped.
// Nothing else is left of it. Their messages went back to the broker.
type StuckError struct {
	Deliveries []*transport.Delivery
}

// Error lists them.
func (e *StuckError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %d still running:", ErrHandlerStuck, len(e.Deliveries))
	for i, d := range e.Deliveries {
		if i == 3 {
			b.WriteString(" …")
			break
		}
		fmt.Fprintf(&b, " [%v]", d)
	}
	return b.String()
}

// Is makes it an ErrHandlerStuck.
func (e *StuckError) Is(target error) bool { return target == ErrHandlerStuck }

// StartError is the reason with which a subscription fails to its parent when it
// can't be started: no queue, no permission, a wrong password.
type StartError struct {
	Name string
	Err  error
}

// Error names the subscription and the cause.
func (e *StartError) Error() string {
	return fmt.Sprintf("subscription %q can't start: %v", e.Name, e.Err)
}

// Unwrap gives the cause.
func (e *StartError) Unwrap() error { return e.Err }

// EscalatedError is the reason with which a subscription fails to its parent
// because the policy said so. It was made safe first: nothing runs, and the
// message is back at the broker.
type EscalatedError struct {
	Name string
	Err  error // the handler's
	ID   string
	Key  string
}

// Error names the subscription, the message and the cause.
func (e *EscalatedError) Error() string {
	return fmt.Sprintf("subscription %q escalates the failure of message id=%q key=%q: %v", e.Name, e.ID, e.Key, e.Err)
}

// Unwrap gives the handler's error.
func (e *EscalatedError) Unwrap() error { return e.Err }

// CrashError is the reason with which a subscription fails to its parent when
// its pump or router has crashed. It was made safe first.
type CrashError struct {
	Name   string
	Part   string // "pump", "router", "lane 3"
	Reason any
}

// Error names the subscription, the part and the reason.
func (e *CrashError) Error() string {
	return fmt.Sprintf("subscription %q: its %s crashed: %v", e.Name, e.Part, e.Reason)
}

// Unwrap gives the reason where it is an error.
func (e *CrashError) Unwrap() error {
	err, _ := e.Reason.(error)
	return err
}

// State says what a subscription is doing.
type State uint8

// The states.
const (
	// StateStarting: it attaches to its queue for the first time.
	StateStarting State = iota
	// StateFlowing: it is attached.
	StateFlowing
	// StateDetached: it lost its link, and attaches again.
	StateDetached
	// StatePaused: it is attached, and paused.
	StatePaused
	// StateDraining: it is on its way to a stop.
	StateDraining
	// StateStopped: it has stopped, or is failing to its parent.
	StateStopped
)

var stateNames = [...]string{"starting", "flowing", "detached", "paused", "draining", "stopped"}

// String names the state.
func (s State) String() string { return stateNames[s] }

// Stats is what a subscription counts. Counts start at the spawn, or the last
// restart of the subscription actor.
type Stats struct {
	Name  string
	State State
	// NotReady says why the subscription isn't ready; nil when it is attached,
	// not paused, not draining and not blocked.
	NotReady error

	Epoch    uint64 // of the current receiver, 1 for the first
	Held     int    // received, and not settled yet
	Queued   int    // waits for a lane, or for its key
	Runnable int    // of Queued, what waits for a lane only
	Running  int    // lanes at work
	Parked   int    // waits for a retry, or for Unpark
	Copying  int    // dead-letter copies on their way
	Stuck    int    // handlers that ignore their cancelled context
	Keys     int    // keys with anything held
	KeyLanes int    // keys with a handler or an actor of their own

	Received, Succeeded, Failed, DeadLettered, Abandoned, Settled, SettleFailed, Lost, LaneRestarts uint64
	// OverDelivered counts what a broker handed out beyond the grant.
	OverDelivered uint64
	// OldestHeld is the age, since it was received, of the oldest delivery held.
	OldestHeld time.Duration
	// BlockedKey is the key that holds most while the subscription is blocked.
	BlockedKey string
	Blocked    bool
	// Outage: nothing succeeds, lanes only probe.
	Outage bool
	// Depth is how much waits on the broker, as of the last time it could be
	// asked; -1 when unknown.
	Depth int64
}

// EventKind says what happened.
type EventKind uint8

// The kinds of lifecycle event.
const (
	_ EventKind = iota
	// EventAttached: a receiver is open; Epoch is its number.
	EventAttached
	// EventDetached: the receiver is gone; Err says why. After Wait it attaches
	// again.
	EventDetached
	// EventAttachFailed: Open failed, it is tried again after Wait.
	EventAttachFailed
	// EventPaused and EventResumed follow Pause and Resume.
	EventPaused
	EventResumed
	// EventDraining: a drain begins.
	EventDraining
	// EventStopped: nothing of it runs any more; Err is nil after a clean drain.
	EventStopped
	// EventLaneRestarted: Lane has a new incarnation; Err is why.
	EventLaneRestarted
	// EventHandlerStuck: a handler ignores its cancelled context; its Lane was
	// replaced, its Key is fenced.
	EventHandlerStuck
	// EventKeyParked: Key stands still until Unpark; Err is why.
	EventKeyParked
	// EventDeadLettered: a message was dead-lettered; Reason says why.
	EventDeadLettered
	// EventDeadLetterFailed: a copy failed, it is tried again.
	EventDeadLetterFailed
	// EventWaitsForEvidence: a message's attempts are exhausted, but nothing
	// else has succeeded: it isn't dead-lettered yet. At most one in 10 s.
	EventWaitsForEvidence
	// EventOutageBegan and EventOutageEnded: nothing succeeds, lanes only probe.
	EventOutageBegan
	EventOutageEnded
	// EventBlocked and EventUnblocked: the credit is exhausted and nothing is
	// runnable; Key holds most.
	EventBlocked
	EventUnblocked
	// EventOverDelivered: the broker sent more than it was granted.
	EventOverDelivered
)

var eventNames = [...]string{"none", "attached", "detached", "attach failed", "paused", "resumed", "draining", "stopped",
	"lane restarted", "handler stuck", "key parked", "dead-lettered", "dead-letter failed", "waits for evidence",
	"outage began", "outage ended", "blocked", "unblocked", "over-delivered"}

// String names the kind.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return fmt.Sprintf("event(%d)", uint8(k))
}

// Event is what a subscription publishes on its actor system's event stream when
// its state changes. Subscribers run on the subscription's goroutines: they must
// return at once.
type Event struct {
	Kind         EventKind
	Subscription *actor.PID
	Name         string
	Epoch        uint64
	Lane         int // -1 where no lane has part in it
	Key, ID      string
	Reason       string
	Err          error
	Wait         time.Duration
	Count        int
}

// LogValue lists what is set.
func (e *Event) LogValue() slog.Value {
	as := []slog.Attr{slog.String("event", e.Kind.String()), slog.String("subscription", e.Name)}
	if e.Epoch != 0 {
		as = append(as, slog.Uint64("epoch", e.Epoch))
	}
	if e.Lane >= 0 {
		as = append(as, slog.Int("lane", e.Lane))
	}
	if e.Key != "" {
		as = append(as, slog.String("key", e.Key))
	}
	if e.ID != "" {
		as = append(as, slog.String("id", e.ID))
	}
	if e.Reason != "" {
		as = append(as, slog.String("reason", e.Reason))
	}
	if e.Err != nil {
		as = append(as, slog.String("error", e.Err.Error()))
	}
	if e.Wait != 0 {
		as = append(as, slog.Duration("wait", e.Wait))
	}
	if e.Count != 0 {
		as = append(as, slog.Int("count", e.Count))
	}
	return slog.GroupValue(as...)
}
