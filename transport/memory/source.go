package memory

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/keylanes/keylanes/transport"
)

type source struct{ q *Queue }

func (s source) Traits() transport.Traits { return s.q.traits }

func (s source) Open(ctx context.Context, sink transport.Sink) (transport.Receiver, error) {
	if sink == nil {
		return nil, &transport.OptionError{Field: "sink", Value: nil, Want: "must not be nil"}
	}
	q := s.q
	reply := q.ask(Op{Kind: OpOpen, Try: 1})
	if err := sleep(ctx, reply.Delay); err != nil {
		return nil, err
	}
	if reply.Err != nil {
		return nil, reply.Err // a lost reply leaves a receiver without credit behind: nothing
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &receiver{
		q: q, sink: sink, epoch: q.b.epochs.Add(1),
		fast:  q.opts.Lease == 0 && !q.opts.FIFO,
		lease: transport.NewLease(),
		wake:  make(chan struct{}, 1),
		ended: make(chan struct{}),
	}
	q.mu.Lock()
	if q.deleted {
		q.mu.Unlock()
		return nil, q.fatal("open")
	}
	q.receivers = append(q.receivers, r)
	q.mu.Unlock()
	if reply.CutLink {
		r.cut(ErrLinkLost)
	}
	return r, nil
}

// detach takes r off the list of receivers. Queue.mu is held.
func (q *Queue) detach(r *receiver) {
	if i := slices.Index(q.receivers, r); i >= 0 {
		q.receivers = slices.Delete(q.receivers, i, i+1)
	}
}

var errDeleted = errors.New("the queue was deleted")

func (q *Queue) fatal(op string) error {
	return &transport.FatalError{Op: op + " queue \"" + q.name + "\"", Err: errDeleted, Fix: "make it again with Broker.Queue, and take the Source and Publisher of the new one"}
}

// sleep waits for d, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
