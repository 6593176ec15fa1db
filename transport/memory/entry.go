package memory

import "github.com/keylanes/keylanes/transport"

// chunkSize is how many entries, and how many hand-outs, share an allocation.
// It bounds what a delivery that a handler keeps can pin.
const chunkSize = 32

// place is where a message is.
type place uint8

const (
	// waiting: held back until its time has come.
	waiting place = iota
	// ready: may be handed out.
	ready
	// out: handed out. On a queue with fast accepts an accepted message stays
	// out: nothing refers to it any more.
	out
	// gone: accepted, dead-lettered or expired.
	gone
)

// entry is a stored message. Queue.mu guards it; msg doesn't change after the
// publish.
type entry struct {
	msg      transport.Message
	sequence string // Delivery.Sequence, FIFO only
	seq      uint64 // the order of publishing
	count    int    // what the next Delivery.Count will be
	expires  int64  // broker clock; 0: never
	rings    int64  // when its alarm rings, broker clock
	alarm    int    // its place in Queue.alarms, plus 1; 0: none
	holder   *held  // the hand-out that it is out with
	group    *group // FIFO only
	place    place
}

// chunk is a piece of the log of published entries.
type chunk struct {
	items [chunkSize]entry
	n     int
	next  *chunk
}

// bySeq is a heap of entries, the one published first on top.
type bySeq []*entry

func (h *bySeq) push(e *entry) {
	s := append(*h, e)
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if s[up].seq <= e.seq {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = e
	*h = s
}

func (h *bySeq) pop() *entry {
	s := *h
	top, last := s[0], s[len(s)-1]
	s[len(s)-1] = nil
	s = s[:len(s)-1]
	*h = s
	if len(s) == 0 {
		return top
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(s) {
			break
		}
		if down+1 < len(s) && s[down+1].seq < s[down].seq {
			down++
		}
		if last.seq <= s[down].seq {
			break
		}
		s[i] = s[down]
		i = down
	}
	s[i] = last
	return top
}
