package transport

import (
	"math"
	"sync/atomic"
	"time"
)

// base anchors the monotonic half of every deadline. Read only.
var base = time.Now()

// Lease is what deliveries live by: a link, a session's lock, a receipt. It is
// shared by everything that lives and dies together. All methods may be called
// from any goroutine and never block.
//
// A deadline is kept on two clocks, the wall's and the monotonic one, and has
// passed when either says so: a machine that slept stops the monotonic clock,
// and a wall clock that was set back must not keep a dead lease alive. When in
// doubt a lease has lapsed: that costs a duplicate, never an overlap.
type Lease struct {
	wall atomic.Int64 // unix nanoseconds; 0: no deadline
	mono atomic.Int64 // nanoseconds since base
	lost atomic.Bool
}

// NewLease gives a lease without a deadline, as long as its link lives.
func NewLease() *Lease { return &Lease{} }

// NewLeaseUntil gives a lease that lapses at t. Compute t from before the
// request was sent that the broker answered.
func NewLeaseUntil(t time.Time) *Lease {
	l := &Lease{}
	l.Extend(t)
	return l
}

// Extend moves the deadline to t. The transport calls it when the broker has
// confirmed an extension, with a time computed from before the request.
func (l *Lease) Extend(t time.Time) {
	l.mono.Store(int64(t.Sub(base)))
	l.wall.Store(wallOf(t))
}

// end is the last time that fits in a lease, in the year 2262.
var end = time.Unix(0, math.MaxInt64)

// wallOf is t in unix nanoseconds, but never 0, which means no deadline: a
// broker's clock at its epoch must give a lapsed lease, not an endless one.
// What doesn't fit is cut to the nearest that does.
func wallOf(t time.Time) int64 {
	switch {
	case t.After(end):
		return math.MaxInt64
	case t.UnixNano() == 0 || t.Before(time.Unix(0, 0)):
		return -1
	}
	return t.UnixNano()
}

// Deadline is when the lease lapses; the zero time when it has no deadline.
func (l *Lease) Deadline() time.Time {
	if l.wall.Load() == 0 {
		return time.Time{}
	}
	return base.Add(time.Duration(l.mono.Load()))
}

// Expires reports whether the lease has a deadline at all, so that callers who
// hold many deliveries on links need not read the clock.
func (l *Lease) Expires() bool { return l.wall.Load() != 0 }

// Lose marks the lease as gone, for ever. The transport calls it as soon as it
// knows, before it reports through Sink.Lost, so that nothing starts meanwhile.
func (l *Lease) Lose() { l.lost.Store(true) }

// Lost reports whether Lose was called.
func (l *Lease) Lost() bool { return l.lost.Load() }

// Live reports whether a delivery on this lease may start, or be accepted, at
// now.
func (l *Lease) Live(now time.Time) bool {
	if l.lost.Load() {
		return false
	}
	wall := l.wall.Load()
	return wall == 0 || (now.UnixNano() < wall && int64(now.Sub(base)) < l.mono.Load())
}
