package actors

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// epoch is one receiver's life: its credit, its leases, and the sink that it
// reports to.
type epoch struct {
	t   *tree
	n   uint64 // counts this subscription's receivers
	rcv transport.Receiver
	// opened is when it was attached; settled: the broker took a settlement.
	opened  time.Time
	settled atomic.Bool
	// id is the transport's number of the epoch, which its deliveries carry; 0
	// until the first has come.
	id atomic.Uint64

	// Credit. open is granted and not handed out, freed is given back and not
	// granted again; open + held + freed is the subscription's credit.
	step        int64
	open, freed atomic.Int64
	held        atomic.Int64
	paused      atomic.Bool

	leases *leases // nil where leases don't expire

	mu sync.Mutex
	// copied are deliveries whose dead-letter copy is confirmed and whose
	// accept is on its way: should it fail, the router must know.
	copied map[*transport.Delivery]struct{}
	// copiedN is len(copied), so that a settlement needn't lock to look.
	copiedN atomic.Int32
}

func newEpoch(t *tree, n uint64) *epoch {
	e := &epoch{t: t, n: n, step: int64(max(1, t.opts.Credit/4))}
	if t.opts.traits.LeaseExpires {
		e.leases = &leases{held: make(map[*transport.Delivery]*leaseEntry)}
	}
	return e
}

// begin grants the whole credit.
func (e *epoch) begin() {
	e.freed.Store(int64(e.t.opts.Credit))
	e.flush()
}

// flush grants what was given back. Any goroutine.
func (e *epoch) flush() {
	if e.paused.Load() || e.freed.Load() <= 0 {
		return
	}
	if n := e.freed.Swap(0); n > 0 {
		e.open.Add(n)
		e.rcv.Grant(int(n))
	}
}

// release gives n credits back. They are granted in steps; the router flushes
// the rest when lanes idle.
func (e *epoch) release(n int64) {
	e.held.Add(-n)
	if e.freed.Add(n) >= e.step {
		e.flush()
	}
}

// received takes note of what was handed out. The pump calls it before anybody
// can settle any of it.
func (e *epoch) received(n int) (over int) {
	e.t.counts.received.Add(uint64(n))
	e.held.Add(int64(n))
	open := e.open.Add(int64(-n))
	if open >= 0 {
		return 0
	}
	// The broker sent more than it was granted. What it sent is held all the
	// same; the excess is taken out of what will be granted again.
	over = int(min(-open, int64(n)))
	e.open.Add(int64(over))
	e.freed.Add(int64(-over))
	e.t.counts.overDelivered.Add(uint64(over))
	return over
}

// exhausted says that there is nothing to grant, and nothing granted.
func (e *epoch) exhausted() bool { return e.open.Load() <= 0 && e.freed.Load() <= 0 }

func (e *epoch) settle(d *transport.Delivery, o transport.Outcome) {
	if e.leases != nil {
		e.leases.settling(d)
	}
	e.rcv.Settle(d, o)
}

// ended takes a delivery out of what is held, and gives its credit back. A lease
// that expires can be reported lost while its settlement is under way: only the
// first report counts.
func (e *epoch) ended(d *transport.Delivery) {
	if e.leases == nil || e.leases.remove(d) {
		e.release(1)
	}
}

// Settled implements transport.Sink.
func (e *epoch) Settled(d *transport.Delivery, o transport.Outcome, err error) {
	e.ended(d)
	if err == nil {
		e.t.counts.settled.Add(1)
		if !e.settled.Load() { // so that lanes don't share a dirty line
			e.settled.Store(true)
		}
	} else {
		e.t.counts.settleFailed.Add(1)
	}
	if e.t.opts.Observer != nil {
		if err == nil {
			e.t.observe(Observation{Kind: ObserveSettled, Delivery: d, Lane: -1, Reason: o.Kind.String()})
		} else {
			e.t.observe(Observation{Kind: ObserveSettleFailed, Delivery: d, Lane: -1, Err: err, Reason: o.Kind.String()})
		}
	}
	if e.takeCopied(d) && err != nil {
		e.t.send(e.t.router, &acceptLost{d: d})
	}
	e.t.confirmations.reported(d)
}

// Lost implements transport.Sink.
func (e *epoch) Lost(ds []*transport.Delivery, err error) {
	e.t.counts.lost.Add(uint64(len(ds)))
	for _, d := range ds {
		e.ended(d)
		e.t.confirmations.reported(d)
		e.t.observe(Observation{Kind: ObserveLost, Delivery: d, Lane: -1, Err: err})
	}
	e.t.send(e.t.router, &lost{ds: ds, err: err})
}

func (e *epoch) noteCopied(d *transport.Delivery) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.copied == nil {
		e.copied = make(map[*transport.Delivery]struct{})
	}
	e.copied[d] = struct{}{}
	e.copiedN.Store(int32(len(e.copied)))
}

func (e *epoch) takeCopied(d *transport.Delivery) bool {
	if e.copiedN.Load() == 0 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.copied[d]
	delete(e.copied, d)
	e.copiedN.Store(int32(len(e.copied)))
	return ok
}

// leaseEntry is one held delivery whose lease expires.
type leaseEntry struct {
	received time.Time
	asked    time.Time // when its last extension was asked for
	settling bool      // not extended any more
	ending   bool      // its handler was told that its lease ends
}

// leases are the held deliveries of an epoch whose leases have to be extended.
// The pump's goroutine adds, whoever settles removes, the extender walks.
type leases struct {
	mu   sync.Mutex
	held map[*transport.Delivery]*leaseEntry
}

func (l *leases) add(ds []*transport.Delivery, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range ds {
		l.held[d] = &leaseEntry{received: now}
	}
}

func (l *leases) settling(d *transport.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.held[d]; e != nil {
		e.settling = true
	}
}

// remove says whether d was there.
func (l *leases) remove(d *transport.Delivery) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.held[d]
	delete(l.held, d)
	return ok
}

// due gives what has to be extended at now, when half of the lease is left, and
// until when. So extending costs one call per half lease for each that the
// transport puts into a call. What has reached the broker's ceiling is ending,
// once, while at least an eighth of its lease is left to decide on it.
func (l *leases) due(now time.Time, lim transport.Limits) (ds, ending []*transport.Delivery, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	until = now.Add(lim.Lease)
	for d, e := range l.held {
		left := transport.LeaseOf(d).Deadline().Sub(now)
		if e.settling || left <= 0 || left > lim.Lease/2 {
			continue
		}
		if lim.LeaseMax > 0 && until.Sub(e.received) > lim.LeaseMax {
			if !e.ending && left <= lim.Lease/4 {
				e.ending = true
				ending = append(ending, d)
			}
			continue
		}
		if now.Sub(e.asked) < lim.Lease/3 {
			continue
		}
		e.asked = now
		ds = append(ds, d)
	}
	return ds, ending, until
}
