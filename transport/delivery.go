package transport

import (
	"fmt"
	"log/slog"
	"time"
)

// Delivery is one hand-out of a message. It is never reused, so a handler may
// keep it (a kept one keeps the slab of at most 32 that it was allocated in).
// There is no way to settle it by hand: a handler's result settles it.
type Delivery struct {
	Message
	// Group is the broker's unit of order; Key may be finer. Empty when the
	// delivery belongs to none.
	Group string
	// Count is the broker's count of earlier hand-outs of this message, -1
	// when unknown. Brokers count lost links and returns too, each in its own
	// way: it says "probably seen before", never "failed n times".
	Count int
	// Epoch is the number of the receiver that handed it out. The transport sets
	// it: the same for all deliveries of a receiver, at least 1, and larger than
	// that of any earlier receiver of the same Source.
	Epoch uint64
	// Sequence is the broker's order within the group, for fencing in a
	// downstream store (the SQS FIFO sequence number). Empty when it has none.
	Sequence string

	lease  *Lease
	handle any
}

// LogValue keeps payloads and headers out of logs.
func (d *Delivery) LogValue() slog.Value {
	if d == nil {
		return slog.StringValue("<nil>")
	}
	return slog.GroupValue(slog.String("id", d.ID), slog.String("key", d.Key), slog.Int("count", d.Count),
		slog.Uint64("epoch", d.Epoch), slog.Int("bytes", len(d.Body)))
}

// String is what fmt prints: ids, never the payload.
func (d *Delivery) String() string {
	if d == nil {
		return "delivery <nil>"
	}
	return fmt.Sprintf("delivery id=%q key=%q count=%d epoch=%d (%d bytes)", d.ID, d.Key, d.Count, d.Epoch, len(d.Body))
}

// LeaseOf gives the lease that d lives by. For transports and the tree.
func LeaseOf(d *Delivery) *Lease { return d.lease }

// HandleOf gives the transport's own handle on d, as it was given to Slab.New:
// a receipt, a broker entry. For the transport that made d.
func HandleOf(d *Delivery) any { return d.handle }

// slabSize is how many deliveries share an allocation: 28 of them fit a size
// class of the allocator of which several share a span, which 32 do not.
const slabSize = 28

// Slab allocates deliveries, 32 at a time. The zero value is ready. It is for
// transports; one goroutine may use it at a time.
type Slab struct{ free []Delivery }

// New returns a zero delivery that lives by lease and carries the transport's
// handle. A nil lease is a programmer's error and panics.
func (s *Slab) New(lease *Lease, handle any) *Delivery {
	if lease == nil {
		panic("transport: Slab.New: lease is nil: give each delivery the lease that it lives by, transport.NewLease()")
	}
	if len(s.free) == 0 {
		s.free = make([]Delivery, slabSize)
	}
	d := &s.free[0]
	s.free = s.free[1:]
	d.lease, d.handle, d.Count = lease, handle, -1
	return d
}

// OutcomeKind says how a delivery is settled.
type OutcomeKind uint8

// The kinds of outcome. The zero kind is none of them: settling with it is an
// error, never an accept.
const (
	_ OutcomeKind = iota
	// Accept: done, the broker may forget the message.
	Accept
	// Abandon: not here and now; the broker counts it as a failed attempt and
	// hands it out again, after Outcome.Delay where Traits.AbandonDelay.
	Abandon
	// Return: not started here; the broker hands it out again, uncounted
	// where it can (Traits.CountsOnReturn says where it can't).
	Return
	// Reject: the broker's own dead-letter path (Traits.DeadLetter).
	Reject
)

// String names the kind.
func (k OutcomeKind) String() string {
	switch k {
	case Accept:
		return "accept"
	case Abandon:
		return "abandon"
	case Return:
		return "return"
	case Reject:
		return "reject"
	default:
		return fmt.Sprintf("outcome(%d)", uint8(k))
	}
}

// Outcome is how a delivery is settled, and why.
type Outcome struct {
	Kind OutcomeKind
	// Delay holds an abandoned message back at the broker, where
	// Traits.AbandonDelay. Zero means at once.
	Delay time.Duration
	// Reason and Description go with a Reject, where the broker keeps them.
	Reason, Description string
}
