package oracle

import (
	"context"
	"sync"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// Source wraps src and feeds the log's figure of what is held, from outside of
// whatever consumes it: credit that was granted and not taken back counts as
// held, since the broker may send it at any time, and so does a delivery beyond
// what was granted, until its settlement is reported, its lease is lost, or the
// receiver is closed. It also records what is given back, lost, or rejected: a reject
// hands the message to the broker's own dead letters, which decides it.
func (l *Log) Source(src transport.Source) transport.Source { return source{log: l, next: src} }

type source struct {
	log  *Log
	next transport.Source
}

// Traits implements transport.Source.
func (s source) Traits() transport.Traits { return s.next.Traits() }

// Open implements transport.Source.
func (s source) Open(ctx context.Context, sink transport.Sink) (transport.Receiver, error) {
	r := &receiver{log: s.log, sink: sink}
	next, err := s.next.Open(ctx, r)
	if err != nil {
		return nil, err
	}
	r.next = next
	// The optional interfaces are kept as they are: a consumer asks for them.
	limited, hasLimits := next.(transport.Limited)
	depther, hasDepth := next.(transport.Depther)
	switch {
	case hasLimits && hasDepth:
		return struct {
			*receiver
			transport.Limited
			transport.Depther
		}{r, limited, depther}, nil
	case hasLimits:
		return struct {
			*receiver
			transport.Limited
		}{r, limited}, nil
	case hasDepth:
		return struct {
			*receiver
			transport.Depther
		}{r, depther}, nil
	}
	return r, nil
}

// receiver is one epoch, and its own sink.
type receiver struct {
	log  *Log
	next transport.Receiver
	sink transport.Sink

	mu       sync.Mutex
	granted  int // in all
	received int // in all
	given    int // settled or lost, in all
	counted  int // what the log was told
	closed   bool
}

// tell changes the figures and tells the log by how much what is held changed.
func (r *receiver) tell(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	change()
	held := max(r.granted, r.received) - r.given
	if r.closed {
		held = 0
	}
	if held != r.counted {
		r.log.Received(held - r.counted)
		r.counted = held
	}
}

// Grant implements transport.Receiver.
func (r *receiver) Grant(n int) {
	r.tell(func() { r.granted += n })
	r.next.Grant(n)
}

// Receive implements transport.Receiver.
func (r *receiver) Receive(ctx context.Context) ([]*transport.Delivery, error) {
	ds, err := r.next.Receive(ctx)
	r.tell(func() { r.received += len(ds) })
	return ds, err
}

// Settle implements transport.Receiver.
func (r *receiver) Settle(d *transport.Delivery, o transport.Outcome) {
	switch o.Kind {
	case transport.Return, transport.Abandon:
		r.log.Record(Returned, &d.Message)
	case transport.Reject:
		r.log.Record(DeadLettered, &d.Message)
	}
	r.next.Settle(d, o)
}

// Extend implements transport.Receiver.
func (r *receiver) Extend(ds []*transport.Delivery, until time.Time) { r.next.Extend(ds, until) }

// Close implements transport.Receiver. What wasn't settled is held until the
// receiver has given it back.
func (r *receiver) Close(ctx context.Context) error {
	err := r.next.Close(ctx)
	r.tell(func() { r.closed = true })
	return err
}

// Settled implements transport.Sink. The log is told first: the consumer may
// grant the place to another at once.
func (r *receiver) Settled(d *transport.Delivery, o transport.Outcome, err error) {
	r.tell(func() { r.given++ })
	r.sink.Settled(d, o, err)
}

// Lost implements transport.Sink.
func (r *receiver) Lost(ds []*transport.Delivery, err error) {
	for _, d := range ds {
		r.log.Record(LeaseLost, &d.Message)
	}
	r.tell(func() { r.given += len(ds) })
	r.sink.Lost(ds, err)
}
