package plan

// What waits for a lane is kept in two lists: what hasn't failed yet, and what is
// tried again. They take turns, and after a failure what hasn't failed goes
// first. So whatever keeps failing, nothing healthy waits for more than one run
// of it, however many there are of it.

// readyKeys are keys that take turns. The front of each list is its next.
type readyKeys struct {
	fresh, again ring // by whether the first of the key's queue has failed
	turn         bool // the last was fresh
}

func (q *readyKeys) n() int { return q.fresh.n + q.again.n }

// of is the list for a key whose first delivery is fresh, or not.
func (q *readyKeys) of(fresh bool) *ring {
	if fresh {
		return &q.fresh
	}
	return &q.again
}

// next is the list that has its turn. One of them isn't empty.
func (q *readyKeys) next() *ring { return q.of(freshNext(q.fresh.n, q.again.n, q.turn)) }

// take is next, and the other one has the next turn.
func (q *readyKeys) take() *ring {
	r := q.next()
	q.turn = r == &q.fresh
	return r
}

// readyItems are the keyless deliveries.
type readyItems struct {
	fresh, again key
	turn         bool // the last was fresh
}

func (q *readyItems) n() int { return q.fresh.n + q.again.n }

func (q *readyItems) of(fresh bool) *key {
	if fresh {
		return &q.fresh
	}
	return &q.again
}

func (q *readyItems) next() *key { return q.of(freshNext(q.fresh.n, q.again.n, q.turn)) }

func (q *readyItems) take() *key {
	k := q.next()
	q.turn = k == &q.fresh
	return k
}

// remove takes it out of the list that it is in.
func (q *readyItems) remove(it *Item) {
	if !q.fresh.remove(it) && !q.again.remove(it) {
		panic("plan: the item isn't queued")
	}
}

// freshNext says whether the next turn is that of what is fresh.
func freshNext(fresh, again int, turn bool) bool { return again == 0 || fresh > 0 && !turn }

// fresh says that it hasn't failed yet. What failed before it went back to the
// broker matters, and is looked up, only while an outage makes calls scarce.
func (p *Planner) fresh(it *Item) bool {
	if it.Failed() {
		return false
	}
	if !p.outage {
		return true
	}
	c, known := p.carry.find(it)
	return !known || c.copied
}

// afterFailure gives the next turn, in whatever lane i is lent next, to something
// else than what has just failed.
func (p *Planner) afterFailure(i int, it *Item) {
	l := &p.lanes[i]
	l.ready.turn, p.shared.turn, p.keyless.turn = false, false, false
	l.keyless = it.k != nil && p.cfg.Mode != PerKey
	l.sharedTurn = it.k == nil
}

// remember keeps the attempts of an item that goes away undecided. It must leave
// its key next, or be keyless.
func (p *Planner) remember(it *Item) {
	p.carry.remember(it)
	if p.outage && it.k == nil { // a copy of it that is held isn't fresh any more
		p.sortOut()
	}
}

// sortOut moves what isn't fresh any more to where it belongs.
func (p *Planner) sortOut() {
	for i := range p.lanes {
		p.sortOutKeys(&p.lanes[i].ready.fresh)
	}
	p.sortOutKeys(&p.shared.fresh)
	for n := p.keyless.fresh.n; n > 0; n-- {
		it := p.keyless.fresh.pop()
		p.keyless.of(p.fresh(it)).pushBack(it)
	}
}

func (p *Planner) sortOutKeys(r *ring) {
	for k := r.head; k != nil; {
		next := k.next
		p.place(k)
		k = next
	}
}
