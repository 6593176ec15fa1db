package plan

// fillBatch lends lane i a batch, if there is one for it. What has to run alone is
// a batch of one.
func (p *Planner) fillBatch(i int) bool {
	l := &p.lanes[i]
	if !p.batchReady(&l.ready, l.out) {
		return false
	}
	r := p.newRun(i)
	for r.N < p.cfg.Batch && p.hasWork(l) {
		keyed := l.ready.n() > 0 && (p.sharedN() == 0 || !l.keyless)
		alone := p.nextInLine(l, keyed).alone
		if alone && r.N > 0 {
			break
		}
		l.keyless = keyed
		if keyed {
			p.takeTurn(r, &l.ready)
		} else {
			p.takeShared(r, i, p.cfg.Batch)
		}
		if alone {
			break
		}
	}
	p.lend(i, r)
	return true
}

// nextInLine is what lane l takes next, of its own or of what is shared.
func (p *Planner) nextInLine(l *lane, keyed bool) *Item {
	switch {
	case keyed:
		return l.ready.next().head.head
	case p.keylessNext(l):
		return p.keyless.next().head
	default:
		return p.shared.next().head.head
	}
}

// batchReady says whether a lane that has out runs takes a batch of own and of what
// is shared: when it is full, or when the lane has nothing else to do and the first
// delivery in line has waited for long enough, or nothing more can come.
func (p *Planner) batchReady(own *readyKeys, out int) bool {
	return p.batchFull(own) || out == 0 && (p.starved || p.now >= p.batchDue(own))
}

// batchFull says that own and what is shared fill a batch, or that one of those
// that are next has to run alone.
func (p *Planner) batchFull(own *readyKeys) bool {
	n := p.keyless.n()
	for _, k := range [...]*key{&p.keyless.fresh, &p.keyless.again} {
		if k.head != nil && k.head.alone {
			return true
		}
	}
	for _, r := range [...]*ring{&own.fresh, &own.again, &p.shared.fresh, &p.shared.again} {
		for k := r.head; k != nil && n < p.cfg.Batch; k = k.next {
			if k.head.alone {
				return true
			}
			n += k.n
		}
	}
	return n >= p.cfg.Batch
}

// batchDue is when what is first in line, of own and of what is shared, has
// waited for long enough.
func (p *Planner) batchDue(own *readyKeys) int64 {
	due := int64(0)
	first := func(it *Item) {
		if at := it.arrived + int64(p.cfg.BatchWait); due == 0 || at < due {
			due = at
		}
	}
	for _, k := range [...]*key{&p.keyless.fresh, &p.keyless.again} {
		if k.head != nil {
			first(k.head)
		}
	}
	for _, r := range [...]*ring{&own.fresh, &own.again, &p.shared.fresh, &p.shared.again} {
		if r.head != nil {
			first(r.head.head)
		}
	}
	return due
}

// batchesDue is the earliest time at which a lane with nothing to do is to be
// lent a batch that isn't full; 0 for never.
func (p *Planner) batchesDue() int64 {
	due := int64(0)
	if p.idleN == 0 {
		return 0
	}
	for i := range p.lanes {
		l := &p.lanes[i]
		if l.out > 0 || !p.hasWork(l) {
			continue
		}
		if at := p.batchDue(&l.ready); due == 0 || at < due {
			due = at
		}
		if p.cfg.Mode != ByKey {
			break // it is the same for each
		}
	}
	return due
}

// spreadBatches gives what is shared to lanes with nothing to do first, and full
// batches to those that have room for a second one.
func (p *Planner) spreadBatches() {
	none := readyKeys{}
	for out := range lanesAhead {
		for i := 0; i < len(p.lanes) && p.sharedN() > 0; i++ {
			if p.cfg.Mode != ByKey && !p.batchReady(&none, out) {
				return // no lane has anything of its own to fill a batch with
			}
			if p.lanes[i].out == out {
				p.fill(i)
			}
		}
	}
}

// batchDone takes a lane's report of a batch. What waits behind a batch of which
// something failed goes back to its queues, as with single deliveries.
func (p *Planner) batchDone(r *Run) {
	p.takeBackFrom(r, r.Finished) // clawed before it was claimed: all of it
	if r.Succeeded() < r.Finished {
		p.voidBehind(r)
	}
	p.dropRun(r.Lane, r)
	p.settleBatch(r)
	p.recycle(r)
}

// settleBatch handles what was claimed of a batch: successes first, since they
// are evidence; then what goes back to the queues, the last first; then what
// failed.
func (p *Planner) settleBatch(r *Run) {
	for i := range r.Finished {
		if it := r.Items[i]; it != nil && r.Results[i] == VerdictOK {
			r.Items[i] = nil
			p.succeeded(it)
		}
	}
	for i := r.Finished - 1; i >= 0; i-- {
		it := r.Items[i]
		if it == nil || r.Results[i] != VerdictHeld && r.Results[i] != VerdictSplit {
			continue
		}
		void := p.cfg.Traits.GroupsExclusive && r.lostBefore(i)
		it.alone = it.alone || r.Results[i] == VerdictSplit
		p.letGo(it)
		switch {
		case it.lost:
			p.goneUndecided(it)
		case void:
			it.state = Void
			it.k.void++
		default:
			p.requeue(it)
		}
	}
	for i := range r.Finished {
		it := r.Items[i]
		if it == nil || r.Results[i] == VerdictHeld || r.Results[i] == VerdictSplit {
			continue
		}
		p.afterFailure(r.Lane, it)
		p.ended(it, r.Lane, r.Results[i])
	}
	for i := range r.Finished {
		if it := r.Items[i]; it != nil && it.k != nil && it.k.void > 0 {
			p.releaseVoid(it.k)
			p.place(it.k)
		}
	}
}

// In says whether it was lent in r. The planner's goroutine only.
func (it *Item) In(r *Run) bool { return it.run == r }

// AllLost says whether everything in r has lost its lease. The planner's
// goroutine only.
func (r *Run) AllLost() bool {
	for _, it := range r.Items[:r.top] {
		if it != nil && !it.lost {
			return false
		}
	}
	return true
}

// lostBefore says whether an earlier item of item i's key is known to have lost
// its lease. Its successors in the queue were void from then on; so is this one.
// Where a lane finds a lease lost first, failed takes them from the queue.
func (r *Run) lostBefore(i int) bool {
	for j := range i {
		if it := r.Items[j]; it != nil && it.lost && it.SameKey(r.Items[i]) {
			return true
		}
	}
	return false
}
