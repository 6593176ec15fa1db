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

const (
	// maxReceive is how many deliveries one Receive gives at most.
	maxReceive = 64
	// creditStep is how much credit is worth a frame of its own while plenty
	// is open.
	creditStep = 64
	// sessionWindow is how many transfer frames the broker may send before it
	// has to hear of their arrival; go-amqp's figure, announced by it.
	sessionWindow = 5000
)

var epochs atomic.Uint64 // the last epoch of this process

// arrival is a message that came off the socket and isn't decoded yet.
type arrival struct {
	id         uint32
	preSettled bool
	payload    []byte
}

// receiver is one epoch: a connection, a session and a link of its own.
//
// go-amqp opens, keeps alive and closes them. What comes and goes for each
// message, transfers, credit and dispositions, is the receiver's own: it
// never reaches go-amqp, which would pass each through four goroutines, hide
// delivery ids, and count credit in a way that a broker can drive below zero.
type receiver struct {
	op     string // "receive from \"orders\" at broker:5672"
	sink   transport.Sink
	link   *link
	wire   *wire
	silent time.Duration // 0: no watchdog
	depth  func(context.Context) (int64, error)
	epoch  uint64
	lease  *transport.Lease
	settle settler

	mu       sync.Mutex
	in       inbound
	arrivals ring[arrival]
	issued   int64 // credit that the broker was given, ever
	pending  int64 // credit granted and not given to the broker yet
	returned int64 // Returns that the end of the epoch will give back
	needFlow bool
	barrier  *barrier // of Close
	quiet    bool     // the epoch is over: a flow for a link that is gone ends the session

	ready chan struct{} // capacity 1: arrivals isn't empty
	dead  chan struct{} // closed when the link is known to be gone

	deadErr error // set before dead is closed
	deadOne sync.Once
	told    atomic.Bool // Receive has reported the end

	outstanding atomic.Int64 // handed out and not settled

	// The pump's goroutine's.
	slab transport.Slab
	held []held
	msgs []goamqp.Message
}

// inbound is what the broker's frames have said; guarded by receiver.mu.
type inbound struct {
	attached     bool
	handle       uint32 // the broker's number of the link
	count0       uint32 // its delivery-count at the start
	arrived      int64  // deliveries that ended since, aborted ones included
	nextIncoming uint32 // the session's
	unsaid       uint32 // transfer frames since the broker last heard of them

	partial bool // a delivery in several frames is under way
	first   arrival
	moved   bool // arrivals grew since the last heard
}

var (
	errDetached = errors.New("the broker detached the link")
	errEnded    = errors.New("the broker ended the session or the connection")
	errClient   = errors.New("the client library ended the connection")
	errSilent   = errors.New("nothing arrived")
	errClosing  = errors.New("the receiver is closed")
)

func newReceiver(op string, s transport.Sink, silent time.Duration) *receiver {
	r := &receiver{
		op: op, sink: s, silent: silent, epoch: epochs.Add(1), lease: transport.NewLease(),
		ready: make(chan struct{}, 1), dead: make(chan struct{}),
	}
	r.settle.sink = s
	return r
}

// hook puts the receiver into the wire.
func (r *receiver) hook(w *wire) {
	r.wire, r.settle.poke = w, w.poke
	w.demux.peer, w.inject, w.onDead = r, r, r.kill
}

// kill marks the epoch as over, for the reason that is known first. The lease
// goes first, so that nothing starts meanwhile.
func (r *receiver) kill(err error) {
	r.deadOne.Do(func() {
		r.deadErr = err
		r.lease.Lose()
		r.mu.Lock()
		r.quiet, r.needFlow = true, false
		r.mu.Unlock()
		close(r.dead)
		r.settle.refuse(err)
	})
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
	issue := r.issueLocked()
	r.mu.Unlock()
	if issue {
		r.wire.poke()
	}
}

