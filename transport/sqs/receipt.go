package sqs

import (
	"time"

	"github.com/keylanes/keylanes/transport"
)

// receipt is the transport's side of one delivery. Everything that changes in
// it is guarded by its receiver's mutex.
type receipt struct {
	owner  *receiver
	d      *transport.Delivery
	lease  *transport.Lease
	handle string
	group  string    // the order that a change of visibility keeps; "" on standard queues
	taken  time.Time // before the receive was sent: the 12 hours begin no earlier

	state   state
	outcome transport.Outcome // once settled

	// The extension under way, if any.
	extension extension
	until     time.Time // what the tree asked for last
	asked     time.Time // what the call in flight asks for; its goroutine's
	granted   time.Time // the deadline when that call succeeds; its goroutine's
	capped    bool      // the 12 hours are used up: the lease runs out as it is

	// The call under way. A receipt is in one batcher at most, except that an
	// extension that isn't being sent is dropped when it is settled.
	tries     int       // calls of this settlement that failed
	unsure    bool      // one of them may have been carried out all the same
	notBefore time.Time // of its next call
	queued    time.Time // when it was added to its batcher

	prev, next *receipt // in the held list
}

// state is a receipt's life.
type state uint8

const (
	stateFetched state = iota // received, not handed out yet
	stateHeld                 // handed out
	stateSettled              // Settle was called
	stateOver                 // settled for good, or lost
)

// extension says where a receipt's extension is.
type extension uint8

const (
	extNone   extension = iota
	extQueued           // in the extender's queue: may be dropped
	extFlying           // in a call: a settlement must wait for its reply
)

// heldList holds what was received and isn't over, in the order of receipt. It
// is a list so that settling in any order costs the same.
type heldList struct {
	first, last *receipt
	n           int
}

func (l *heldList) add(r *receipt) {
	r.prev, r.next = l.last, nil
	if l.last != nil {
		l.last.next = r
	} else {
		l.first = r
	}
	l.last = r
	l.n++
}

func (l *heldList) remove(r *receipt) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		l.first = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		l.last = r.prev
	}
	r.prev, r.next = nil, nil
	l.n--
}
