package memory

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// receiver is one epoch.
type receiver struct {
	q     *Queue
	sink  transport.Sink
	epoch uint64
	// fast: an Accept needs no lock, since nothing waits for it: no group to
	// unblock, no alarm to take away.
	fast  bool
	lease *transport.Lease // everybody's, where leases have no deadline

	credit  atomic.Int64 // granted and not handed out; below 0 after over-delivery
	waits   atomic.Bool  // Receive is about to wait on wake
	wake    chan struct{}
	ended   chan struct{} // closed when the epoch ends
	closing atomic.Bool   // Close has begun: settlements are refused

	// Queue.mu guards these.
	err   error // why the epoch ended; nil: it lives
	slabs []*slab
	limit int // how many slabs there may be before they are looked through
	found []*entry
	alloc transport.Slab

	pending pending // settlements and extensions that wait for a reply
}

// Limits implements transport.Limited.
func (r *receiver) Limits() transport.Limits {
	o := &r.q.opts
	return transport.Limits{Lease: o.Lease, LeaseMax: o.LeaseMax, MaxReceives: o.MaxReceives}
}

// Depth implements transport.Depther.
func (r *receiver) Depth(ctx context.Context) (int64, error) { return r.q.depth(ctx) }

// Grant adds the credit before it looks at waits, and Receive says that it waits
// before it looks at the credit again: so one of them sees the other.
func (r *receiver) Grant(n int) {
	if n <= 0 {
		return
	}
	r.credit.Add(int64(n))
	if r.waits.Load() {
		r.signal()
	}
}

// signal wakes Receive. One token is enough, since Receive looks at everything.
func (r *receiver) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *receiver) Receive(ctx context.Context) ([]*transport.Delivery, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.q.fault.Load() != nil {
		return r.receiveFaulty(ctx)
	}
	return r.receive(ctx, Reply{})
}

// receiveFaulty receives as the fault says.
func (r *receiver) receiveFaulty(ctx context.Context) ([]*transport.Delivery, error) {
	reply := r.q.ask(Op{Kind: OpReceive, Epoch: r.epoch, Try: 1})
	if err := sleep(ctx, reply.Delay); err != nil {
		return nil, err
	}
	var ds []*transport.Delivery
	err := reply.Err
	if err == nil || reply.Lost {
		var e error
		if ds, e = r.receive(ctx, reply); e != nil {
			return ds, e
		}
	}
	if reply.Lost || reply.CutLink {
		r.unreached(ds)
	}
	switch {
	case reply.CutLink, reply.Lost && r.q.opts.Lease == 0:
		r.cut(ErrLinkLost)
	case err != nil && !passing(err):
		r.cut(err)
	}
	if err != nil || reply.CutLink {
		if e := r.endedWith(); e != nil {
			return nil, e
		}
		return nil, err
	}
	return ds, nil
}

// unreached gives up what the broker handed out and the client never saw: it
// comes again when its lease lapses or the epoch ends.
func (r *receiver) unreached(ds []*transport.Delivery) {
	for _, d := range ds {
		transport.HandleOf(d).(*held).state.CompareAndSwap(isHeld, failed)
	}
	r.credit.Add(int64(len(ds)))
}

func (r *receiver) receive(ctx context.Context, reply Reply) ([]*transport.Delivery, error) {
	if ds, err := r.take(reply); len(ds) > 0 || err != nil {
		return ds, err
	}
	var poll <-chan time.Time
	if p := r.q.opts.Poll; p > 0 {
		t := time.NewTimer(p)
		defer t.Stop()
		poll = t.C
	}
	for {
		r.waits.Store(true)
		ds, err := r.take(reply)
		if len(ds) > 0 || err != nil {
			r.waits.Store(false)
			return ds, err
		}
		select {
		case <-r.wake:
		case <-r.ended:
		case <-poll:
			r.waits.Store(false)
			return nil, nil
		case <-ctx.Done():
			r.waits.Store(false)
			return nil, ctx.Err()
		}
	}
}

// take hands out what is ready and granted, without waiting.
func (r *receiver) take(reply Reply) ([]*transport.Delivery, error) {
	q := r.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	q.sweep()
	n := min(int(r.credit.Load())+reply.More, q.opts.MaxReceive)
	if n <= 0 && reply.Again == 0 {
		q.arm()
		return nil, nil
	}
	r.reap()
	r.found = q.shelf.take(r.found[:0], max(n, 0))
	q.ready -= len(r.found)
	if q.fault.Load() != nil {
		q.remember(r.found)
		r.found = q.again(r.found, reply.Again)
	}
	if len(r.found) == 0 {
		q.arm()
		return nil, nil
	}
	r.credit.Add(-int64(len(r.found)))
	ds := make([]*transport.Delivery, len(r.found))
	var now int64
	if q.opts.Lease > 0 {
		now = q.b.clock()
	}
	for i, e := range r.found {
		ds[i] = r.handOut(e, now)
	}
	clear(r.found)
	q.changed() // what is left may be somebody else's, and leases have begun
	return ds, nil
}

