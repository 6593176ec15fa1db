package plan

import (
	"slices"

	"github.com/keylanes/keylanes/transport"
)

// Lost says that the leases of ds are gone without a settlement. Deliveries that
// the planner doesn't hold any more are ignored.
func (p *Planner) Lost(now int64, ds []*transport.Delivery) []Effect {
	p.begin(now)
	// The earlier one first, whatever the order of ds: when a group's head runs,
	// nothing behind it goes back before that has returned.
	var lost []*Item
	for it := p.oldest; it != nil; it = it.newer { // rare, and held is bounded by the credit
		if slices.Contains(ds, it.D) {
			lost = append(lost, it)
		}
	}
	for _, it := range lost {
		if it.state != Gone {
			p.lose(it, true)
		}
	}
	return p.end()
}

// EpochEnded says that every lease of the epoch, and of those before it, is
// gone. What still runs of them fences its key.
func (p *Planner) EpochEnded(now int64, epoch uint64) []Effect {
	p.begin(now)
	p.clawAll()
	var all []*Item // losing one may give others back, so the list can't be walked
	for it := p.oldest; it != nil; it = it.newer {
		if it.D.Epoch <= epoch {
			all = append(all, it)
		}
	}
	for _, it := range all {
		if it.state != Gone {
			p.lose(it, false)
		}
	}
	if p.gate&gateReset != 0 {
		p.gate &^= gateReset
		p.resetBy, p.endSent = 0, false
		p.abandoning = p.abandoning[:0]
		p.allDirty()
	}
	return p.end()
}

// lose handles the loss of one item's lease. With group, the loss is that item's
// alone, and voids what is held behind it in an exclusive group.
func (p *Planner) lose(it *Item, group bool) {
	if it.lost {
		return
	}
	if it.state == Lent {
		p.clawLane(it.run.Lane)
		if it.state == Gone { // the lane had finished it already
			return
		}
	}
	switch it.state {
	case Lent, Stuck:
		// Claimed: its handler may be running. Whatever starts of its key, a
		// copy of itself included, waits for that to end.
		it.lost = true
		p.fence(it) // a stuck one does already
		p.emit(Effect{Kind: Cancel, Item: it})
		if group {
			p.voidSuccessors(it)
		}
	case Copying:
		it.lost = true // Copied looks at it
		if group {
			p.voidSuccessors(it)
		}
	case Void:
		it.k.void--
		p.goneUndecided(it)
	case Fenced:
		c := p.copies[it.D.ID]
		for i, w := range c.waiting {
			if w == it {
				c.waiting = append(c.waiting[:i], c.waiting[i+1:]...)
				break
			}
		}
		p.goneUndecided(it)
	case Queued:
		if group {
			p.voidSuccessors(it)
		}
		p.unqueue(it)
		p.goneUndecided(it)
	default: // waits for a timer, an unpark or the end of the epoch
		if it.state != Abandoning {
			p.unwait(it)
		}
		if group {
			p.voidSuccessors(it)
		}
		p.goneUndecided(it)
	}
}

// goneUndecided forgets an item that isn't decided: it will come again, and its
// attempts are remembered until then.
func (p *Planner) goneUndecided(it *Item) {
	p.remember(it)
	p.unhold(it)
	p.gone(it)
}

// AcceptLost says that the accept of a dead-lettered delivery didn't reach the
// broker: when the message comes again it is accepted without a second copy.
func (p *Planner) AcceptLost(d *transport.Delivery) { p.carry.copied(d) }

// voidSuccessors takes what is queued behind it in its exclusive group out of
// the queue. It goes back at once, or when the handler that fences the key has
// returned, so that no successor runs elsewhere beside its predecessor.
func (p *Planner) voidSuccessors(it *Item) {
	k := it.k
	if k == nil || !p.cfg.Traits.GroupsExclusive || k.n == 0 {
		return
	}
	from := k.head
	if it.state == Queued { // in the middle of the queue: those before it stand
		from = it.next
	}
	for from != nil {
		next := from.next
		p.unqueue(from)
		from.state = Void
		k.void++
		from = next
	}
	p.releaseVoid(k)
	p.place(k)
}

// releaseVoid gives a key's void successors back, the last one first: while an
// earlier one is still out, the broker keeps the group to itself. They are looked
// for among all that is held, which has them in order whatever voided them.
func (p *Planner) releaseVoid(k *key) {
	if k.fences > 0 {
		return
	}
	for it := p.newest; it != nil && k.void > 0; {
		older := it.older
		if it.state == Void && it.k == k {
			k.void--
			p.giveBack(it)
		}
		it = older
	}
}

// giveBack returns an item that wasn't started to the broker.
func (p *Planner) giveBack(it *Item) {
	p.emit(Effect{Kind: Settle, Item: it, Outcome: transport.Outcome{Kind: transport.Return}})
	p.remember(it)
	p.gone(it)
}

// copies are hand-outs of one keyless message, known by its id, of which an
// earlier one has lost its lease and still runs.
type copies struct {
	running int
	waiting []*Item
}

// Ending says that the leases of ds will lapse without a word, since nobody asks
// to extend them any more. A keyless message of them may come again while its
// handler runs: the copy waits, as after a loss. What has a key waits for that.
func (p *Planner) Ending(now int64, ds []*transport.Delivery) []Effect {
	p.begin(now)
	for it := p.oldest; it != nil; it = it.newer {
		if it.k == nil && slices.Contains(ds, it.D) {
			it.ending = true
			if it.state == Lent {
				p.fence(it)
			}
		}
	}
	return p.end()
}

// fence keeps the key of an item that may still run from starting anything.
func (p *Planner) fence(it *Item) {
	if it.fenced {
		return
	}
	it.fenced = true
	p.fencesN++
	if k := it.k; k != nil {
		p.bar(k, func() { k.fences++ })
		p.place(k)
		return
	}
	if it.D.ID == "" {
		return
	}
	c := p.copies[it.D.ID]
	if c == nil {
		c = &copies{}
		p.copies[it.D.ID] = c
	}
	c.running++
}

// unfence undoes fence when the item's handler has returned.
func (p *Planner) unfence(it *Item) {
	if !it.fenced {
		return
	}
	it.fenced = false
	p.fencesN--
	if k := it.k; k != nil {
		p.bar(k, func() { k.fences-- })
		p.releaseVoid(k)
		p.place(k)
		return
	}
	if it.D.ID == "" {
		return
	}
	c := p.copies[it.D.ID]
	c.running--
	if c.running > 0 {
		return
	}
	delete(p.copies, it.D.ID)
	for _, w := range c.waiting {
		w.state = Queued
		p.queueBack(w)
	}
}
