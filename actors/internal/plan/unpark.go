package plan

import "github.com/keylanes/keylanes/transport"

// Unpark lets a parked or pinned key go on: its head is tried again now or, with
// skip, accepted although it failed. It says whether the key was parked. Where
// there is no key to park, whatever is parked under that name goes on; the name
// of what is keyless is "".
func (p *Planner) Unpark(now int64, name string, skip bool) ([]Effect, bool) {
	p.begin(now)
	found := false
	if k := p.only; k != nil {
		found = p.unparkKey(k, skip)
	} else if k = p.keys[name]; k != nil {
		found = p.unparkKey(k, skip)
	} else {
		found = p.unparkKeyless(name, skip)
	}
	return p.end(), found
}

func (p *Planner) unparkKey(k *key, skip bool) bool {
	found := k.pinned
	p.bar(k, func() { k.pinned = false })
	if it := k.holder; it != nil && it.waits() {
		found = true
		p.unpark(it, skip)
	}
	p.place(k)
	return found
}

// unparkKeyless looks at everything that is held: it is rare, and credit bounds it.
func (p *Planner) unparkKeyless(name string, skip bool) bool {
	found := false
	for it := p.oldest; it != nil; {
		newer := it.newer
		if it.k == nil && it.Key == name && it.waits() {
			found = true
			p.unpark(it, skip)
		}
		it = newer
	}
	return found
}

func (p *Planner) unpark(it *Item, skip bool) {
	p.unwait(it)
	if skip {
		it.dir.Park = false
		p.emit(Effect{Kind: Settle, Item: it, Outcome: transport.Outcome{Kind: transport.Accept}})
		p.decided(it)
		return
	}
	it.state = Queued
	p.unhold(it)
	p.queueFront(it)
}
