// Package plan is the router's knowledge as a pure state machine: what each key
// has queued, running, parked or void, who may start, what goes back in which
// order, and which timer is live. An event and a time go in, effects come out in
// a reused buffer. There is no goroutine, clock, actor, broker or user code in
// here; randomness and the policy's directives are part of the events. So a
// simulation can drive it through millions of interleavings and check every
// promise after each step, and the code that meets goroutines stays small.
//
// The one thing that it shares with other goroutines is a Run's claim word: a
// lane claims from the front of a run while the planner claws the unclaimed rest
// back, and a compare-and-swap on that word decides who gets what.
//
// Who may touch what: a Planner and everything it points to belongs to one
// goroutine, the router's. While an item is lent, the lane may read it. A Run's
// result fields belong to the lane from the lend to the report.
package plan
