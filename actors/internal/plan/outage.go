package plan

import "time"

// probeEvery is how often a lane tries again, during an outage, what has failed
// before.
const probeEvery = int64(250 * time.Millisecond)

// noteFailure counts failures that nothing succeeded between. Many in a row look
// like an outage of whatever the handlers need: from then on each lane only
// probes with what has failed, so that neither the downstream nor the attempts of
// healthy messages are burnt.
//
// A failure of something since whose first failure something else has succeeded
// says nothing of the kind: forty poisonous keys beside a healthy one are poison.
func (p *Planner) noteFailure(it *Item) {
	if p.successes != it.mark {
		return
	}
	p.streak++
	if p.streak >= max(16, 4*len(p.lanes)) {
		p.beginOutage()
	}
}

// beginOutage makes every lane probe, unless something has succeeded that just
// wasn't reported yet.
func (p *Planner) beginOutage() {
	if p.outage {
		return
	}
	seen := p.successes
	p.clawAll()
	if p.successes != seen {
		return
	}
	p.outage = true
	p.sortOut()
	for i := range p.lanes {
		p.lanes[i].probeAt = p.now + probeEvery
	}
	p.emit(Effect{Kind: Note, Note: NoteOutageBegan, Count: p.streak})
}

// endOutage makes everything due that waits for its retry: what it waited for is
// back. The timers fire at the end of the event: one may end the epoch, and claw
// back the very run whose success is being accounted.
func (p *Planner) endOutage() {
	p.outage = false
	p.emit(Effect{Kind: Note, Note: NoteOutageEnded})
	for _, it := range p.timers.h {
		if it.state == Parked {
			it.due = p.now
		}
	}
	p.timers.rebuild()
	p.recovered = true
	p.allDirty()
}

// probe lends lane i one delivery during an outage: at once what hasn't failed
// yet, and every probeEvery something that has. What is fresh costs at most one
// call for each held delivery, and it may be what shows that this is no outage
// but a queue that begins with poison: nothing healthy waits for a second try of
// what failed.
func (p *Planner) probe(i int) bool {
	l := &p.lanes[i]
	if l.out > 0 || !p.hasWork(l) {
		return false
	}
	fresh := l.ready.fresh.n > 0 || p.shared.fresh.n > 0 || p.keyless.fresh.n > 0
	if !fresh {
		if p.now < l.probeAt {
			return false
		}
		l.probeAt = p.now + probeEvery
	}
	keyed, shared, keyless := l.ready.of(fresh), p.shared.of(fresh), p.keyless.of(fresh)
	r := p.newRun(i)
	switch {
	case keyed.n > 0 && (shared.n+keyless.n == 0 || !l.keyless):
		l.keyless = true
		l.ready.turn = !fresh // it is the list that is meant
		p.takeTurn(r, &l.ready)
	case keyless.n > 0 && (shared.n == 0 || !l.sharedTurn):
		l.keyless, l.sharedTurn, r.shared = false, true, true
		p.take(r, keyless.pop(), nil)
	default:
		l.keyless, l.sharedTurn, r.shared = false, false, true
		p.takeKey(r, i, shared.head, 1)
	}
	p.lend(i, r)
	return true
}
