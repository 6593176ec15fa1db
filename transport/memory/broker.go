package memory

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// BrokerOptions are a broker's options. The zero value, and nil, give the
// defaults.
type BrokerOptions struct {
	// Now is the clock for leases, delays and TTLs. Nil: package time's, which
	// testing/synctest drives. When it is given, no timer runs: time passes at
	// each operation on a queue, and in Tick. Any goroutine may call it.
	Now func() time.Time
}

// Broker holds queues. All methods may be called from any goroutine.
type Broker struct {
	now    func() time.Time
	manual bool // Now was given: no timers
	base   time.Time
	epochs atomic.Uint64

	mu     sync.Mutex
	queues map[string]*Queue
}

// New gives an empty broker. It starts nothing.
func New(o *BrokerOptions) *Broker {
	b := &Broker{now: time.Now, queues: map[string]*Queue{}}
	if o != nil && o.Now != nil {
		b.now, b.manual = o.Now, true
	}
	b.base = b.now()
	return b
}

// Queue makes the queue of that name, with o copied. With nil options it gives
// the queue that exists, or makes one with the defaults. Options for a queue
// that exists, or options out of bounds, are a *transport.OptionError.
func (b *Broker) Queue(name string, o *QueueOptions) (*Queue, error) {
	if name == "" {
		return nil, &transport.OptionError{Field: "name", Value: name, Want: "must not be empty: give the queue a name"}
	}
	opts := QueueOptions{}
	if o != nil {
		opts = *o
	}
	if err := opts.check(b); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.queues[name]; q != nil {
		if o != nil {
			return nil, &transport.OptionError{Field: "name", Value: name, Want: "is a queue that exists with options of its own: pass nil options to get it, or Delete it first"}
		}
		return q, nil
	}
	q := newQueue(b, name, opts)
	b.queues[name] = q
	return q, nil
}

// Tick lets leases, delays and TTLs that are over by now take effect. Only
// needed with BrokerOptions.Now, after the clock was moved.
func (b *Broker) Tick() {
	b.mu.Lock()
	qs := make([]*Queue, 0, len(b.queues))
	for _, q := range b.queues {
		qs = append(qs, q)
	}
	b.mu.Unlock()
	for _, q := range qs {
		q.ring()
	}
}

// clock is the broker's time in nanoseconds since it was made.
func (b *Broker) clock() int64 { return int64(b.now().Sub(b.base)) }

// at is the time when clock was ns.
func (b *Broker) at(ns int64) time.Time { return b.base.Add(time.Duration(ns)) }

// remove takes q out of the broker.
func (b *Broker) remove(q *Queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.queues[q.name] == q {
		delete(b.queues, q.name)
	}
}

// Names of the headers of a message that was dead-lettered.
const (
	// HeaderReason holds Outcome.Reason, or ReasonMaxReceives.
	HeaderReason = "dead-letter-reason"
	// HeaderDescription holds Outcome.Description.
	HeaderDescription = "dead-letter-description"
	// HeaderQueue holds the name of the queue that the message was in.
	HeaderQueue = "dead-letter-queue"
	// ReasonMaxReceives is the reason when QueueOptions.MaxReceives was reached.
	ReasonMaxReceives = "max-receives"
)

// errLost is what a lease that is gone reports; it wraps transport.ErrLeaseLost.
func errLost(queue, why string) error {
	return fmt.Errorf("queue %q: %s: %w", queue, why, transport.ErrLeaseLost)
}
