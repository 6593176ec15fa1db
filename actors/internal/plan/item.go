package plan

import (
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// State is where an item is.
type State uint8

// The states of an item.
const (
	// Queued: waits in its key's queue, or among the keyless.
	Queued State = iota
	// Lent: in a run of a lane; perhaps claimed, perhaps running.
	Lent
	// Deciding: failed; the policy is being asked.
	Deciding
	// Parked: waits for its retry's timer, its key with it.
	Parked
	// Copying: its dead-letter copy is being published.
	Copying
	// CopyWait: the copy failed; it is tried again when the timer fires.
	CopyWait
	// AbandonWait: waits for its timer before it is abandoned.
	AbandonWait
	// Abandoning: waits for the end of the epoch that gives it back.
	Abandoning
	// Pinned: stands still, its key with it, until Unpark.
	Pinned
	// Void: the lease of an earlier delivery of its group is lost, and that
	// one's handler still runs: it goes back when that has returned.
	Void
	// Stuck: like Lent, but its lane was replaced: it fences its key.
	Stuck
	// Fenced: keyless; an earlier copy of the same message still runs.
	Fenced
	// Gone: decided, or given back. The planner has forgotten it.
	Gone
)

var stateNames = [...]string{"queued", "lent", "deciding", "parked", "copying", "copy-wait", "abandon-wait", "abandoning", "pinned", "void", "stuck", "fenced", "gone"}

// String names the state.
func (s State) String() string { return stateNames[s] }

// Item is one held delivery. It is made by the pump, in slabs, with D and Key
// set; everything else is the planner's. There is one for each delivery, so what
// only a failed one needs is apart.
type Item struct {
	D   *transport.Delivery
	Key string // the dispatch key; "" keyless
	// Owner is whatever the router ties to the key; the lane reads it. The
	// planner doesn't.
	Owner any

	// Attempt is the number of the attempt that is lent next: 1 for the first.
	// The lane reads it.
	Attempt int

	k    *key // nil when keyless
	next *Item
	// older and newer link all held items in the order of arrival.
	older, newer *Item
	run          *Run
	arrived      int64
	*trouble     // nil until the first failure
	state        State
	lost         bool // the lease is gone
	ending       bool // the lease may be gone at any time, and nobody says so
	fenced       bool // it counts among what fences its key, or its copies
	alone        bool // in a batch: it runs alone, since one that it was in failed
}

// trouble is what only an item that failed needs.
type trouble struct {
	keyErr error // the key function panicked on it

	// FirstFailed is when it first failed here, 0 when it hasn't.
	FirstFailed int64
	mark        uint64 // the planner's successes at that time
	lane        int    // that ran it last
	due         int64  // its timer, while heapAt > 0
	// heapAt is its place in the timer heap, counted from 1; 0 when not there.
	heapAt int
	dir    supervision.Directive // that is being carried out
}

// inTrouble gives the rare half, made on demand.
func (it *Item) inTrouble() *trouble {
	if it.trouble == nil {
		it.trouble = &trouble{}
	}
	return it.trouble
}

// SetKeyErr says that the key function panicked: the lane reports the item as
// undecodable without a run. The pump calls it.
func (it *Item) SetKeyErr(err error) { it.inTrouble().keyErr = err }

// KeyErr gives what SetKeyErr was given. The lane calls it.
func (it *Item) KeyErr() error {
	if it.trouble == nil {
		return nil
	}
	return it.keyErr
}

// State says where the item is.
func (it *Item) State() State { return it.state }

// waits says that it waits for a timer, or for Unpark.
func (it *Item) waits() bool {
	switch it.state {
	case Parked, CopyWait, AbandonWait, Pinned:
		return true
	}
	return false
}

// Failed says whether an attempt has failed, as far as is known here.
func (it *Item) Failed() bool { return it.trouble != nil && it.FirstFailed != 0 }

// SameKey says whether it and o have to keep an order.
func (it *Item) SameKey(o *Item) bool { return it.k != nil && it.k == o.k }

// Lost says whether its lease is gone.
func (it *Item) Lost() bool { return it.lost }

// Due is when its timer fires, 0 without one.
func (it *Item) Due() int64 {
	if it.trouble == nil || it.heapAt == 0 {
		return 0
	}
	return it.due
}

// key is what the planner knows of one key.
type key struct {
	name       string
	lane       int   // ByKey: its lane. PerKey: the lane that it is lent to
	head, tail *Item // queued, in order
	n          int   // how many are queued
	lent       int   // how many are in runs
	// holder is the item that keeps the key from starting anything: it failed
	// and isn't decided yet.
	holder *Item
	// fences counts items whose lease is lost, or whose lane was replaced, while
	// their handler may still run: nothing of the key starts before they end.
	fences int
	pinned bool // parked by choice, until Unpark
	// prev and next link it into a ring of ready keys, or the list of cold ones.
	prev, next *key
	in         *ring
	void       int // how many successors go back when the fencing handler has returned
}

// barred says that nothing of the key may start, whatever is queued.
func (k *key) barred() bool { return k.holder != nil || k.fences > 0 || k.pinned }

// startable says that the key could start something, were a lane free.
func (k *key) startable() bool { return k.n > 0 && !k.barred() }

// idle says that the planner needs to know nothing of the key.
func (k *key) idle() bool { return k.n == 0 && k.lent == 0 && k.void == 0 && !k.barred() }

func (k *key) pushBack(it *Item) {
	it.next = nil
	if k.tail == nil {
		k.head = it
	} else {
		k.tail.next = it
	}
	k.tail = it
	k.n++
}

func (k *key) pushFront(it *Item) {
	it.next = k.head
	k.head = it
	if k.tail == nil {
		k.tail = it
	}
	k.n++
}

func (k *key) pop() *Item {
	it := k.head
	k.head = it.next
	if k.head == nil {
		k.tail = nil
	}
	it.next = nil
	k.n--
	return it
}

// remove takes it out of the middle of the queue, and says whether it was there.
func (k *key) remove(it *Item) bool {
	var before *Item
	for at := k.head; at != nil; before, at = at, at.next {
		if at != it {
			continue
		}
		if before == nil {
			k.head = at.next
		} else {
			before.next = at.next
		}
		if k.tail == at {
			k.tail = before
		}
		at.next = nil
		k.n--
		return true
	}
	return false
}

// ring is a list of keys that take turns: the front is next.
type ring struct {
	head, tail *key
	n          int
}

func (r *ring) pushBack(k *key) {
	k.in, k.prev, k.next = r, r.tail, nil
	if r.tail == nil {
		r.head = k
	} else {
		r.tail.next = k
	}
	r.tail = k
	r.n++
}

// toFront makes k the next to have its turn.
func (r *ring) toFront(k *key) {
	if r.head == k {
		return
	}
	r.remove(k)
	k.in, k.next = r, r.head
	if r.head == nil {
		r.tail = k
	} else {
		r.head.prev = k
	}
	r.head = k
	r.n++
}

func (r *ring) remove(k *key) {
	if k.prev == nil {
		r.head = k.next
	} else {
		k.prev.next = k.next
	}
	if k.next == nil {
		r.tail = k.prev
	} else {
		k.next.prev = k.prev
	}
	k.in, k.prev, k.next = nil, nil, nil
	r.n--
}
