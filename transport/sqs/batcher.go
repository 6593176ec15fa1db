package sqs

import (
	"context"
	"time"
)

// batcher gathers receipts into calls of at most ten entries: the settler has
// one for deletes and one for changes of visibility, the extender has its own.
// Its fields are guarded by its receiver's mutex, and all methods but run want
// it held.
//
// Each entry lives on its own: one that fails is tried again, first in the
// queue, while its lease lives; the others of its call are done. A call that
// fails as a whole stops all calls for a while, and then goes on with one at a
// time until one succeeds, so that an outage costs a few calls a second.
type batcher struct {
	r       *receiver
	kind    batchKind
	linger  time.Duration
	limit   int  // calls in flight
	ordered bool // a group's entries are sent in the order they were added

	queue    []*receipt
	calls    int
	busy     map[string]int // group -> its entries in flight, when ordered
	skipped  map[string]struct{}
	failures int       // calls failed in a row
	failedAt time.Time // when the last of them failed
	hold     time.Time // no call before
	flushing bool      // no linger any more

	timer  *time.Timer
	wakeAt time.Time // when timer is armed for; zero: it isn't
}

// batchKind is what a batcher's calls do.
type batchKind interface {
	// call makes the call: one error for each entry, or one for all. Without
	// the receiver's mutex.
	call(ctx context.Context, batch []*receipt) (entries []error, err error)
	// taken is told which entries go into the next call.
	taken(batch []*receipt)
	// wanted reports whether an entry of the queue is still to be sent.
	wanted(rc *receipt) bool
	// finish takes an entry's result and reports whether to try it again.
	finish(rc *receipt, err error) (again bool)
	// lapsed ends an entry whose lease ran out before it could be sent.
	lapsed(rc *receipt)
}

// scanLimit bounds how much of a queue is searched for ten entries to send.
const scanLimit = 1000

// add queues rc. Settling n deliveries costs about n/10 looks at the queue: one
// when it fills a call, and one when nothing is due to look anyway.
// A notBefore that isn't zero holds rc back.
func (b *batcher) add(rc *receipt, notBefore time.Time) {
	rc.queued, rc.notBefore, rc.tries, rc.unsure = time.Now(), notBefore, 0, false
	b.queue = append(b.queue, rc)
	if b.wakeAt.IsZero() || len(b.queue)%maxBatch == 0 || b.flushing {
		b.kick()
	}
}

// flush sends what is queued without lingering, now and from now on.
func (b *batcher) flush() {
	b.flushing = true
	b.kick()
}

// idle reports that nothing is queued or in flight.
func (b *batcher) idle() bool { return len(b.queue) == 0 && b.calls == 0 }

// kick starts every call that is due, and arms the timer for the next.
func (b *batcher) kick() {
	for {
		now := time.Now()
		batch, wake := b.take(now)
		if batch == nil {
			b.arm(now, wake)
			return
		}
		b.calls++
		b.kind.taken(batch)
		b.r.run(func() { b.run(batch) })
	}
}

// arm sets the timer for wake, unless it is set for earlier. A zero wake means
// that a reply, or the next add, will kick.
func (b *batcher) arm(now, wake time.Time) {
	if wake.IsZero() || !b.wakeAt.IsZero() && !wake.Before(b.wakeAt) {
		return
	}
	b.wakeAt = wake
	d := max(wake.Sub(now), 0)
	if b.timer == nil {
		b.timer = time.AfterFunc(d, b.wake)
		return
	}
	b.timer.Reset(d)
}

func (b *batcher) wake() {
	b.r.mu.Lock()
	if b.r.dead {
		b.r.mu.Unlock()
		return
	}
	b.r.wg.Add(1)
	defer b.r.wg.Done()
	defer b.r.unlock()
	b.wakeAt = time.Time{}
	b.kick()
}

