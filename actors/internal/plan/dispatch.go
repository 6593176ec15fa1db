package plan

// hasWork says whether there is anything that l could be given.
func (p *Planner) hasWork(l *lane) bool { return l.ready.n() > 0 || p.sharedN() > 0 }

// sharedN is how many turns wait for whichever lane comes first.
func (p *Planner) sharedN() int { return p.shared.n() + p.keyless.n() }

// dispatch lends what can start.
func (p *Planner) dispatch() {
	if p.cfg.Batch > 0 {
		if p.starved = p.out == 0 && p.heldN >= p.cfg.Credit; p.starved {
			p.allDirty()
		}
	}
	for len(p.dirty) > 0 {
		n := len(p.dirty) - 1
		i := p.dirty[n]
		p.dirty = p.dirty[:n]
		p.lanes[i].dirty = false
		for p.fill(i) {
		}
	}
	if p.sharedN() > 0 {
		p.spread()
	}
	if p.sharedN() == 0 && p.sharedRuns > 0 && p.idleN > 0 && !p.outage {
		p.steal()
	} else {
		p.stealAt = 0
	}
}

// spread gives what is shared to idle lanes first, and then to those that have
// room for a second run.
func (p *Planner) spread() {
	switch {
	case p.outage:
		for i := 0; i < len(p.lanes) && p.sharedN() > 0; i++ {
			p.fill(i)
		}
		return
	case p.cfg.Batch > 0:
		p.spreadBatches()
		return
	}
	for p.sharedN() > 0 {
		i, ok := p.popIdle()
		if !ok {
			break
		}
		p.fill(i)
	}
	for i := 0; p.sharedN() > 0 && i < len(p.lanes) && p.out < lanesAhead*len(p.lanes); i++ {
		p.fill(i)
	}
}

// fill lends lane i one more run, if it has room and there is something for it.
func (p *Planner) fill(i int) bool {
	l := &p.lanes[i]
	if p.outage {
		return p.probe(i)
	}
	if l.out >= lanesAhead || !p.hasWork(l) {
		return false
	}
	if p.cfg.Batch > 0 {
		return p.fillBatch(i)
	}
	// A lane takes one of what is shared while another lane could take the
	// next, and its fair part of it when all are busy.
	others := p.idleN
	if l.out == 0 {
		others--
	}
	share := 0
	switch {
	case others <= 0:
		share = (p.sharedN() + len(p.lanes) - 1) / len(p.lanes)
	case l.out == 0:
		share = 1
	}
	r := p.newRun(i)
	for r.N < MaxRun {
		keyed := l.ready.n() > 0
		shared := share > 0 && p.sharedN() > 0
		if !keyed && !shared {
			break
		}
		if keyed && (!shared || !l.keyless) {
			p.takeTurn(r, &l.ready)
			l.keyless = true
			continue
		}
		l.keyless = false
		share--
		p.takeShared(r, i, MaxRun)
	}
	if r.N == 0 {
		p.recycle(r)
		return false
	}
	p.lend(i, r)
	return true
}

// lend gives lane i the run r.
func (p *Planner) lend(i int, r *Run) {
	l := &p.lanes[i]
	if l.out == 0 {
		p.idleN--
	}
	if r.shared {
		p.sharedRuns++
	}
	r.Gen = l.gen
	l.runs[l.out] = r
	l.out++
	p.out++
	r.open()
	p.emit(Effect{Kind: Lend, Run: r, Lane: i})
}

// takeTurn takes one delivery of q's next key. The key then queues again behind
// the others.
func (p *Planner) takeTurn(r *Run, q *readyKeys) {
	list := q.take()
	k := list.head
	p.take(r, k.pop(), k)
	if k.n == 0 {
		list.remove(k)
	} else if to := q.of(p.fresh(k.head)); to != list || list.n > 1 {
		list.remove(k)
		to.pushBack(k)
	}
}

// takeShared takes one turn of what is shared: a keyless delivery, or a ready
// key with what it has queued.
func (p *Planner) takeShared(r *Run, i, most int) {
	r.shared = true
	l := &p.lanes[i]
	keyless := p.keylessNext(l)
	l.sharedTurn = keyless
	if keyless {
		p.take(r, p.keyless.take().pop(), nil)
		return
	}
	p.takeKey(r, i, p.shared.take().head, most)
}

// keylessNext says whether the next shared turn of l is a keyless delivery's:
// they alternate with the shared keys.
func (p *Planner) keylessNext(l *lane) bool {
	return p.shared.n() == 0 || (p.keyless.n() > 0 && !l.sharedTurn)
}

// takeKey takes what the shared key k has queued, until r holds most, or one has
// to run alone.
func (p *Planner) takeKey(r *Run, i int, k *key, most int) {
	k.in.remove(k)
	k.lane = i
	for k.n > 0 && r.N < most && (r.N == 0 || !k.head.alone) {
		alone := k.head.alone
		p.take(r, k.pop(), k)
		if alone {
			return
		}
	}
}