// handOut makes the delivery of e. Queue.mu is held.
func (r *receiver) handOut(e *entry, now int64) *transport.Delivery {
	q := r.q
	var s *slab
	if n := len(r.slabs); n > 0 && r.slabs[n-1].n < chunkSize {
		s = r.slabs[n-1]
	} else {
		s = &slab{}
		if q.opts.Lease > 0 {
			s.leases = make([]transport.Lease, chunkSize)
		}
		r.slabs = append(r.slabs, s)
	}
	h, lease := &s.items[s.n], r.lease
	if s.leases != nil {
		lease = &s.leases[s.n]
		until := now + int64(q.opts.Lease)
		lease.Extend(q.b.at(until))
		q.wakeAt(e, until)
		e.more.since, e.more.holder = now, h
	} else if e.more != nil && e.more.alarm > 0 {
		q.wakeAt(e, 0) // a TTL; it counts again when the message comes back
	}
	s.n++
	d := r.alloc.New(lease, h)
	e.turn++
	h.e, h.d, h.turn = e, d, e.turn
	d.ID, d.Key, d.Body, d.Enqueued = e.id, e.key, e.body, q.b.at(e.enqueued)
	d.Count, d.Epoch = int(e.count), r.epoch
	if !q.opts.Shuffle {
		d.Group = e.key
	}
	if e.props != nil {
		e.addProps(&d.Message)
	}
	if e.more != nil {
		d.Sequence = e.more.sequence
	}
	if q.opts.CountsOnReturn {
		e.count++
	}
	return d
}

// reap lets go of slabs whose hand-outs are all over, once their number has
// doubled: so each slab is looked through a constant number of times, by the
// one who receives, and those who settle pay nothing. Queue.mu is held.
func (r *receiver) reap() {
	if len(r.slabs) <= r.limit {
		return
	}
	kept := r.slabs[:0]
	for i, s := range r.slabs {
		if s.live() || i == len(r.slabs)-1 { // the last one is still filled
			kept = append(kept, s)
		}
	}
	clear(r.slabs[len(kept):])
	r.slabs = kept
	r.limit = 2*len(kept) + 8
}

// inFlight counts the hand-outs that the broker still holds for r. Queue.mu is
// held.
func (r *receiver) inFlight() int {
	n := 0
	for _, s := range r.slabs {
		for i := range s.n {
			h := &s.items[i]
			switch h.state.Load() {
			case isHeld:
				n++
			case settling, failed:
				if h.out() {
					n++
				}
			}
		}
	}
	return n
}

// endedWith is why the epoch ended; nil while it lives.
func (r *receiver) endedWith() error {
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	return r.err
}

// cut ends the epoch as a lost link does. Nothing happens when it has ended.
func (r *receiver) cut(cause error) {
	err := fmt.Errorf("receive from queue %q: %w", r.q.name, cause)
	ds, first := r.end(err, r.q.opts.CountsOnLoss)
	if !first {
		return
	}
	lost := fmt.Errorf("%w: %w", err, transport.ErrLeaseLost)
	r.pending.fail(r, lost)
	if len(ds) > 0 {
		r.sink.Lost(ds, lost)
	}
}

// end takes everything back that isn't settled, in its place, and gives what
// wasn't being settled either. first is false when the epoch had ended before.
func (r *receiver) end(err error, counted bool) (ds []*transport.Delivery, first bool) {
	q := r.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.err != nil {
		return nil, false
	}
	q.sweep()
	r.err = err
	r.lease.Lose() // before anybody else can get anything
	q.detach(r)
	for _, s := range r.slabs {
		for i := range s.n {
			h := &s.items[i]
			switch {
			case h.state.CompareAndSwap(isHeld, lost):
				ds = append(ds, h.d)
			case h.state.CompareAndSwap(lapsed, lost):
				transport.LeaseOf(h.d).Lose()
				ds = append(ds, h.d)
				continue
			case h.state.Load() == settling:
				// Its Settle finds that it isn't out any more.
			case h.state.CompareAndSwap(failed, lost):
			default:
				continue
			}
			if !h.out() {
				continue
			}
			transport.LeaseOf(h.d).Lose()
			q.giveBack(h.e, counted, 0)
		}
	}
	q.stats.Cut += len(ds)
	r.slabs = nil
	close(r.ended)
	q.changed()
	return ds, true
}

// Close implements transport.Receiver.
func (r *receiver) Close(ctx context.Context) error {
	r.closing.Store(true)
	if r.endedWith() != nil {
		return nil // the link is gone: everything was given back then
	}
	reply := r.q.ask(Op{Kind: OpClose, Epoch: r.epoch, Try: 1})
	err := sleep(ctx, reply.Delay)
	if err == nil {
		err = reply.Err
	}
	if reply.CutLink {
		r.cut(ErrLinkLost)
		return fmt.Errorf("close receiver of queue %q: %w: what was settled last may come again", r.q.name, ErrLinkLost)
	}
	if n, e := r.pending.flush(ctx); e != nil {
		err = fmt.Errorf("%d settlement(s) aren't confirmed, their messages come again: %w", n, e)
	}
	r.end(transport.ErrClosed, false)
	r.pending.fail(r, errLost(r.q.name, "the receiver is closed"))
	if err != nil {
		return fmt.Errorf("close receiver of queue %q: %w", r.q.name, err)
	}
	return nil
}

var _ interface {
	transport.Receiver
	transport.Limited
	transport.Depther
} = (*receiver)(nil)
