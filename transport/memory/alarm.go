package memory

import (
	"container/heap"
	"time"
)

// alarms is a heap of the entries that something happens to later: a lease that
// lapses, a delay that ends, a TTL. An entry's place says which.
type alarms []*entry

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].more.rings < a[j].more.rings }
func (a alarms) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].more.alarm, a[j].more.alarm = i+1, j+1
}
func (a *alarms) Push(x any) {
	e := x.(*entry)
	*a = append(*a, e)
	e.more.alarm = len(*a)
}
func (a *alarms) Pop() any {
	old := *a
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*a = old[:len(old)-1]
	e.more.alarm = 0
	return e
}

// wakeAt sets or moves e's alarm; at 0 it takes it away. Queue.mu is held.
func (q *Queue) wakeAt(e *entry, at int64) {
	if at == 0 && e.more == nil {
		return
	}
	m := e.extra()
	m.rings = at
	switch {
	case at == 0 && m.alarm > 0:
		heap.Remove(&q.alarms, m.alarm-1)
	case at != 0 && m.alarm > 0:
		heap.Fix(&q.alarms, m.alarm-1)
	case at != 0:
		heap.Push(&q.alarms, e)
	}
}

// sweep lets everything happen whose time has come. Queue.mu is held.
func (q *Queue) sweep() {
	if len(q.alarms) == 0 {
		return
	}
	now := q.b.clock()
	for len(q.alarms) > 0 && q.alarms[0].more.rings <= now {
		e := q.alarms[0]
		q.wakeAt(e, 0)
		switch e.place {
		case out:
			q.lapse(e)
		case waiting:
			q.waiting--
			q.shelve(e, now)
		case ready:
			q.ready--
			q.expire(e)
		}
	}
}

// arm sets the queue's timer to its next alarm. Queue.mu is held.
func (q *Queue) arm() {
	if q.b.manual || len(q.alarms) == 0 || (q.armed != 0 && q.armed <= q.alarms[0].more.rings) {
		return // an early timer just looks again
	}
	q.armed = q.alarms[0].more.rings
	d := time.Duration(max(q.armed-q.b.clock(), 0))
	if q.timer == nil {
		q.timer = time.AfterFunc(d, q.ring)
		return
	}
	q.timer.Reset(d)
}

// ring is the timer's callback.
func (q *Queue) ring() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = 0
	q.sweep()
	q.changed()
}
