package memory

import (
	"fmt"

	"github.com/keylanes/keylanes/transport"
)

// Settle implements transport.Receiver.
func (r *receiver) Settle(d *transport.Delivery, o transport.Outcome) {
	h, ok := transport.HandleOf(d).(*held)
	if !ok || d.Epoch != r.epoch {
		r.sink.Settled(d, o, errLost(r.q.name, "the delivery belongs to another receiver"))
		return
	}
	if o.Kind == transport.Accept && r.fast && r.q.fault.Load() == nil {
		if !h.state.CompareAndSwap(isHeld, done) {
			r.sink.Settled(d, o, errLost(r.q.name, "settled too late, or twice"))
			return
		}
		h.e = nil
		r.sink.Settled(d, o, nil)
		return
	}
	r.settle(h, d, o)
}

// settle is the way of everything but fast accepts.
func (r *receiver) settle(h *held, d *transport.Delivery, o transport.Outcome) {
	switch {
	case o.Kind < transport.Accept || o.Kind > transport.Reject:
		r.sink.Settled(d, o, &transport.OptionError{Field: "Outcome.Kind", Value: o.Kind, Want: "must be Accept, Abandon, Return or Reject"})
		return
	case r.closing.Load():
		r.sink.Settled(d, o, errLost(r.q.name, "the receiver is closed"))
		return
	case !h.state.CompareAndSwap(isHeld, settling):
		h.state.CompareAndSwap(lapsed, lost) // now it is known
		r.sink.Settled(d, o, errLost(r.q.name, "settled too late, or twice"))
		return
	}
	if r.q.fault.Load() != nil {
		r.settleFaulty(&pendingOp{h: h, o: o, settles: true})
		return
	}
	r.settled(h, o, r.apply(h, o))
}

// settled reports how h's settlement ended.
func (r *receiver) settled(h *held, o transport.Outcome, err error) {
	if err == nil {
		h.state.Store(done)
	} else {
		h.state.Store(failed)
	}
	r.sink.Settled(h.d, o, err)
}

// apply lets the broker do what was settled.
func (r *receiver) apply(h *held, o transport.Outcome) error {
	q := r.q
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweep()
	defer q.changed()
	if h.applied {
		return nil // the reply to an earlier try was lost
	}
	e := h.e
	if !h.out() {
		return errLost(q.name, "the lease has lapsed, or its link is gone")
	}
	switch o.Kind {
	case transport.Accept:
		q.forget(e)
	case transport.Abandon:
		delay := o.Delay
		if !q.traits.AbandonDelay {
			delay = 0
		}
		q.giveBack(e, true, int64(max(delay, 0)))
	case transport.Return:
		q.giveBack(e, false, 0)
	case transport.Reject:
		if q.opts.DeadLetter == nil {
			return fmt.Errorf("queue %q has no dead-letter queue: set QueueOptions.DeadLetter", q.name)
		}
		q.deadLetter(e, o.Reason, o.Description)
	}
	h.applied, h.e = true, nil
	return nil
}
