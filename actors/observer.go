package actors

import (
	"fmt"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// Observer sees each step of each delivery, for metrics and tests. It is off
// the event stream, since it is called for every delivery.
type Observer interface {
	// Observe is called once for each step.
	//   - From many goroutines at once: lanes, the router, the pump, and
	//     whatever goroutine a transport settles on.
	//   - It must return at once: a slow one slows its lane, and the router.
	//   - It must not change the delivery. A panic in it is logged and ignored.
	Observe(o Observation)
}

// ObserverFunc is a function as an Observer.
type ObserverFunc func(o Observation)

// Observe calls f.
func (f ObserverFunc) Observe(o Observation) { f(o) }

// ObservationKind says which step it was.
type ObservationKind uint8

// The steps.
const (
	_ ObservationKind = iota
	// ObserveReceived: the broker handed it out.
	ObserveReceived
	// ObserveStarted: an attempt begins. On the lane.
	ObserveStarted
	// ObserveSucceeded: the handler returned nil, the accept is on its way.
	ObserveSucceeded
	// ObserveFailed: the attempt failed; the policy decides. On the router.
	ObserveFailed
	// ObserveParked: it waits for its retry; Took is how long.
	ObserveParked
	// ObserveDeadLettered: its copy is confirmed, or its reject on its way.
	ObserveDeadLettered
	// ObserveAcceptedAnyway: accepted although it failed.
	ObserveAcceptedAnyway
	// ObserveAbandoned: given back as failed.
	ObserveAbandoned
	// ObserveReturned: given back unstarted, before the epoch's end.
	ObserveReturned
	// ObserveLost: its lease is gone.
	ObserveLost
	// ObserveSettled: its settlement has left, or is confirmed where the broker
	// confirms.
	ObserveSettled
	// ObserveSettleFailed: its settlement failed: it may come again.
	ObserveSettleFailed
	// ObserveLaneRestarted: its failure gave the lane a new incarnation.
	ObserveLaneRestarted
)

var observationNames = [...]string{"none", "received", "started", "succeeded", "failed", "parked", "dead-lettered",
	"accepted-anyway", "abandoned", "returned", "lost", "settled", "settle-failed", "lane-restarted"}

// String names the step.
func (k ObservationKind) String() string {
	if int(k) < len(observationNames) {
		return observationNames[k]
	}
	return fmt.Sprintf("observation(%d)", uint8(k))
}

// Observation is one step of one delivery.
type Observation struct {
	Kind     ObservationKind
	Delivery *transport.Delivery
	Lane     int           // -1 where no lane has part in it
	Attempt  int           // 1 for the first; 0 where there is none
	Took     time.Duration // of a succeeded or failed attempt; see ObserveParked
	Err      error
	Reason   string // of a dead letter
}
