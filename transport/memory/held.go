package memory

import (
	"sync/atomic"

	"github.com/keylanes/keylanes/transport"
)

// The states of a hand-out. Each change is one compare-and-swap, so exactly one
// of Settle, the end of the epoch and a lapsing lease ends it.
const (
	// isHeld: handed out, nothing was said about it yet.
	isHeld uint32 = iota
	// lapsed: the broker took it back at its deadline, and has told nobody.
	lapsed
	// settling: Settle has it. The broker hasn't confirmed yet.
	settling
	// failed: over for the client, while the broker may still hold it: its
	// settlement failed for good, its lease couldn't be extended, or the reply
	// that it was in was lost.
	failed
	// done: settled.
	done
	// lost: the broker took it back, and the client knows.
	lost
)

// held is one hand-out: the handle of its delivery. It is small, and holds few
// pointers, since there is one for each delivery.
type held struct {
	// e is cleared by a fast accept, so that a kept delivery pins no other
	// message. So it may be read by whoever changed the state from isHeld, or,
	// with Queue.mu, while the state is settling or failed, which a fast accept
	// never touches. With Queue.mu it is cleared once it was settled.
	e     *entry
	d     *transport.Delivery
	state atomic.Uint32
	turn  uint32 // e's, of this hand-out
	// applied: the broker has done what was settled, and maybe its reply was
	// lost. Queue.mu guards it.
	applied bool
}

// slab is an allocation of hand-outs.
type slab struct {
	items  [chunkSize]held
	leases []transport.Lease // where each has a lease of its own
	n      int
}

// live reports whether any of the hand-outs isn't over. Queue.mu is held.
func (s *slab) live() bool {
	for i := range s.n {
		h := &s.items[i]
		switch h.state.Load() {
		case isHeld, lapsed, settling:
			return true
		case failed:
			if h.out() {
				return true
			}
		}
	}
	return false
}

// out reports whether the broker still holds the message for h, whose state is
// settling or failed. Queue.mu is held.
func (h *held) out() bool { return h.e != nil && h.e.place == out && h.e.turn == h.turn }
