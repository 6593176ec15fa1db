package plan

import (
	"sync/atomic"
)

// MaxRun is how many deliveries a run holds at most.
const MaxRun = 32

// Verdict is how the last claimed item of a run ended.
type Verdict uint8

// The verdicts. Every claimed item before the last one succeeded: a lane ends
// its run at the first item that didn't.
const (
	// VerdictOK: it succeeded, and its accept was handed to the receiver.
	VerdictOK Verdict = iota
	// VerdictFailed: the attempt failed; the policy decides.
	VerdictFailed
	// VerdictLapsed: its lease wasn't live, so it wasn't started.
	VerdictLapsed
	// VerdictRefused: it ran, but its lease was lost meanwhile: whatever it
	// returned isn't settled.
	VerdictRefused
	// VerdictGaveUp: it failed after it was told to give up, since its epoch ends
	// or the subscription stops: no attempt is counted.
	VerdictGaveUp
	// VerdictHeld, in a batch: an earlier element of its key wasn't accepted.
	VerdictHeld
	// VerdictSplit, in a batch: the batch failed as a whole. It is tried again
	// alone, and no attempt is counted.
	VerdictSplit
)

// Run is a slice of deliveries lent to a lane.
type Run struct {
	Lane  int
	Gen   uint32 // the lane's generation that may execute it
	N     int
	Items []*Item
	Batch bool // it is claimed as a whole, with ClaimAll

	// word is the claim word: claimed in the low half, limit in the high half.
	// Items below claimed are the lane's; those from claimed to limit are
	// nobody's yet; those from limit on are the planner's again.
	word atomic.Uint64

	// Written by the lane before it reports the run, read by the planner after.
	Finished int       // how many claimed items have ended
	Verdict  Verdict   // of the last of them; meaningless when Finished is 0
	Results  []Verdict // instead, in a batch: of each item that was claimed

	// firstBad is the first of Results that isn't VerdictOK.
	firstBad int

	acc int // planner's: items before it are accounted for
	top int // planner's: items from it on were taken back
	// shared: something in it could run on another lane too. The planner's.
	shared bool
}

const half = 32

// open makes the run's n items claimable.
func (r *Run) open() {
	r.acc, r.top, r.Finished, r.Verdict = 0, r.N, 0, VerdictOK
	r.word.Store(uint64(r.N) << half)
}

// Claim takes the next item for the lane. Only the lane's runner calls it.
func (r *Run) Claim() (int, bool) {
	for {
		w := r.word.Load()
		c, l := uint32(w), uint32(w>>half)
		if c >= l {
			return 0, false
		}
		if r.word.CompareAndSwap(w, uint64(l)<<half|uint64(c+1)) {
			return int(c), true
		}
	}
}

// ClaimAll takes everything for the lane, and says how much that is; so far it all
// has succeeded. Only the lane's runner calls it, once, instead of Claim.
func (r *Run) ClaimAll() int {
	for {
		w := r.word.Load()
		c, l := uint32(w), uint32(w>>half)
		if c >= l {
			return 0
		}
		if r.word.CompareAndSwap(w, uint64(l)<<half|uint64(l)) {
			r.Finished, r.firstBad = int(l), int(l)
			clear(r.Results[:l])
			return int(l)
		}
	}
}

// Mark notes that item i of a batch didn't succeed, and how it ended. The lane's.
func (r *Run) Mark(i int, v Verdict) {
	r.Results[i] = v
	r.firstBad = min(r.firstBad, i)
}

// HeldBack is the prefix rule of a batch: an earlier element of item i's key isn't
// accepted, as far as Results say yet. The lane's.
func (r *Run) HeldBack(i int) bool {
	for j := r.firstBad; j < i; j++ {
		if r.Results[j] != VerdictOK && r.Items[j].SameKey(r.Items[i]) {
			return true
		}
	}
	return false
}

// Succeeded is how many items of a reported run succeeded.
func (r *Run) Succeeded() int {
	switch {
	case r.Batch:
		n := 0
		for _, v := range r.Results[:r.Finished] {
			if v == VerdictOK {
				n++
			}
		}
		return n
	case r.Finished > 0 && r.Verdict != VerdictOK:
		return r.Finished - 1
	default:
		return r.Finished
	}
}

// Claw closes the run behind what is claimed, and says how many are. The
// planner calls it to take the rest back; the lane calls it when it ends a run
// early. Whoever comes first wins; nothing can be claimed afterwards.
//
// An order-keeping claw-back has to be this suffix: if A1 were taken back and A2
// left, the lane could start A2 before A1.
func (r *Run) Claw() int {
	for {
		w := r.word.Load()
		c, l := uint32(w), uint32(w>>half)
		if c >= l || r.word.CompareAndSwap(w, uint64(c)<<half|uint64(c)) {
			return int(c)
		}
	}
}

// Claimed says how many items the lane has claimed so far. Any goroutine.
func (r *Run) Claimed() int { return int(uint32(r.word.Load())) }

// unclaimed says how many items the lane could still claim.
func (r *Run) unclaimed() int {
	w := r.word.Load()
	return int(uint32(w>>half)) - int(uint32(w))
}
