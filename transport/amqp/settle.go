package amqp

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/keylanes/keylanes/transport"
)

// held is the receiver's own handle on a delivery.
type held struct {
	r          *receiver
	id         uint32
	preSettled bool // the broker has forgotten it already
	settled    atomic.Bool
}

type settlement struct {
	d *transport.Delivery
	o transport.Outcome
	h *held
}

// settler queues outcomes from any goroutine and hands them to the wire's
// flusher, which writes them as ranges. go-amqp's own AcceptMessage costs four
// goroutine hops and a frame for each message, and blocks when the socket does.
//
// What bounds the queue is credit: a delivery is settled once.
type settler struct {
	sink transport.Sink
	poke func()

	mu      sync.Mutex
	queue   []settlement
	refusal error // set once: the epoch is over, nothing is taken any more

	// The flusher's.
	batch []settlement
	ids   []uint32
}

var (
	errSettledTwice = errors.New("the delivery was settled before")
	errForeign      = errors.New("the delivery is of another receiver")
	errNoOutcome    = errors.New("the outcome has no kind")
)

func lost(err error) error { return fmt.Errorf("%w: %w", transport.ErrLeaseLost, err) }

// add takes one outcome. It never blocks.
func (s *settler) add(e settlement) {
	s.mu.Lock()
	if err := s.refusal; err != nil {
		s.mu.Unlock()
		s.sink.Settled(e.d, e.o, lost(err))
		return
	}
	s.queue = append(s.queue, e)
	first := len(s.queue) == 1
	s.mu.Unlock()
	if first { // whoever added the first has woken the flusher
		s.poke()
	}
}

func (s *settler) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// stop refuses what comes from now on; what is queued is still written.
func (s *settler) stop(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusal == nil {
		s.refusal = err
	}
}

// refuse ends the epoch: what is queued and what comes from now on is reported
// as lost. What the flusher has taken is reported by the flusher.
func (s *settler) refuse(err error) {
	s.mu.Lock()
	if s.refusal == nil {
		s.refusal = err
	}
	q := s.queue
	s.queue = nil
	s.mu.Unlock()
	for _, e := range q {
		s.sink.Settled(e.d, e.o, lost(err))
	}
}

// gather is called by the flusher.
func (s *settler) gather(buf []byte) []byte {
	s.mu.Lock()
	s.batch, s.queue = s.queue, s.batch[:0]
	s.mu.Unlock()
	if len(s.batch) == 0 {
		return buf
	}
	s.ids = s.ids[:0]
	for i := range s.batch {
		e := &s.batch[i]
		switch {
		case e.h.preSettled || e.o.Kind == transport.Return:
		case e.o.Kind == transport.Accept:
			s.ids = append(s.ids, e.h.id)
		default:
			buf = appendDisposition(buf, e.h.id, e.h.id, e.o)
		}
	}
	return appendAccepts(buf, s.ids)
}

// appendAccepts appends the frames that accept ids, which it sorts and shifts.
// Delivery ids wrap around (RFC 1982): seen from half of their range below one of
// them, all that are held at once are in order.
func appendAccepts(buf []byte, ids []uint32) []byte {
	if len(ids) == 0 {
		return buf
	}
	base := ids[0] - 1<<31
	for i := range ids {
		ids[i] -= base
	}
	slices.Sort(ids)
	for i := 0; i < len(ids); {
		j := i + 1
		for j < len(ids) && ids[j] == ids[j-1]+1 {
			j++
		}
		buf = appendDisposition(buf, ids[i]+base, ids[j-1]+base, transport.Outcome{Kind: transport.Accept})
		i = j
	}
	return buf
}

// flushed is called by the flusher after each gather.
func (s *settler) flushed(err error) {
	if err != nil {
		s.refuse(err)
		err = lost(err)
	}
	for i := range s.batch {
		e := &s.batch[i]
		s.sink.Settled(e.d, e.o, err)
		*e = settlement{}
	}
	s.batch = s.batch[:0]
}

// appendDisposition appends the frame that settles the deliveries first to last.
func appendDisposition(buf []byte, first, last uint32, o transport.Outcome) []byte {
	buf, frame := appendFrame(buf)
	buf, list := appendList(buf, codeDisposition, 5)
	buf = append(buf, 0x41) // role: receiver
	buf = appendUint(buf, first)
	buf = appendUint(buf, last)
	buf = append(buf, 0x41) // settled
	switch o.Kind {
	case transport.Accept:
		buf = append(buf, 0x00, 0x53, codeAccepted, 0x45)
	case transport.Abandon: // modified{delivery-failed: true}
		buf = append(buf, 0x00, 0x53, 0x27, 0xc0, 2, 1, 0x41)
	case transport.Reject: // rejected{error{condition, description}}
		var rejected, e int
		buf, rejected = appendList(buf, 0x25, 1)
		buf, e = appendList(buf, 0x1d, 2)
		buf = appendString(buf, 0xa3, rejectCondition)
		buf = appendString(buf, 0xa1, rejectText(o))
		closeList(buf, e)
		closeList(buf, rejected)
	}
	closeList(buf, list)
	closeFrame(buf, frame)
	return buf
}

const (
	rejectCondition = "keylanes:rejected"
	rejectTextMax   = 200
)

// rejectText is cut so that the frame fits the smallest frame size that AMQP
// allows a broker to ask for, 512 bytes.
func rejectText(o transport.Outcome) string {
	s := o.Reason
	if o.Description != "" {
		s += ": " + o.Description
	}
	return cutString(s, rejectTextMax)
}

// appendString appends a symbol (0xa3) or string (0xa1) of at most 255 bytes.
func appendString(buf []byte, ctor byte, s string) []byte {
	return append(append(buf, ctor, byte(len(s))), s...)
}
