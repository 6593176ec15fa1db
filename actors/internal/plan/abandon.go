package plan

import (
	"time"

	"github.com/keylanes/keylanes/transport"
)

const (
	abandonFloorMin = 10 * time.Millisecond
	abandonFloorMax = 30 * time.Second
)

// abandonFloor is how long it is kept at least, or held back by the broker, before
// it goes round alone or with its group. A message that comes back to the host that
// has abandoned it would otherwise go round as fast as the broker can hand it out.
// The first time it goes at once, if its id will tell that it was here.
func (p *Planner) abandonFloor(it *Item, failures int) time.Duration {
	if p.abandonKind(it) == transport.AbandonReset {
		return 0 // resets keep a distance of their own
	}
	if failures <= 1 && it.D.ID != "" && !it.dir.Uncounted {
		return 0
	}
	return min(abandonFloorMin<<min(max(failures-2, 0), 20), abandonFloorMax)
}

// abandonKind is how it is abandoned.
func (p *Planner) abandonKind(it *Item) transport.AbandonKind {
	if it.k == nil || !p.cfg.Traits.Ordered {
		return transport.AbandonSingle
	}
	return p.cfg.Traits.Abandon
}

// abandon gives it back to the broker as failed, the way that keeps its key's
// order.
func (p *Planner) abandon(it *Item) {
	out := transport.Outcome{Kind: transport.Abandon}
	if p.cfg.Traits.AbandonDelay {
		out.Delay = it.dir.After
	}
	switch p.abandonKind(it) {
	case transport.AbandonGroup:
		p.abandonGroup(it, out)
	case transport.AbandonReset:
		p.abandonByReset(it)
	default:
		p.abandonNow(it, out)
	}
}

func (p *Planner) abandonNow(it *Item, out transport.Outcome) {
	p.emit(Effect{Kind: Settle, Item: it, Outcome: out})
	it.dir.Park = false
	p.remember(it)
	p.unhold(it)
	p.gone(it)
}

// abandonGroup gives the held successors back first, the last one first, and the
// head last with its delay: whatever gets through, the group's next delivery is
// the head. The broker counts a hand-out for the successors too, so when one is
// close to the broker's own limit, the head is retried here instead.
func (p *Planner) abandonGroup(it *Item, out transport.Outcome) {
	k := it.k
	if limit := p.cfg.MaxReceives; limit > 0 {
		for s := k.head; s != nil; s = s.next {
			if s.D.Count+1 >= limit-1 {
				p.emit(Effect{Kind: Note, Note: NoteRetriedInstead, Item: it})
				p.park(it, it.dir.After)
				return
			}
		}
	}
	var successors []*Item
	for s := k.head; s != nil; s = s.next {
		successors = append(successors, s)
	}
	for i := len(successors) - 1; i >= 0; i-- {
		p.unqueue(successors[i])
		p.giveBack(successors[i])
	}
	p.abandonNow(it, out)
}

// abandonByReset ends the epoch, which is the only way in which the broker gives
// everything back in order. It stalls every key, so resets keep a distance.
func (p *Planner) abandonByReset(it *Item) {
	if p.gate&gateReset == 0 && p.now < p.nextReset {
		p.wait(it, AbandonWait, p.nextReset)
		return
	}
	it.state = Abandoning
	p.abandoning = append(p.abandoning, it)
	if p.gate&gateReset != 0 {
		return
	}
	if p.resetGap == 0 || p.now-p.lastReset >= resetCalm {
		p.resetGap = resetGapMin
	} else {
		p.resetGap = min(2*p.resetGap, resetGapMax)
	}
	p.lastReset, p.nextReset = p.now, p.now+p.resetGap
	p.gate |= gateReset
	p.clawAll()
	if p.out > 0 && p.cfg.ResetWait > 0 {
		p.resetBy = p.now + int64(p.cfg.ResetWait)
	}
}

// checkQuiet ends the epoch, or reports the drain, when nothing runs any more.
// A lane that was replaced doesn't count: its handler may never return.
func (p *Planner) checkQuiet() {
	if p.out > 0 || p.copyingN > 0 {
		return
	}
	if p.gate&gateReset != 0 && !p.endSent {
		p.endSent = true
		for _, it := range p.abandoning {
			if it.state == Abandoning {
				p.emit(Effect{Kind: Settle, Item: it, Outcome: transport.Outcome{Kind: transport.Abandon}})
			}
		}
		p.emit(Effect{Kind: EndEpoch})
	}
	if p.gate&gateDrain != 0 && !p.drained {
		p.drained = true
		p.emit(Effect{Kind: Drained})
	}
}

