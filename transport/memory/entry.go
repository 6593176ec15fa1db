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

// entry is a stored message. Queue.mu guards it; the message in it doesn't change
// after the publish. It holds what every message has, in the order in which a
// receive reads it, since a full queue is a lot of cold memory: for the rest it
// points elsewhere.
type entry struct {
	place    place
	count    int32  // what the next Delivery.Count will be
	turn     uint32 // how often it was handed out: which hand-out it is out with
	seq      uint64 // the order of publishing
	enqueued int64  // broker clock
	id, key  string
	body     []byte
	props    *props // nil: it has none
	more     *more  // nil: it never had any
}

// props are what most messages don't have.
type props struct {
	contentType, correlationID, replyTo string
	headers                             map[string]any
}

// more is what only groups, leases, delays and TTLs need.
type more struct {
	sequence string // Delivery.Sequence, FIFO only
	expires  int64  // broker clock; 0: never
	rings    int64  // when the alarm rings, broker clock
	alarm    int    // place in Queue.alarms, plus 1; 0: none
	since    int64  // when the lease began, broker clock
	holder   *held  // the hand-out that it is out with, where leases lapse
	group    *group // FIFO only
}

// extra gives e's more, made if need be.
func (e *entry) extra() *more {
	if e.more == nil {
		e.more = &more{}
	}
	return e.more
}

// expires is when e's time to live is over; 0: never.
func (e *entry) expires() int64 {
	if e.more == nil {
		return 0
	}
	return e.more.expires
}

// message is what was published.
func (e *entry) message(b *Broker) transport.Message {
	m := transport.Message{ID: e.id, Key: e.key, Body: e.body, Enqueued: b.at(e.enqueued)}
	e.addProps(&m)
	return m
}

func (e *entry) addProps(m *transport.Message) {
	if p := e.props; p != nil {
		m.ContentType, m.CorrelationID, m.ReplyTo, m.Headers = p.contentType, p.correlationID, p.replyTo, p.headers
	}
}

// chunk is a piece of the log of published entries.
type chunk struct {
	items [chunkSize]entry
	more  []more // where every entry needs one
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
