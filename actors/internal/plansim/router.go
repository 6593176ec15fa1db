package plansim

import (
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// policy says what follows h's failure. It is asked as the router asks: at once,
// within the event that reported the failure.
type policy func(w *world, h *hand) supervision.Directive

// time is what the router reads off its clock for the next event.
func (w *world) time() int64 {
	w.events++
	t := w.now - w.behind
	w.at, w.behind = max(w.at, t), 0
	return t
}

// pumped brings the router what the pump sent first.
func (w *world) pumped() bool {
	if len(w.pump) == 0 {
		return false
	}
	e := w.pump[0]
	w.pump = append(w.pump[:0], w.pump[1:]...)
	switch e.kind {
	case arrived:
		if w.story != nil {
			w.tell("%v arrive", w.names(e.from, e.to))
		}
		for i := e.from; i < e.to; i++ {
			h := &w.hands[i]
			h.held, h.arrivedAt = true, w.events+1
			if h.m.held++; h.m.held > 1 && h.group < 0 || !w.ids {
				h.m.unsure = true
			}
			w.held = append(w.held, h)
			h.since = max(w.at, w.now-w.behind)
		}
		w.apply(w.p.Arrive(w.time(), w.items[e.from:e.to]))
	case epochEnded:
		w.tell("epoch %d has ended", e.epoch)
		for _, h := range w.held {
			if h.d.Epoch <= e.epoch && !h.knownLost {
				h.knownLost, h.lostAt = true, w.events+1
			}
		}
		w.resetting, w.endSent, w.toCancel = false, false, false
		w.apply(w.p.EpochEnded(w.time(), e.epoch))
	case acceptLost:
		w.tell("the accept of %v, whose copy is confirmed, was lost", e.h)
		e.h.m.copied = true
		w.tally[nAcceptsLost]++
		w.p.AcceptLost(&e.h.d)
	}
	return true
}

// lost brings the router the news of up to n lost leases, two at most.
func (w *world) lost(n int) bool {
	if n = min(n, len(w.losses)); n == 0 {
		return false
	}
	var ds [2]*transport.Delivery
	for i := range n {
		h := w.losses[i]
		ds[i] = &h.d
		w.tell("the router hears that %v's lease is lost", h)
		if h.held && !h.knownLost {
			h.knownLost, h.lostAt = true, w.events+1
		}
	}
	w.losses = append(w.losses[:0], w.losses[n:]...)
	w.apply(w.p.Lost(w.time(), ds[:n]))
	return true
}

// leaseEnds brings the router the news that nobody asks to extend h's lease any
// more: it lapses without a word.
func (w *world) leaseEnds(h *hand) bool {
	if w.broker == stream || !h.held || !h.live || h.settled || h.ending || h.knownLost {
		return false
	}
	w.tell("the router hears that %v's lease is ending", h)
	w.tally[nEndings]++
	h.ending, h.guardsAt = true, w.events+1
	w.apply(w.p.Ending(w.time(), []*transport.Delivery{&h.d}))
	return true
}

// reported brings the router a lane's report, and asks the policy if need be.
func (w *world) reported(ask policy) bool {
	if len(w.reports) == 0 {
		return false
	}
	r, crash := w.reports[0].run, w.reports[0].crash
	w.reports = append(w.reports[:0], w.reports[1:]...)
	w.tell("the router hears what became of lane %d's run", r.Lane)
	l := &w.lanes[r.Lane]
	current := r.Gen == w.p.Gen(r.Lane)
	w.ask, w.failing = ask, w.failing[:0]
	w.release(l, r, current)
	lane, bad := r.Lane, badly(r)
	if crash && current {
		l.down = false
	}
	w.account()
	accounted := w.accounted
	es := w.p.Done(w.time(), r)
	w.account()
	for _, h := range w.failing {
		if h.m.firstFailed != 0 {
			continue
		}
		h.m.firstFailed, h.m.mark = max(w.at, 1), accounted
		if asks(es) { // nothing but this run's successes is accounted before the answer
			h.m.mark = w.accounted
		}
	}
	w.apply(es)
	for _, h := range w.failing {
		if !h.asked {
			h.m.failures++ // it is remembered
		}
		h.reported, h.asked = false, false
	}
	w.failing = w.failing[:0]
	if crash && current {
		l.gen = w.p.Gen(lane)
	} else if current && bad && l.cur == nil && l.run == nil && l.gen != w.p.Gen(lane) {
		w.fail("generation", "lane %d is at generation %d after its failure, the planner at %d", lane, l.gen, w.p.Gen(lane))
	}
	return true
}

// badly says that something of the run didn't succeed.
func badly(r *plan.Run) bool { return r.Succeeded() < r.Finished }

func asks(es []plan.Effect) bool {
	for i := range es {
		if es[i].Kind == plan.Ask {
			return true
		}
	}
	return false
}

func (w *world) isFailing(m *message) bool {
	for _, h := range w.failing {
		if h.m == m {
			return true
		}
	}
	return false
}

// release notes what a report says, before the planner hears it.
func (w *world) release(l *lane, r *plan.Run, current bool) {
	if current {
		l.out--
	}
	for i := range r.Finished {
		it := r.Items[i]
		if it == nil {
			continue // accounted before
		}
		h := handOf(it)
		if h.run == r {
			h.claimed = false
		}
	}
	if !badly(r) {
		return
	}
	if current {
		l.out = 0
	}
	if !r.Batch {
		w.releaseOne(r.Items[r.Finished-1], r.Verdict)
		return
	}
	for i, v := range r.Results[:r.Finished] {
		w.releaseOne(r.Items[i], v)
	}
}

func (w *world) releaseOne(it *plan.Item, v plan.Verdict) {
	if it == nil {
		return
	}
	h := handOf(it)
	switch {
	case !h.held:
	case v == plan.VerdictFailed:
		w.failing = append(w.failing, h)
		h.reported, h.asked, h.m.seen = true, false, true
	case v == plan.VerdictSplit:
		h.alone = true
	case v == plan.VerdictLapsed || v == plan.VerdictRefused:
		if !h.knownLost {
			h.knownLost, h.lostAt = true, w.events+1
		}
	}
}

// copied tells the router how a dead-letter copy went.
func (w *world) copied(i int, ok bool) bool {
	if i >= len(w.copying) {
		return false
	}
	h := w.copying[i]
	w.copying = append(w.copying[:i], w.copying[i+1:]...)
	h.copies = false
	if ok {
		w.tell("the copy of %v is confirmed", h)
		h.confirmed = true
		h.mayAccept = true
		if h.knownLost {
			h.m.copied = true
		}
		w.decide(h.m)
	} else {
		w.tell("the copy of %v fails", h)
		h.tries++
		w.tally[nFailedCopies]++
	}
	w.apply(w.p.Copied(w.time(), h.item, ok, h.tries))
	return true
}

// tick lets the planner's timers fire. Then nothing may be due any more: the
// router would be called for ever.
func (w *world) tick() bool {
	w.tell("tick")
	w.apply(w.p.Tick(w.time()))
	if w.toCancel && w.at >= w.lastReset+int64(w.resetWait) {
		w.fail("reset", "%v after the reset began, handlers still run, and aren't cancelled", time.Duration(w.at-w.lastReset))
	}
	if at := w.p.NextTimer(); at != 0 && at <= w.at {
		w.fail("timers", "after a tick at %v the next timer is at %v", time.Duration(w.at), time.Duration(at))
	}
	return true
}

func (w *world) pause() bool {
	w.tell("pause")
	w.paused = true
	w.apply(w.p.Pause(w.time()))
	return true
}

func (w *world) resume() bool {
	w.tell("resume")
	w.paused = false
	w.apply(w.p.Resume(w.time()))
	return true
}

func (w *world) drain() bool {
	w.tell("drain")
	w.draining = true
	w.apply(w.p.Drain(w.time()))
	return true
}

// unpark lets a key go on, or, with skip, without its head.
func (w *world) unpark(k int, skip bool) bool {
	w.tell("unpark %q, skip %t", keyName(k), skip)
	group := k
	if w.mode == plan.Sequential { // whatever it is called
		group = 0
	}
	standing, parked := group >= 0 && w.pinned[group], false
	for _, h := range w.held {
		if h.group >= 0 && h.group != group || h.group < 0 && h.d.Key != keyName(k) {
			continue
		}
		switch h.item.State() {
		case plan.Parked, plan.Pinned, plan.AbandonWait, plan.CopyWait:
			parked = true
			h.notBefore = 0
			if skip {
				h.mayAccept, h.dir.Park = true, false
			}
		}
	}
	if standing {
		w.pinned[group] = false
	}
	es, found := w.p.Unpark(w.time(), keyName(k), skip)
	w.apply(es)
	if found != (parked || standing) {
		w.fail("unpark", "Unpark of %q says %t, parked %t, pinned %t", keyName(group), found, parked, standing)
	}
	return true
}
