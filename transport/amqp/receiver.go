package amqp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/transport"
)

// maxReceive is how many deliveries one Receive gives at most.
const maxReceive = 64

var epochs atomic.Uint64 // the last epoch of this process

// arrival is what the tap saw of a message that go-amqp will hand out.
type arrival struct {
	id         uint32
	tag        uint64
	preSettled bool
}

// receiver is one epoch: a connection, a session and a link of its own.
type receiver struct {
	op     string // "receive from \"orders\""
	sink   transport.Sink
	link   *link
	silent time.Duration
	epoch  uint64
	lease  *transport.Lease
	settle settler

	mu         sync.Mutex
	arrivals   ring[arrival] // on their way through go-amqp, in order
	first      transfer      // of a delivery that comes in several frames
	partial    bool
	handle     uint32
	attachedOK bool
	arrived    int64 // deliveries that came off the socket
	issued     int64 // credit that the broker was given
	pending    int64 // credit granted and not given to the broker yet
	returned   int64 // Returns that the end of the epoch will give back

	dead    chan struct{} // closed when the link is known to be gone
	deadErr error         // set before dead is closed
	deadOne sync.Once

	// The pump's goroutine's.
	slab        transport.Slab
	spare       []held
	outstanding atomic.Int64 // handed out and not settled
}

var (
	errDetached = errors.New("the broker detached the link")
	errEnded    = errors.New("the broker ended the session or the connection")
	errSilent   = errors.New("nothing arrived")
	errClosing  = errors.New("the receiver is closed")
)

// The tap's half: all on the connection's reading goroutine.

func (r *receiver) attached(handle uint32, peerSends bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if peerSends && !r.attachedOK {
		r.handle, r.attachedOK = handle, true
	}
}

func (r *receiver) transferred(t transfer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.attachedOK || t.handle != r.handle {
		return nil
	}
	if !r.partial {
		if !t.hasID {
			return fmt.Errorf("%w: a delivery without an id", errFraming)
		}
		r.first = t
		r.first.tag = append([]byte(nil), t.tag...)
		if !t.more { // the common case keeps nothing
			r.first.tag = nil
		}
	}
	r.partial = t.more && !t.aborted
	if t.aborted || t.more {
		r.first.settled = r.first.settled || t.settled
		return nil
	}
	tag := t.tag
	if r.first.tag != nil {
		tag = r.first.tag
	}
	r.arrivals.push(arrival{id: r.first.id, tag: tagSum(tag), preSettled: r.first.settled || t.settled})
	r.arrived++
	return nil
}

func (r *receiver) detached(handle uint32) {
	r.mu.Lock()
	ours := r.attachedOK && handle == r.handle
	r.mu.Unlock()
	if ours {
		r.kill(errDetached)
	}
}

func (r *receiver) ended() { r.kill(errEnded) }

// kill marks the epoch as over, for the reason that is known first. The lease
// goes first, so that nothing starts meanwhile.
func (r *receiver) kill(err error) {
	r.deadOne.Do(func() {
		r.deadErr = err
		r.lease.Lose()
		close(r.dead)
		r.settle.refuse(err)
	})
}

