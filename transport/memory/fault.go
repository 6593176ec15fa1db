package memory

import (
	"errors"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// ErrLinkLost ends an epoch whose link was cut. What a Receive returns wraps it,
// and so do settlements and losses, together with transport.ErrLeaseLost.
var ErrLinkLost = errors.New("link lost")

// OpKind is an operation on a queue.
type OpKind uint8

// The operations that a Fault is asked about.
const (
	// OpOpen: Source.Open.
	OpOpen OpKind = iota + 1
	// OpReceive: Receiver.Receive, once for each call, as it begins.
	OpReceive
	// OpSettle: each try of Receiver.Settle.
	OpSettle
	// OpExtend: each try of Receiver.Extend, for each delivery.
	OpExtend
	// OpClose: Receiver.Close, before what was settled is flushed.
	OpClose
	// OpPublish: Publisher.Publish, for each message.
	OpPublish
)

// String names the operation.
func (k OpKind) String() string {
	if int(k) < len(opNames) && k > 0 {
		return opNames[k]
	}
	return "op?"
}

var opNames = [...]string{OpOpen: "open", OpReceive: "receive", OpSettle: "settle", OpExtend: "extend", OpClose: "close", OpPublish: "publish"}

// Op is one operation, as a Fault sees it.
type Op struct {
	Kind  OpKind
	Queue string
	Epoch uint64 // of the receiver; 0 for publishing, and for opening
	// Delivery is what is settled or extended.
	Delivery *transport.Delivery
	Outcome  transport.Outcome  // OpSettle
	Until    time.Time          // OpExtend
	Message  *transport.Message // OpPublish
	// Try is 1 for the first try; settling and extending are tried again after
	// a temporary error.
	Try int
}

// Reply is how the broker answers an operation. The zero value lets it work.
type Reply struct {
	// Err fails the operation, and the broker doesn't do it. A
	// *transport.TemporaryError leaves the epoch alive: Receive returns it,
	// settling and extending are tried again. Any other error is final: Receive
	// ends the epoch with it, a settlement reports it, an extension loses the
	// lease. Publish and Open return it.
	Err error
	// Lost: the broker does it, and its reply doesn't arrive: the client sees
	// Err, or a temporary error when that is nil. A receive on a queue without
	// Lease loses its link too, since only that loses a reply there.
	Lost bool
	// Delay holds the reply back, and with it what the broker does.
	Delay time.Duration
	// CutLink loses the receiver's link, after the broker did the operation or
	// failed it.
	CutLink bool
	// More lets a receive hand out that many more than were granted. It comes
	// off later grants.
	More int
	// Again lets a receive hand out once more up to that many of the messages
	// that the queue handed out last, held or settled, as deliveries of their
	// own. At most 64 are remembered, and only while a Fault is set.
	Again int
}

// Fault decides how the broker replies. One call at a time for each queue, from
// any goroutine, so a function with a seeded source needs no lock. It must not
// call the queue or anything that belongs to it.
type Fault func(op Op) Reply

// SetFault changes the queue's fault from now on; nil ends it. Receives that
// have begun aren't affected.
func (q *Queue) SetFault(f Fault) {
	if f == nil {
		q.fault.Store(nil)
		return
	}
	q.fault.Store(&f)
}

// ask gives the fault's reply to op.
func (q *Queue) ask(op Op) Reply {
	f := q.fault.Load()
	if f == nil {
		return Reply{}
	}
	op.Queue = q.name
	q.faultMu.Lock()
	defer q.faultMu.Unlock()
	r := (*f)(op)
	if r.Lost && r.Err == nil {
		r.Err = &transport.TemporaryError{Op: op.Kind.String() + " on queue " + q.name, Err: errReplyLost}
	}
	return r
}

var errReplyLost = errors.New("the reply was lost")

// passing reports whether trying again may help.
func passing(err error) bool {
	var t *transport.TemporaryError
	return errors.As(err, &t)
}

// remembered bounds how far back Reply.Again reaches.
const remembered = 64

// remember keeps what was handed out last. Queue.mu is held.
func (q *Queue) remember(es []*entry) {
	q.recent = append(q.recent, es...)
	if over := len(q.recent) - remembered; over > 0 {
		q.recent = append(q.recent[:0], q.recent[over:]...)
	}
}

// again appends copies of up to n entries that were handed out last. A copy is a
// message of its own, outside of any group. Queue.mu is held.
func (q *Queue) again(es []*entry, n int) []*entry {
	for _, e := range q.recent[max(0, len(q.recent)-n):] {
		c := *e
		c.place, c.count, c.more = out, max(e.count, 1), nil
		if e.more != nil {
			c.more = &more{sequence: e.more.sequence, expires: e.more.expires}
		}
		es = append(es, &c)
		q.stats.Published++
	}
	return es
}