// restart gives lane i a new incarnation. What it was lent goes back; a lane
// that runs something is left alone, since it was restarted already.
func (p *Planner) restart(i int) {
	p.clawLane(i) // before the question whether it runs something: it can't begin to
	l := &p.lanes[i]
	for j := range l.out {
		if l.runs[j].Claimed() > l.runs[j].acc {
			return
		}
	}
	p.newGeneration(i)
	p.emit(Effect{Kind: Restart, Lane: i})
}

// newGeneration takes back everything that lane i was lent; it ignores the runs.
func (p *Planner) newGeneration(i int) {
	l := &p.lanes[i]
	l.gen++
	for j := l.out - 1; j >= 0; j-- {
		r := l.runs[j]
		p.takeBack(r)
		p.dropRun(i, r)
	}
}

// Replace says that lane i's handler ignores its ended context: the lane gets a
// new incarnation for its other keys, the stuck key is fenced until the old
// handler returns. It gives what is stuck, nil when nothing runs.
func (p *Planner) Replace(now int64, i int) ([]Effect, []*Item) {
	p.begin(now)
	l := &p.lanes[i]
	var stuck []*Item
	for j := l.out - 1; j >= 0; j-- {
		r := l.runs[j]
		p.takeBack(r)
		from, to := r.acc, r.Claimed()
		switch {
		case from == to:
		case stuck != nil: // the lane went on from this run to a later one: it is done
			for r.acc < to {
				p.accountNext(r)
			}
		default: // of single deliveries it is the last that was claimed
			stuck = r.Items[from:to]
		}
	}
	if stuck == nil {
		return p.end(), nil
	}
	for _, it := range stuck {
		if it.k != nil {
			it.k.lent--
		}
		p.fence(it)
		it.state = Stuck
		p.stuckN++
	}
	p.newGeneration(i)
	return p.end(), stuck
}

// Gen is the generation that lane i's runs carry.
func (p *Planner) Gen(i int) uint32 { return p.lanes[i].gen }

// Snapshot is what the planner holds, for stats.
type Snapshot struct {
	Held, Queued, Runnable, Parked, Copying, Stuck, Keys int
	LanesBusy                                            int
	Outage                                               bool
	Oldest                                               *transport.Delivery // nil when nothing is held
	OldestArrived                                        int64               // when Oldest arrived
}

// Snapshot counts. It is cheap.
func (p *Planner) Snapshot() Snapshot {
	s := Snapshot{
		Held: p.heldN, Queued: p.queuedN, Runnable: p.queuedN - p.barredN, Parked: p.parkedN,
		Copying: p.copyingN, Stuck: p.stuckN, Keys: len(p.keys) - p.cold.n,
		LanesBusy: len(p.lanes) - p.idleN, Outage: p.outage,
	}
	if p.oldest != nil {
		s.Oldest, s.OldestArrived = p.oldest.D, p.oldest.arrived
	}
	return s
}

// Runnable is how many queued deliveries wait for a lane, not for their key.
func (p *Planner) Runnable() int { return p.queuedN - p.barredN }

// Busy says whether anything runs, or may.
func (p *Planner) Busy() bool { return p.out > 0 }

// MostHeld names the key that holds most deliveries, and how many. It looks at
// everything that is held.
func (p *Planner) MostHeld() (string, int) {
	counts := make(map[string]int)
	top, most := "", 0
	for it := p.oldest; it != nil; it = it.newer {
		counts[it.Key]++
		if n := counts[it.Key]; it.Key != "" && n > most {
			top, most = it.Key, n
		}
	}
	return top, most
}

// Held calls f for every held item in the order of arrival, until it says no.
func (p *Planner) Held(f func(*Item) bool) {
	for it := p.oldest; it != nil; it = it.newer {
		if !f(it) {
			return
		}
	}
}

// ResetIn is how long an abandon would have to wait for its epoch reset.
func (p *Planner) ResetIn(now int64) time.Duration { return time.Duration(max(p.nextReset-now, 0)) }