func (p *Planner) take(r *Run, it *Item, k *key) {
	p.queuedN--
	if len(p.carry.by) > 0 && it.Attempt == 1 {
		p.carry.inherit(it)
	}
	it.state, it.run = Lent, r
	r.Items[r.N] = it
	r.N++
	if k != nil {
		k.lent++
	} else if it.ending {
		p.fence(it)
	}
}

// steal takes back what a busy lane hasn't claimed of the things that an idle
// lane could do, so that nothing waits behind a slow handler while a lane idles.
// A lane that hasn't begun is left alone: two lanes could otherwise rob each
// other for ever. It is looked at again in a moment.
func (p *Planner) steal() {
	victim, most, waits := -1, 0, false
	for i := range p.lanes {
		l := &p.lanes[i]
		n, begun := 0, false
		var at *key // whose delivery the lane is at: what follows of it has to wait
		for j := range l.out {
			r := l.runs[j]
			c := r.Claimed()
			if c > 0 {
				begun, at = true, r.Items[c-1].k
			}
			if r.shared {
				n += r.movable(c, at)
			}
		}
		waits = waits || n > 0
		if n > most && begun {
			victim, most = i, n
		}
	}
	p.stealAt = 0
	if waits {
		p.stealAt = p.now + stealEvery
	}
	if victim < 0 {
		return
	}
	p.clawLane(victim)
	if p.sharedN() > 0 {
		p.spread()
	}
}

// movable is how many of r's items from index c on could run elsewhere, beside
// one of key at.
func (r *Run) movable(c int, at *key) int {
	if r.unclaimed() == 0 {
		return 0
	}
	n := 0
	for _, it := range r.Items[c:r.top] {
		if it.k == nil || it.k != at {
			n++
		}
	}
	return n
}

func (p *Planner) newRun(i int) *Run {
	var r *Run
	if n := len(p.runs); n > 0 {
		r = p.runs[n-1]
		p.runs = p.runs[:n-1]
	} else {
		r = &Run{Items: make([]*Item, max(MaxRun, p.cfg.Batch)), Batch: p.cfg.Batch > 0}
		if r.Batch {
			r.Results = make([]Verdict, len(r.Items))
		}
	}
	r.Lane, r.N, r.shared = i, 0, false
	return r
}

// recycle takes a run that no lane will touch again.
func (p *Planner) recycle(r *Run) {
	clear(r.Items[:r.N])
	p.runs = append(p.runs, r)
}

// dropRun takes r out of lane i's runs.
func (p *Planner) dropRun(i int, r *Run) {
	l := &p.lanes[i]
	for j := range l.out {
		if l.runs[j] != r {
			continue
		}
		copy(l.runs[j:], l.runs[j+1:l.out])
		l.out--
		l.runs[l.out] = nil
		p.out--
		if r.shared {
			p.sharedRuns--
		}
		if l.out == 0 {
			p.becameIdle(i)
		}
		p.markDirty(i)
		return
	}
	panic("plan: the lane wasn't lent this run")
}

// clawAll takes back whatever no lane has claimed.
func (p *Planner) clawAll() {
	for i := range p.lanes {
		p.clawLane(i)
	}
}

// clawLane takes back what lane i hasn't claimed. The later run goes first and
// each from its end, so that the queues' order stays. The runs themselves stay
// out until the lane reports them.
func (p *Planner) clawLane(i int) {
	l := &p.lanes[i]
	for j := l.out - 1; j >= 0; j-- {
		p.takeBack(l.runs[j])
	}
}

// takeBack claws r and accounts for what the lane has certainly finished: all it
// claimed but the last, since it ends a run at the first failure.
func (p *Planner) takeBack(r *Run) {
	c := r.Claw()
	p.takeBackFrom(r, c)
	for !r.Batch && r.acc < c-1 {
		p.accountNext(r)
	}
}

// accountNext accounts for the next item of r, which was claimed and succeeded.
func (p *Planner) accountNext(r *Run) {
	it := r.Items[r.acc]
	r.Items[r.acc] = nil
	r.acc++
	p.succeeded(it)
}

// takeBackFrom queues r's items from index n on again, the last one first.
func (p *Planner) takeBackFrom(r *Run, n int) {
	for i := r.top - 1; i >= n; i-- {
		it := r.Items[i]
		r.Items[i] = nil
		p.letGo(it)
		p.requeue(it)
	}
	r.top = min(r.top, n)
}

// requeue queues what was lent again, at its old place. Its key hasn't had its
// turn after all: else keys that fail at once could keep the others waiting for
// ever.
func (p *Planner) requeue(it *Item) {
	it.state = Queued
	p.queueFront(it)
	if k := it.k; k != nil && k.in != nil {
		k.in.toFront(k)
	}
}