// issueLocked decides whether the broker gets the waiting credit now: once it
// is as much as what is still open, or a good step. So a credit of one works,
// nothing stalls when little is open, and under load one frame grants many.
//
// A broker that sent more than it was granted has used credit of the future:
// open is negative, and it gets none until it is positive again.
func (r *receiver) issueLocked() bool {
	open := r.issued - r.in.arrived
	if r.pending <= 0 || open+r.pending <= 0 || (r.pending < open && r.pending < creditStep) {
		return false
	}
	r.issued += r.pending
	r.pending = 0
	r.needFlow = true
	return true
}

// Receive waits for deliveries and gives what has arrived, at most 64.
func (r *receiver) Receive(ctx context.Context) ([]*transport.Delivery, error) {
	as, err := r.next(ctx)
	if len(as) == 0 {
		return nil, err
	}
	out := make([]*transport.Delivery, len(as))
	for i := range as {
		out[i] = r.deliver(&as[i])
	}
	return out, nil
}

// next waits for arrivals, the end of ctx, or the end of the epoch.
func (r *receiver) next(ctx context.Context) ([]arrival, error) {
	var silence <-chan time.Time
	for {
		select {
		case <-r.dead:
			return nil, r.over()
		default:
		}
		if as := r.take(); len(as) > 0 {
			return as, nil
		}
		if r.silent > 0 && silence == nil {
			t := time.NewTimer(r.silent)
			defer t.Stop()
			silence = t.C
		}
		select {
		case <-r.ready:
		case <-r.dead:
			return nil, r.over()
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-silence:
			return nil, r.silence()
		}
	}
}

// take takes up to 64 arrivals.
func (r *receiver) take() []arrival {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(r.arrivals.len(), maxReceive)
	if n == 0 {
		return nil
	}
	as := make([]arrival, n)
	for i := range as {
		as[i], _ = r.arrivals.pop()
	}
	if r.arrivals.len() > 0 {
		wake(r.ready)
	}
	return as
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// silence is the watchdog: nothing came for a long time. That is how an empty
// queue looks, and a link that the broker has forgotten. When nothing is held, a
// fresh link costs nothing and is sure; otherwise it would cost duplicates, so
// the wait goes on.
func (r *receiver) silence() error {
	r.mu.Lock()
	open := r.issued - r.in.arrived
	r.mu.Unlock()
	if open <= 0 || r.outstanding.Load() > 0 {
		return nil
	}
	r.kill(fmt.Errorf("%w for %v with credit for %d open", errSilent, r.silent, open))
	return r.over()
}

// deliver decodes one arrival.
func (r *receiver) deliver(a *arrival) *transport.Delivery {
	if len(r.held) == 0 {
		r.held = make([]held, 32)
		r.msgs = make([]goamqp.Message, 32)
	}
	h, m := &r.held[0], &r.msgs[0]
	r.held, r.msgs = r.held[1:], r.msgs[1:]
	h.r, h.id, h.preSettled = r, a.id, a.preSettled
	d := r.slab.New(r.lease, h)
	d.Epoch = r.epoch
	if err := decode(m, a.payload); err != nil {
		undecodable(d, a.payload, err)
	} else {
		fromAMQP(m, d)
	}
	r.outstanding.Add(1)
	return d
}

// over gives the reason why the epoch is over.
func (r *receiver) over() error {
	r.told.Store(true)
	err := r.deadErr
	if errors.Is(err, errDetached) || errors.Is(err, errEnded) || errors.Is(err, errClient) {
		err = r.said(err)
	}
	return classify(r.op, err)
}

// said asks go-amqp for its own word for it: the broker's, in a frame that it is
// about to read, or what it couldn't take.
func (r *receiver) said(err error) error {
	if r.link == nil { // still opening
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, rerr := r.link.receiver.Receive(ctx, nil); rerr != nil && ctx.Err() == nil {
		return rerr
	}
	return err
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