// take removes the next call's entries from the queue. Without any it says when
// to look again; the zero time: not before something changes.
func (b *batcher) take(now time.Time) (batch []*receipt, wake time.Time) {
	limit := b.limit
	if b.failures > 0 {
		limit = 1
	}
	if len(b.queue) == 0 || b.calls >= limit {
		return nil, time.Time{}
	}
	picked := make([]int, 0, maxBatch)
	dropped := 0
	window := 0
	for window < min(len(b.queue), scanLimit) && len(picked) < maxBatch {
		i := window
		window++
		rc := b.queue[i]
		switch {
		case !b.kind.wanted(rc):
			b.queue[i] = nil
			dropped++
		case !rc.lease.Live(now):
			b.queue[i] = nil
			dropped++
			b.kind.lapsed(rc)
		case b.ordered && b.blocked(rc.group):
		case now.Before(rc.notBefore):
			wake = earlier(wake, rc.notBefore)
			b.skip(rc.group)
		default:
			picked = append(picked, i)
		}
	}
	clear(b.skipped)
	if len(picked) > 0 {
		due := b.queue[picked[0]].queued.Add(b.linger)
		switch {
		case now.Before(b.hold):
			wake, picked = earlier(wake, b.hold), nil
		case len(picked) < maxBatch && !b.flushing && now.Before(due):
			wake, picked = earlier(wake, due), nil
		}
	}
	if len(picked) == 0 && dropped == 0 {
		return nil, wake
	}
	batch = b.remove(picked, window)
	if len(batch) == 0 {
		if len(b.queue) > 0 && wake.IsZero() && window == scanLimit {
			return b.take(now) // the whole window was dropped
		}
		b.r.changed()
		return nil, wake
	}
	return batch, time.Time{}
}

// blocked reports whether an entry of the group must wait for an earlier one,
// and makes the group's later ones wait too.
func (b *batcher) blocked(group string) bool {
	_, skipped := b.skipped[group]
	return group != "" && (skipped || b.busy[group] > 0)
}

func (b *batcher) skip(group string) {
	if b.ordered && group != "" {
		b.skipped[group] = struct{}{}
	}
}

// remove takes the picked entries, and the dropped ones (nil), out of the first
// window entries of the queue.
func (b *batcher) remove(picked []int, window int) []*receipt {
	batch := make([]*receipt, 0, len(picked))
	for _, i := range picked {
		batch = append(batch, b.queue[i])
		if b.ordered {
			b.busy[b.queue[i].group]++
		}
		b.queue[i] = nil
	}
	// What stays of the window moves up to the rest of the queue, so that the
	// common case, the first ten, moves nothing.
	to := window
	for i := window - 1; i >= 0; i-- {
		if rc := b.queue[i]; rc != nil {
			to--
			b.queue[i] = nil
			b.queue[to] = rc
		}
	}
	if b.queue = b.queue[to:]; len(b.queue) == 0 {
		b.queue = nil // lets go of the array
	}
	return batch
}

// run makes one call and deals with its reply.
func (b *batcher) run(batch []*receipt) {
	started := time.Now()
	ctx, cancel := context.WithTimeout(b.r.ctx, b.timeout(batch, started))
	entries, err := b.kind.call(ctx, batch)
	cancel()

	b.r.mu.Lock()
	defer b.r.unlock()
	b.calls--
	now := time.Now()
	b.pace(started, now, err)
	var again []*receipt
	tries := 0
	for i, rc := range batch {
		e := err
		if err == nil {
			e = entries[i]
		}
		if b.ordered {
			if b.busy[rc.group]--; b.busy[rc.group] == 0 {
				delete(b.busy, rc.group)
			}
		}
		if e != nil && classOf(e) == classPassing {
			rc.unsure = true
		}
		if b.kind.finish(rc, e) {
			rc.tries++
			tries = max(tries, rc.tries)
			again = append(again, rc)
		}
	}
	if len(again) > 0 {
		// They wait for the same time, so that they fill one call again.
		at := now.Add(b.r.backoff(tries))
		if err != nil {
			at = b.hold
		}
		for _, rc := range again {
			rc.notBefore = rc.lease.Deadline()
			if at.Before(rc.notBefore) && !rc.capped {
				rc.notBefore = at
			}
		}
		b.queue = append(again, b.queue...)
	}
	if b.r.dead {
		b.abort()
	} else {
		b.kick()
	}
	b.r.changed()
}

// pace counts failed calls. Calls that were in flight together fail together:
// only one that began after the last failure counts.
func (b *batcher) pace(started, now time.Time, err error) {
	switch {
	case err == nil:
		b.failures, b.hold = 0, time.Time{}
	case b.failures == 0 || started.After(b.failedAt):
		b.failures++
		b.failedAt = now
		b.hold = now.Add(b.r.backoff(b.failures))
	}
}

// timeout bounds a call, so that one that hangs leaves time for another before
// the first lease of the batch lapses.
func (b *batcher) timeout(batch []*receipt, now time.Time) time.Duration {
	d := b.r.opts.CallTimeout
	for _, rc := range batch {
		d = min(d, rc.lease.Deadline().Sub(now)/2)
	}
	return max(d, 250*time.Millisecond)
}

// abort ends everything that is queued: the receiver is gone.
func (b *batcher) abort() {
	queue := b.queue
	b.queue = nil
	for _, rc := range queue {
		b.kind.lapsed(rc)
	}
	if b.timer != nil {
		b.timer.Stop()
	}
	b.wakeAt = time.Time{}
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
