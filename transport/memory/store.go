package memory

import (
	"fmt"
	"maps"

	"github.com/keylanes/keylanes/transport"
)

// Everything here needs Queue.mu.

// store takes m in. now is the broker's clock.
func (q *Queue) store(m *transport.Message, now int64) {
	e := q.shelf.add(m.Key)
	q.seq++
	q.stats.Published++
	e.seq, e.enqueued, e.id, e.key, e.body = q.seq, now, m.ID, m.Key, m.Body
	if m.ContentType != "" || m.CorrelationID != "" || m.ReplyTo != "" || m.Headers != nil {
		e.props = &props{m.ContentType, m.CorrelationID, m.ReplyTo, m.Headers}
	}
	if q.opts.FIFO {
		e.extra().sequence = fmt.Sprintf("%020d", q.seq)
	}
	if m.TTL > 0 {
		e.extra().expires = now + int64(m.TTL)
	}
	if m.Delay > 0 {
		e.place = waiting
		q.waiting++
		q.wakeAt(e, now+int64(m.Delay))
		return
	}
	e.place = ready
	q.ready++
	q.wakeAt(e, e.expires())
	q.shelf.fresh(e)
}

// shelve makes e ready, unless its time to live is over or it was handed out
// too often.
func (q *Queue) shelve(e *entry, now int64) {
	expires := e.expires()
	switch {
	case expires != 0 && expires <= now:
		q.expire(e)
	case q.opts.MaxReceives > 0 && int(e.count) >= q.opts.MaxReceives:
		q.deadLetter(e, ReasonMaxReceives, fmt.Sprintf("handed out %d times", e.count))
	default:
		e.place = ready
		q.ready++
		q.wakeAt(e, expires)
		q.shelf.put(e)
	}
}

// giveBack ends e's hand-out. counted says that it was a failed attempt.
func (q *Queue) giveBack(e *entry, counted bool, delay int64) {
	if e.more != nil {
		e.more.holder = nil
	}
	if counted && !q.opts.CountsOnReturn {
		e.count++
	}
	now := q.b.clock()
	if delay > 0 {
		e.place = waiting
		q.waiting++
		q.wakeAt(e, now+delay)
		return
	}
	q.wakeAt(e, 0)
	q.shelve(e, now)
}

// lapse takes e from a holder whose lease is over.
func (q *Queue) lapse(e *entry) {
	h := e.more.holder
	if h == nil {
		return
	}
	// A settlement that is being tried again finds that its message isn't
	// out with h any more.
	h.state.CompareAndSwap(isHeld, lapsed)
	q.stats.Lapsed++
	q.giveBack(e, true, 0)
}

// forget takes e out for good.
func (q *Queue) forget(e *entry) {
	e.place = gone
	if e.more != nil {
		e.more.holder = nil
	}
	q.wakeAt(e, 0)
	q.shelf.drop(e)
}

func (q *Queue) expire(e *entry) {
	q.stats.Expired++
	q.forget(e)
}

// deadLetter moves e to the dead-letter queue.
func (q *Queue) deadLetter(e *entry, reason, description string) {
	m := e.message(q.b)
	m.Headers = maps.Clone(m.Headers)
	if m.Headers == nil {
		m.Headers = map[string]any{}
	}
	m.Headers[HeaderReason], m.Headers[HeaderDescription], m.Headers[HeaderQueue] = reason, description, q.name
	q.stats.DeadLettered++
	q.forget(e)
	d := q.opts.DeadLetter
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.deleted {
		return // as a broker does when its dead-letter queue is gone
	}
	d.store(&m, d.b.clock())
	d.changed()
}

// changed arms the timer and wakes receivers that wait, once something may have
// become ready.
func (q *Queue) changed() {
	q.arm()
	if q.ready == 0 {
		return
	}
	for _, r := range q.receivers {
		if r.waits.Load() {
			r.signal()
		}
	}
}
