package memory

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// Queue is one queue of a Broker. All methods may be called from any goroutine.
type Queue struct {
	b      *Broker
	name   string
	opts   QueueOptions // never changes
	traits transport.Traits

	fault   atomic.Pointer[Fault]
	faultMu sync.Mutex // one call of the fault at a time

	// mu is taken before the mu of opts.DeadLetter, which existed earlier, so
	// the order has no cycle.
	mu        sync.Mutex
	shelf     shelf
	seq       uint64
	ready     int // entries that are ready
	waiting   int // entries that are held back
	alarms    alarms
	timer     *time.Timer
	armed     int64 // when timer fires, broker clock; 0: it doesn't
	receivers []*receiver
	recent    []*entry // handed out last, for Reply.Again
	dedup     dedup
	deleted   bool
	stats     Stats
}

func newQueue(b *Broker, name string, o QueueOptions) *Queue {
	q := &Queue{b: b, name: name, opts: o, traits: o.traits()}
	switch {
	case o.FIFO:
		q.shelf = &groups{log: log{rich: true}, byKey: map[string]*group{}}
	case o.Shuffle:
		q.shelf = &shuffled{log: log{rich: o.Lease > 0}, rand: rand.New(rand.NewPCG(o.Seed, 0x6b65796c616e6573))}
	default:
		q.shelf = &ordered{log: log{rich: o.Lease > 0}}
	}
	q.SetFault(o.Fault)
	return q
}

// Name is the queue's name.
func (q *Queue) Name() string { return q.name }

// Source gives a source of the queue's deliveries. Any number of receivers may
// be open at once, of one source or of many: they compete.
func (q *Queue) Source() transport.Source { return source{q} }

// Publisher gives a publisher to the queue. It confirms what it stored, and
// copies bodies and headers.
func (q *Queue) Publisher() transport.Publisher { return &publisher{q: q} }

// CutLinks loses the link of every attached receiver now: what they hold is
// given back, and their epochs end with ErrLinkLost.
func (q *Queue) CutLinks() {
	q.mu.Lock()
	rs := slices.Clone(q.receivers)
	q.mu.Unlock()
	for _, r := range rs {
		r.cut(ErrLinkLost)
	}
}

// Delete takes the queue out of its broker with everything in it. Receivers end
// with an error, and opening and publishing fail with a *transport.FatalError.
// May be called more than once.
func (q *Queue) Delete() {
	q.b.remove(q)
	q.mu.Lock()
	q.deleted = true // so nobody attaches any more
	rs := slices.Clone(q.receivers)
	q.mu.Unlock()
	for _, r := range rs {
		r.cut(errDeleted)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timer != nil {
		q.timer.Stop()
	}
	q.alarms, q.ready, q.waiting = nil, 0, 0
	q.shelf = &ordered{}
}

// Stats are a queue's counts.
type Stats struct {
	// Ready may be handed out; InFlight is held by receivers; Delayed is held
	// back until its delay is over.
	Ready, InFlight, Delayed int
	// Receivers is how many are attached.
	Receivers int
	// Published, DeadLettered (moved from here), Expired (dropped for their
	// TTL), Lapsed (leases) and Cut (deliveries that lost links held) count
	// since the queue was made.
	Published, DeadLettered, Expired, Lapsed, Cut int
}

// Accepted is how many messages were accepted: what was published and is
// nowhere else. Duplicates of a Fault aren't told apart.
func (s Stats) Accepted() int {
	return s.Published - s.Ready - s.InFlight - s.Delayed - s.DeadLettered - s.Expired
}

// Stats gives the queue's counts.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweep()
	s := q.stats
	s.Ready, s.Delayed, s.Receivers = q.ready, q.waiting, len(q.receivers)
	for _, r := range q.receivers {
		s.InFlight += r.inFlight()
	}
	q.changed()
	return s
}

// Depth is how many messages are ready to be handed out.
func (q *Queue) Depth() int { return q.Stats().Ready }

// InFlight is how many messages are held by receivers.
func (q *Queue) InFlight() int { return q.Stats().InFlight }

// Delayed is how many messages are held back until their delay is over.
func (q *Queue) Delayed() int { return q.Stats().Delayed }

// Messages gives what is ready, in order unless the queue is a Shuffle. They
// stay in the queue.
func (q *Queue) Messages() []transport.Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweep()
	ms := make([]transport.Message, 0, q.ready)
	q.shelf.each(func(e *entry) { ms = append(ms, e.message(q.b)) })
	q.changed()
	return ms
}

// depth is Depther's.
func (q *Queue) depth(ctx context.Context) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return int64(q.Depth()), nil
}
