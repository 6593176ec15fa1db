package memory

import (
	"time"

	"github.com/keylanes/keylanes/transport"
)

// maxReceiveLimit bounds QueueOptions.MaxReceive.
const maxReceiveLimit = 10_000

// QueueOptions are a queue's options. The zero value, and nil, give the
// defaults: ordered, leases as long as their link, nothing dead-lettered.
type QueueOptions struct {
	// Lease is how long each delivery's own lease lasts unless it is extended.
	// Default 0: a lease has no deadline and lives as long as its receiver.
	Lease time.Duration
	// LeaseMax bounds a lease's whole life since its receive; an extension past
	// it is cut to it. Default 0: no bound. Needs Lease, and at least that.
	LeaseMax time.Duration
	// FIFO makes each key a group: a group is handed out up to its first
	// message that is out or held back. Messages without a key are in no group.
	FIFO bool
	// Shuffle hands out in random order. Not together with FIFO.
	Shuffle bool
	// Seed is the seed of Shuffle. Every value is fine, 0 too.
	Seed uint64
	// CountsOnReturn counts every hand-out in Delivery.Count.
	CountsOnReturn bool
	// CountsOnLoss raises the counts of what a lost link held.
	CountsOnLoss bool
	// MaxReceive bounds how many deliveries one Receive gives: 1 to 10000.
	// Default 64.
	MaxReceive int
	// Poll is how long a Receive waits before it returns empty. Default 0: it
	// waits until there is something.
	Poll time.Duration
	// MaxReceives moves a message to DeadLetter when its count has reached it
	// and it comes back. Default 0: never. Needs DeadLetter.
	MaxReceives int
	// DeadLetter takes what is rejected. Default nil: a Reject is refused, and
	// its message stays held. It must be a queue of the same broker.
	DeadLetter *Queue
	// Dedup is for how long a published ID is remembered: another message with
	// it is confirmed and dropped. Default 0: no deduplication.
	Dedup time.Duration
	// Fault decides how the broker replies. Default nil: everything works.
	Fault Fault
}

// check fills in the defaults and refuses what is out of bounds.
func (o *QueueOptions) check(b *Broker) error {
	if o.MaxReceive == 0 {
		o.MaxReceive = 64
	}
	bad := func(field string, value any, want string) error {
		return &transport.OptionError{Field: "QueueOptions." + field, Value: value, Want: want}
	}
	switch {
	case o.Lease < 0:
		return bad("Lease", o.Lease, "must be at least 0 (0: as long as the link)")
	case o.LeaseMax < 0 || (o.LeaseMax > 0 && (o.Lease == 0 || o.LeaseMax < o.Lease)):
		return bad("LeaseMax", o.LeaseMax, "must be 0 (no bound), or at least Lease, which must be set too")
	case o.FIFO && o.Shuffle:
		return bad("Shuffle", o.Shuffle, "can't be combined with FIFO: choose one")
	case o.MaxReceive < 1 || o.MaxReceive > maxReceiveLimit:
		return bad("MaxReceive", o.MaxReceive, "must be 1 to 10000 (0: the default, 64)")
	case o.Poll < 0:
		return bad("Poll", o.Poll, "must be at least 0 (0: wait until there is something)")
	case o.Dedup < 0:
		return bad("Dedup", o.Dedup, "must be at least 0 (0: no deduplication)")
	case o.MaxReceives < 0:
		return bad("MaxReceives", o.MaxReceives, "must be at least 0 (0: no bound)")
	case o.MaxReceives > 0 && o.DeadLetter == nil:
		return bad("MaxReceives", o.MaxReceives, "needs DeadLetter: name the queue that takes the messages, or leave it 0")
	case o.DeadLetter != nil && o.DeadLetter.b != b:
		return bad("DeadLetter", o.DeadLetter.name, "must be a queue of the same broker")
	}
	return nil
}

// traits says what a queue with these options does.
func (o *QueueOptions) traits() transport.Traits {
	t := transport.Traits{
		Ordered:         !o.Shuffle,
		GroupsExclusive: o.FIFO,
		LeaseExpires:    o.Lease > 0,
		CountsOnReturn:  o.CountsOnReturn,
		// A delayed abandon on a plain ordered queue would let its successors
		// overtake it; a FIFO group waits for its head.
		AbandonDelay: o.FIFO || o.Shuffle,
		Abandon:      transport.AbandonReset,
		MaxReceive:   o.MaxReceive,
	}
	switch {
	case o.FIFO:
		t.Abandon = transport.AbandonGroup
	case o.Shuffle:
		t.Abandon = transport.AbandonSingle
	}
	if o.DeadLetter != nil {
		t.DeadLetter = transport.DeadLetterWithReason
	}
	return t
}
