package plan

// link appends it to the held items.
func (p *Planner) link(it *Item) {
	it.older = p.newest
	if p.newest == nil {
		p.oldest = it
	} else {
		p.newest.newer = it
	}
	p.newest = it
	p.heldN++
}

// gone forgets it. Its key must not count it any more.
func (p *Planner) gone(it *Item) {
	if it.older == nil {
		p.oldest = it.newer
	} else {
		it.older.newer = it.newer
	}
	if it.newer == nil {
		p.newest = it.older
	} else {
		it.newer.older = it.older
	}
	it.older, it.newer, it.run = nil, nil, nil
	p.heldN--
	it.state = Gone
	if it.k != nil {
		p.place(it.k)
	}
}

// bar changes what bars k, and keeps count of the queued items behind bars.
func (p *Planner) bar(k *key, change func()) {
	before := k.barred()
	change()
	if after := k.barred(); after != before {
		if after {
			p.barredN += k.n
		} else {
			p.barredN -= k.n
		}
	}
}

// hold makes it the holder of its key.
func (p *Planner) hold(it *Item) {
	if k := it.k; k != nil {
		p.bar(k, func() { k.holder = it })
		p.place(k)
	}
}

func (p *Planner) unhold(it *Item) {
	k := it.k
	if k == nil || k.holder != it {
		return
	}
	p.bar(k, func() { k.holder = nil })
	p.releaseVoid(k)
	p.place(k)
}

func (p *Planner) queueBack(it *Item) {
	p.queuedN++
	if it.k == nil {
		p.keyless.of(p.fresh(it)).pushBack(it)
		return
	}
	it.k.pushBack(it)
	p.queued(it.k)
}

func (p *Planner) queueFront(it *Item) {
	p.queuedN++
	if it.k == nil {
		p.keyless.of(p.fresh(it)).pushFront(it)
		return
	}
	it.k.pushFront(it)
	p.queued(it.k)
}

func (p *Planner) queued(k *key) {
	if k.barred() {
		p.barredN++
	}
	p.place(k)
}

// unqueue takes it out of the queue that it waits in.
func (p *Planner) unqueue(it *Item) {
	p.queuedN--
	if it.k == nil {
		p.keyless.remove(it)
		return
	}
	it.k.remove(it)
	if it.k.barred() {
		p.barredN--
	}
}

// place puts k where it belongs: with the ready keys of its lane, with those of
// all lanes, with the cold ones, or nowhere.
func (p *Planner) place(k *key) {
	var want *ring
	switch {
	case k.startable():
		if p.cfg.Mode == PerKey {
			if k.lent == 0 {
				want = p.shared.of(p.fresh(k.head))
			}
		} else {
			want = p.lanes[k.lane].ready.of(p.fresh(k.head))
			p.markDirty(k.lane)
		}
	case k != p.only && k.idle():
		want = &p.cold
	}
	if k.in == want {
		return
	}
	if k.in != nil {
		k.in.remove(k)
	}
	if want == nil {
		return
	}
	want.pushBack(k)
	if want == &p.cold && p.cold.n > coldKeys {
		old := p.cold.head
		p.cold.remove(old)
		delete(p.keys, old.name)
		*old = key{next: p.spare}
		p.spare = old
	}
}

func (p *Planner) markDirty(i int) {
	if l := &p.lanes[i]; !l.dirty && l.out < lanesAhead {
		l.dirty = true
		p.dirty = append(p.dirty, i)
	}
}

func (p *Planner) allDirty() {
	for i := range p.lanes {
		p.markDirty(i)
	}
}

func (p *Planner) becameIdle(i int) {
	p.idleN++
	if l := &p.lanes[i]; !l.idle {
		l.idle = true
		p.idle = append(p.idle, i)
	}
}

// popIdle gives a lane without a run.
func (p *Planner) popIdle() (int, bool) {
	for n := len(p.idle) - 1; n >= 0; n-- {
		i := p.idle[n]
		p.idle = p.idle[:n]
		p.lanes[i].idle = false
		if p.lanes[i].out == 0 {
			return i, true
		}
	}
	return 0, false
}
