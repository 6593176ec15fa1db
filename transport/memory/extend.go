package memory

import (
	"time"

	"github.com/keylanes/keylanes/transport"
)

// Extend implements transport.Receiver.
func (r *receiver) Extend(ds []*transport.Delivery, until time.Time) {
	if r.q.opts.Lease == 0 {
		return
	}
	var gone []*transport.Delivery
	for _, d := range ds {
		h, ok := transport.HandleOf(d).(*held)
		if !ok || d.Epoch != r.epoch {
			continue
		}
		op := &pendingOp{h: h, until: until}
		if r.q.fault.Load() != nil {
			r.extendFaulty(op)
		} else if !r.prolong(op, true) {
			gone = append(gone, d)
		}
	}
	if len(gone) > 0 {
		r.sink.Lost(gone, errLost(r.q.name, "the lease has lapsed"))
	}
}

// extendFaulty makes a try of op, as the fault says.
func (r *receiver) extendFaulty(op *pendingOp) {
	if s := op.h.state.Load(); s != isHeld && s != lapsed {
		return // settled meanwhile, or lost and reported already
	}
	op.tries++
	reply := r.q.ask(Op{Kind: OpExtend, Epoch: r.epoch, Delivery: op.h.d, Until: op.until, Try: op.tries})
	finish := func() { r.finishExtend(op, reply) }
	if reply.Delay > 0 {
		r.pending.later(op, reply.Delay, finish) // at the epoch's end it is moot
		return
	}
	finish()
}

func (r *receiver) finishExtend(op *pendingOp, reply Reply) {
	ok := true
	switch {
	case reply.Err == nil:
		ok = r.prolong(op, true)
	case passing(reply.Err):
		if reply.Lost {
			r.prolong(op, false)
		}
		lease := transport.LeaseOf(op.h.d)
		if lease.Live(r.q.b.now().Add(op.pause())) {
			r.pending.later(op, op.pause(), func() { r.extendFaulty(op) })
		} else {
			ok = r.loseLease(op.h)
		}
	default:
		ok = r.loseLease(op.h)
	}
	if !ok {
		r.sink.Lost([]*transport.Delivery{op.h.d}, errLost(r.q.name, "the lease couldn't be extended"))
	}
	if reply.CutLink {
		r.cut(ErrLinkLost)
	}
}

// prolong lets the broker extend a lease; tell says that the client hears of it.
// False when the lease was found gone.
func (r *receiver) prolong(op *pendingOp, tell bool) bool {
	q, h := r.q, op.h
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweep()
	defer q.changed()
	if h.state.CompareAndSwap(lapsed, lost) {
		transport.LeaseOf(h.d).Lose()
		return false
	}
	if h.state.Load() != isHeld {
		return true // settled meanwhile, or lost and reported already
	}
	at := int64(op.until.Sub(q.b.base))
	if q.opts.LeaseMax > 0 {
		at = min(at, h.e.more.since+int64(q.opts.LeaseMax))
	}
	q.wakeAt(h.e, max(at, 1))
	if tell {
		transport.LeaseOf(h.d).Extend(q.b.at(at))
	}
	return true
}

// loseLease gives a lease up that the broker may still know. False when it was
// this call that did.
func (r *receiver) loseLease(h *held) bool {
	if h.state.CompareAndSwap(isHeld, failed) || h.state.CompareAndSwap(lapsed, lost) {
		transport.LeaseOf(h.d).Lose()
		return false
	}
	return true
}
