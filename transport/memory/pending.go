package memory

import (
	"context"
	"sync"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// The pause before a try is repeated: it doubles from the first to the last.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
)

// pendingOp is a settlement or an extension on its way, while a fault is set.
// Whoever takes it off pending.ops owns it.
type pendingOp struct {
	h       *held
	settles bool
	o       transport.Outcome
	until   time.Time
	tries   int

	// pending.mu guards these.
	timer *time.Timer // nil while its callback runs
	turn  int         // how many timers it had
}

func (op *pendingOp) pause() time.Duration {
	return min(firstPause<<min(op.tries-1, 10), lastPause)
}

// pending are the settlements and extensions whose reply is awaited.
type pending struct {
	mu     sync.Mutex
	ops    map[*pendingOp]struct{}
	idle   chan struct{} // closed when no settlement is left; made by flush
	closed bool          // nothing may be added any more
}

// later runs f after d, unless the epoch ends before; false when it has ended.
func (p *pending) later(op *pendingOp, d time.Duration, f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	if p.ops == nil {
		p.ops = map[*pendingOp]struct{}{}
	}
	p.ops[op] = struct{}{}
	op.turn++
	turn := op.turn
	op.timer = time.AfterFunc(d, func() {
		if p.own(op) {
			f()
			p.release(op, turn)
		}
	})
	return true
}

// own takes op, for its timer's callback. It stays listed, so that Close waits
// for it.
func (p *pending) own(op *pendingOp) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.ops[op]; !ok {
		return false
	}
	op.timer = nil
	return true
}

// release takes op off the list, unless it was put there again with another
// timer, whose callback may have run already.
func (p *pending) release(op *pendingOp, turn int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if op.turn != turn {
		return
	}
	delete(p.ops, op)
	if p.idle != nil && p.settlements() == 0 {
		close(p.idle)
		p.idle = nil
	}
}

// settlements counts those among ops. p.mu is held.
func (p *pending) settlements() int {
	n := 0
	for op := range p.ops {
		if op.settles {
			n++
		}
	}
	return n
}

// flush waits until no settlement is pending. It gives how many are when ctx
// ends first.
func (p *pending) flush(ctx context.Context) (int, error) {
	p.mu.Lock()
	if p.settlements() == 0 {
		p.mu.Unlock()
		return 0, nil
	}
	idle := make(chan struct{})
	p.idle = idle
	p.mu.Unlock()
	select {
	case <-idle:
		return 0, nil
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle = nil
		return p.settlements(), ctx.Err()
	}
}

// fail ends everything that waits for its timer; the settlements report err. The
// epoch has ended. A callback that runs already finds that by itself.
func (p *pending) fail(r *receiver, err error) {
	p.mu.Lock()
	p.closed = true
	var failed []*pendingOp
	for op := range p.ops {
		if op.timer != nil {
			op.timer.Stop()
			delete(p.ops, op)
			failed = append(failed, op)
		}
	}
	p.mu.Unlock()
	for _, op := range failed {
		if op.settles {
			r.settled(op.h, op.o, err)
		}
	}
}

// settleFaulty makes a try of op, as the fault says.
func (r *receiver) settleFaulty(op *pendingOp) {
	op.tries++
	reply := r.q.ask(Op{Kind: OpSettle, Epoch: r.epoch, Delivery: op.h.d, Outcome: op.o, Try: op.tries})
	finish := func() { r.finishSettle(op, reply) }
	if reply.Delay <= 0 {
		finish()
	} else if !r.pending.later(op, reply.Delay, finish) {
		r.settled(op.h, op.o, errLost(r.q.name, "the epoch has ended"))
	}
}

func (r *receiver) finishSettle(op *pendingOp, reply Reply) {
	err := reply.Err
	if err == nil || reply.Lost {
		if e := r.apply(op.h, op.o); e != nil {
			err = e
		}
	}
	if reply.CutLink {
		if err != nil {
			err = errLost(r.q.name, "link lost before the settlement was confirmed")
		}
		r.settled(op.h, op.o, err)
		r.cut(ErrLinkLost)
		return
	}
	if err != nil && passing(err) {
		switch {
		case !transport.LeaseOf(op.h.d).Live(r.q.b.now()):
			err = errLost(r.q.name, "the lease lapsed before the settlement was confirmed")
		case r.pending.later(op, op.pause(), func() { r.settleFaulty(op) }):
			return
		default:
			err = errLost(r.q.name, "the epoch has ended")
		}
	}
	r.settled(op.h, op.o, err)
}
