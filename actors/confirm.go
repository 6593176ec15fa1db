package actors

import (
	"sync"
	"sync/atomic"

	"github.com/keylanes/keylanes/transport"
)

// confirmations are what lanes wait for under SettleBeforeNext: the report of a
// settlement. Runners add, sinks take.
type confirmations struct {
	n  atomic.Int32 // how many there are, so that a report needn't lock to look
	mu sync.Mutex
	of map[*transport.Delivery]chan struct{}
}

// confirmation is one that a batch waits for.
type confirmation struct {
	d  *transport.Delivery
	ch <-chan struct{}
}

// expect gives a channel that is closed when d's settlement is reported. It is
// called before the settlement is handed over.
func (c *confirmations) expect(d *transport.Delivery) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[*transport.Delivery]chan struct{})
	}
	ch := make(chan struct{})
	c.of[d] = ch
	c.n.Store(int32(len(c.of)))
	return ch
}

// reported wakes whoever waits for d.
func (c *confirmations) reported(d *transport.Delivery) {
	if c.n.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch, ok := c.of[d]; ok {
		close(ch)
		delete(c.of, d)
		c.n.Store(int32(len(c.of)))
	}
}

// confirmed waits until the broker has d's accept, or it has failed, or its lease
// is lost. It is over when the runner is to end.
func (r *runner) confirmed(d *transport.Delivery, ch <-chan struct{}) {
	if ch == nil {
		return
	}
	select {
	case <-ch:
	case <-r.quit:
		r.t.confirmations.reported(d) // nobody waits any more
	}
}