// tagSum is a delivery tag as a number (FNV-1a): it proves that the tap and
// go-amqp speak of the same delivery.
func tagSum(tag []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range tag {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

// Grant allows n more deliveries to be held.
func (r *receiver) Grant(n int) {
	if n <= 0 {
		return
	}
	r.mu.Lock()
	add := int64(n)
	// A returned delivery stays with the broker's link until the epoch ends,
	// so the place that it left must not be given away a second time.
	if r.returned > 0 {
		used := min(r.returned, add)
		r.returned -= used
		add -= used
	}
	r.pending += add
	issue := r.takeCreditLocked()
	r.mu.Unlock()
	r.issue(issue)
}

// creditStep is how much credit is worth a frame of its own while plenty is
// open.
const creditStep = 64

// takeCreditLocked decides how much credit to give to the broker now: all that
// waits, once it is as much as what is still open, or a good step. So a credit
// of one works, nothing stalls when little is open, and under load one frame
// grants many.
//
// Open is counted where messages come off the socket, ahead of go-amqp: it
// keeps an unsigned count which a broker that sends too much drives below zero,
// and a grant on top of that would either be swallowed or open the gates.
func (r *receiver) takeCreditLocked() uint32 {
	open := r.issued - r.arrived
	if r.pending <= 0 || open+r.pending <= 0 || (r.pending < open && r.pending < creditStep) {
		return 0
	}
	n := r.pending
	r.pending = 0
	r.issued += n
	return uint32(n)
}

func (r *receiver) issue(n uint32) {
	if n == 0 {
		return
	}
	select {
	case <-r.dead:
	default:
		if err := r.link.receiver.IssueCredit(n); err != nil {
			r.kill(err)
		}
	}
}

// Receive waits for deliveries and gives what has arrived, at most 64.
func (r *receiver) Receive(ctx context.Context) ([]*transport.Delivery, error) {
	msg, err := r.next(ctx)
	if msg == nil {
		return nil, err
	}
	r.mu.Lock()
	n := min(r.arrivals.len(), maxReceive)
	r.mu.Unlock()
	out := make([]*transport.Delivery, 0, max(n, 1))
	for msg != nil && len(out) < maxReceive {
		d, err := r.deliver(msg)
		if err != nil {
			return nil, r.over(err)
		}
		out = append(out, d)
		if len(out) >= n {
			break
		}
		msg = r.link.receiver.Prefetched()
	}
	// Less is open now than when the last grant was made to wait.
	r.mu.Lock()
	issue := r.takeCreditLocked()
	r.mu.Unlock()
	r.issue(issue)
	select {
	case <-r.dead:
		// go-amqp goes on handing out what it prefetched; the broker has it
		// back already.
		return nil, r.over(r.deadErr)
	default:
		return out, nil
	}
}

// next waits for one message, the end of ctx, or the end of the epoch.
func (r *receiver) next(ctx context.Context) (*goamqp.Message, error) {
	select {
	case <-r.dead:
		return nil, r.over(r.deadErr)
	default:
	}
	if msg := r.link.receiver.Prefetched(); msg != nil {
		return msg, nil
	}
	wait, cancel := ctx, func() {}
	if r.silent > 0 {
		wait, cancel = context.WithTimeoutCause(ctx, r.silent, errSilent)
	}
	defer cancel()
	msg, err := r.link.receiver.Receive(wait, nil)
	if err == nil {
		return msg, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if context.Cause(wait) == errSilent && errors.Is(err, context.DeadlineExceeded) {
		return nil, r.silence()
	}
	return nil, r.over(err)
}

// silence is the watchdog: nothing came for a long time. That is how an empty
// queue looks, and a link that the broker has forgotten. When nothing is held, a
// fresh link costs nothing and is sure; otherwise it would cost duplicates, so
// the wait goes on.
func (r *receiver) silence() error {
	r.mu.Lock()
	open := r.issued - r.arrived
	r.mu.Unlock()
	if open <= 0 || r.outstanding.Load() > 0 {
		return nil
	}
	return r.over(fmt.Errorf("%w for %v with credit for %d open", errSilent, r.silent, open))
}

// deliver pairs a message with what the tap saw of it.
func (r *receiver) deliver(msg *goamqp.Message) (*transport.Delivery, error) {
	r.mu.Lock()
	a, ok := r.arrivals.pop()
	r.mu.Unlock()
	if !ok || a.tag != tagSum(msg.DeliveryTag) {
		return nil, errors.New("the client handed out a delivery that isn't the next one on the link")
	}
	if len(r.spare) == 0 {
		r.spare = make([]held, 32)
	}
	h := &r.spare[0]
	r.spare = r.spare[1:]
	h.r, h.id, h.preSettled = r, a.id, a.preSettled
	d := r.slab.New(r.lease, h)
	d.Epoch = r.epoch
	fromAMQP(msg, d)
	r.outstanding.Add(1)
	return d, nil
}

// over gives the reason why the epoch is over, and makes sure that it is.
func (r *receiver) over(err error) error {
	r.kill(err)
	return classify(r.op, r.cause(err))
}

// cause prefers what the broker said to what was noticed first.
func (r *receiver) cause(err error) error {
	if !errors.Is(r.deadErr, errDetached) && !errors.Is(r.deadErr, errEnded) {
		return r.deadErr
	}
	// The frame was seen on its way in: go-amqp is about to read it, and what
	// it hands out until then is void.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for {
		if _, rerr := r.link.receiver.Receive(ctx, nil); rerr != nil {
			if ctx.Err() == nil {
				return rerr
			}
			return err
		}
	}
}

// Settle hands over how d ended. It never blocks.
func (r *receiver) Settle(d *transport.Delivery, o transport.Outcome) {
	h, ok := transport.HandleOf(d).(*held)
	switch {
	case !ok || h.r != r:
		r.sink.Settled(d, o, lost(errForeign))
		return
	case o.Kind < transport.Accept || o.Kind > transport.Reject:
		r.sink.Settled(d, o, errNoOutcome)
		return
	case !h.settled.CompareAndSwap(false, true):
		r.sink.Settled(d, o, errSettledTwice)
		return
	}
	r.outstanding.Add(-1)
	if o.Kind == transport.Return {
		r.mu.Lock()
		r.returned++
		r.mu.Unlock()
	}
	r.settle.add(settlement{d, o, h})
}

// Extend does nothing: a link's lease has no deadline.
func (r *receiver) Extend([]*transport.Delivery, time.Time) {}
