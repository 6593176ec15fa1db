package plansim

import (
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// apply carries effects out as the router does, and checks each against the
// books. What is left of a buffer when the policy is asked is copied first: the
// answer is an event of its own.
func (w *world) apply(es []plan.Effect) {
	for i := 0; i < len(es); i++ {
		e := &es[i]
		if e.Kind == plan.Ask {
			h := w.known(e.Item)
			w.rest = append(w.rest[:0], es[i+1:]...)
			es, i = append(w.rest, w.asked(h)...), -1
			continue
		}
		w.effect(e)
	}
	w.checkAll()
}

func (w *world) effect(e *plan.Effect) {
	switch e.Kind {
	case plan.Lend:
		w.lent(e.Lane, e.Run)
	case plan.Settle:
		w.settled(w.known(e.Item), e.Outcome)
	case plan.Copy:
		w.copyBegins(w.known(e.Item))
	case plan.Cancel:
		h := handOf(e.Item)
		if !h.knownLost || !h.claimed {
			w.fail("cancel", "%v is cancelled, but its lease isn't lost, or no lane has it", h)
		}
		h.cancelled = true
		w.tell("%v is cancelled", h)
	case plan.CancelAll:
		if !w.resetting {
			w.fail("cancel", "everything is cancelled, and no epoch is to end")
		}
		w.toCancel = false
		for i := range w.lanes {
			if l := &w.lanes[i]; l.cur != nil {
				l.cur.cancelled = true
				for _, h := range l.batch {
					h.cancelled = true
				}
			}
		}
		w.tell("all are cancelled")
	case plan.Restart:
		l := &w.lanes[e.Lane]
		if l.cur != nil || l.down || (l.run != nil && l.run.Claimed() > 0) {
			w.fail("restart", "lane %d is restarted while it runs", e.Lane)
		}
		if l.run != nil { // the old runner finds nothing to claim in it
			w.reports = append(w.reports, report{run: l.run})
		}
		l.runner = runner{lane: e.Lane, gen: w.p.Gen(e.Lane)}
		l.mail = l.mail[:0]
		l.out = 0
		w.tally[nRestarts]++
		w.tell("lane %d is restarted", e.Lane)
	case plan.EndEpoch:
		w.atRest("end of the epoch")
		if w.endSent {
			w.fail("reset", "the epoch is ended twice")
		}
		w.tally[nResets]++
		w.closing, w.endSent, w.toCancel = true, true, false
		w.tell("the epoch is to end")
	case plan.Drained:
		w.atRest("end of the drain")
		if !w.draining || w.drained {
			w.fail("drain", "Drained is reported twice, or not asked for")
		}
		w.drained = true
		w.tally[nDrains]++
		w.tell("drained")
	case plan.Stop, plan.Escalate:
		want := supervision.ActionStop
		if e.Kind == plan.Escalate {
			want = supervision.ActionEscalate
		}
		if h := w.known(e.Item); h.dir.Action != want {
			w.fail("stop", "%v for %v, whose directive is %v", e.Kind, h, h.dir.Action)
		}
		w.halted = true
		w.tally[nStops]++
		w.tell("%v", e.Kind)
	case plan.Note:
		w.noted(e)
	}
}

// known is the hand-out of an effect's item. The planner must still hold it: a
// timer of something that is gone does nothing.
func (w *world) known(it *plan.Item) *hand {
	h := handOf(it)
	if !h.held || h.settled {
		w.fail("gone", "an effect names %v, which is gone", h)
	}
	return h
}

func (w *world) lent(i int, r *plan.Run) {
	l := &w.lanes[i]
	if r.Gen != w.p.Gen(i) || r.Lane != i {
		w.fail("generation", "a run of lane %d, generation %d, is lent to lane %d, generation %d", r.Lane, r.Gen, i, w.p.Gen(i))
	}
	if w.paused || w.draining || w.drained || w.resetting || w.halted {
		w.fail("gate", "lane %d is lent a run, but paused %t, draining %t, resetting %t, halted %t", i, w.paused, w.draining, w.resetting, w.halted)
	}
	if r.N == 0 {
		w.fail("lend", "an empty run is lent")
	}
	if w.batch > 0 {
		w.checkBatch(i, r)
	}
	if w.outage { // a lane tries one thing at a time, and what has failed not often
		again := r.Items[0] != nil && r.Items[0].Failed()
		if r.N != 1 || l.out > 0 || again && w.at-l.probed < int64(250*time.Millisecond) {
			w.fail("probe", "lane %d is lent %d items during an outage, %v after the last, runs out %d", i, r.N, time.Duration(w.at-l.probed), l.out)
		}
		if again {
			l.probed = w.at
		}
	}
	for _, it := range r.Items[:r.N] {
		if it == nil {
			w.tally[nTakenBack]++
			continue // taken back within the same event
		}
		h := w.known(it)
		switch {
		case h.claimed:
			w.fail("claim", "%v is lent to lane %d while another has claimed it", h, i)
		case h.knownLost:
			w.fail("lost", "%v is lent, and its lease is lost", h)
		case h.notBefore > w.at:
			w.fail("backoff", "%v is lent %v before its retry is due", h, time.Duration(h.notBefore-w.at))
		case h.group >= 0 && w.pinned[h.group]:
			w.fail("parked", "%v is lent, and its key is parked", h)
		case w.mode == plan.ByKey && h.group >= 0 && plan.LaneOf(h.d.Key, w.scenario.lanes) != i:
			w.fail("lane", "%v is lent to lane %d", h, i)
		}
		h.run, h.guardsAt = r, w.events
	}
	l.mail = append(l.mail, r)
	l.out++
	if w.story != nil {
		w.tell("lane %d is lent %v", i, runNames(r))
	}
}

// asked is the policy's turn.
func (w *world) asked(h *hand) []plan.Effect {
	m := h.m
	if !h.reported || h.asked {
		w.fail("ask", "the policy is asked about %v, which didn't fail", h)
	}
	if attempt := h.item.Attempt; !m.unsure && !m.decided && attempt != m.failures+1 {
		w.fail("attempts", "the policy sees attempt %d of %v, which has failed %d times before", attempt, h, m.failures)
	}
	h.asked = true
	d := w.ask(w, h)
	if !d.Uncounted {
		m.failures++
	}
	h.dir = d
	h.failed = true
	if w.story != nil {
		w.tell("the policy says: %v after %v%s", d.Action, d.After, flags(d))
	}
	switch d.Action {
	case supervision.ActionAccept:
		h.mayAccept = true
	case 0, supervision.ActionRetry, supervision.ActionDeadLetter:
		h.notBefore = w.at + max(int64(d.After), int64(time.Millisecond))
	}
	return w.p.Decide(w.time(), h.item, d)
}

func (w *world) settled(h *hand, o transport.Outcome) {
	if w.story != nil {
		w.tell("%v is settled: %v", h, o.Kind)
	}
	if h.running || h.claimed {
		w.fail("settle", "%v is settled with %v while a lane has it", h, o.Kind)
	}
	switch o.Kind {
	case transport.Accept:
		if !h.mayAccept && !h.m.copied {
			w.fail("accept", "%v is accepted, but it neither succeeded nor was copied", h)
		}
		w.decide(h.m)
		w.pin(h)
	case transport.Reject:
		w.tally[nRejects]++
		w.checkDeadLetter(h)
		if !w.native {
			w.fail("dead-letter", "%v is rejected, and the broker's own path isn't to be used", h)
		}
		w.decide(h.m)
		w.pin(h)
	case transport.Abandon:
		if h.dir.Action != supervision.ActionAbandon {
			w.fail("abandon", "%v is abandoned, its directive is %v", h, h.dir.Action)
		}
		w.checkBehind(h, o.Kind)
		w.checkReceives(h)
		if w.broker == fifo && h.group >= 0 {
			w.tally[nGroupAbandons]++
		} else {
			w.tally[nSingles]++
		}
	case transport.Return:
		w.tally[nVoids]++
		if w.broker != fifo {
			w.fail("return", "%v is returned to a broker without groups", h)
		}
		w.checkBehind(h, o.Kind)
	default:
		w.fail("settle", "%v is settled with %v", h, o.Kind)
	}
	h.settledAt = w.events
	lost := !w.quiet && !w.calm && w.r.n(16) == 0 && (o.Kind == transport.Accept || o.Kind == transport.Reject)
	w.settle(h, o, lost)
}

// pin parks the key of a dead-lettered or accepted delivery for good, when the
// policy says so.
func (w *world) pin(h *hand) {
	a := h.dir.Action
	if h.dir.Park && h.group >= 0 && (a == supervision.ActionAccept || a == supervision.ActionDeadLetter) {
		w.pinned[h.group] = true
		w.tally[nPins]++
	}
}

func (w *world) copyBegins(h *hand) {
	w.checkDeadLetter(h)
	if w.native || !w.target {
		w.fail("dead-letter", "%v is copied, and there is no target for that", h)
	}
	if h.m.copied && w.ids {
		w.fail("second copy", "%v is copied again: its copy was confirmed", h)
	}
	if w.draining || w.halted {
		w.fail("gate", "%v is copied, but draining %t, halted %t", h, w.draining, w.halted)
	}
	if h.copies {
		w.fail("second copy", "%v is copied while it is copied", h)
	}
	h.copies = true
	w.tally[nCopies]++
	w.copying = append(w.copying, h)
	w.tell("%v is copied to the dead-letter target", h)
}

func (w *world) noted(e *plan.Effect) {
	switch e.Note {
	case plan.NoteOutageBegan, plan.NoteOutageEnded:
		began := e.Note == plan.NoteOutageBegan
		w.tally[nOutages]++
		if w.outage == began {
			w.fail("outage", "the note %v comes twice in a row", e.Note)
		}
		w.outage = began
		for i := range w.lanes {
			w.lanes[i].probed = w.at
		}
		if !began {
			for _, h := range w.held {
				h.notBefore = 0
			}
		}
	case plan.NoteNoTarget:
		w.tally[nNoTarget]++
	case plan.NoteNoEvidence:
		w.tally[nNoEvidence]++
		w.known(e.Item).notBefore = w.at + int64(250*time.Millisecond) // as lanes probe
	case plan.NoteRetriedInstead:
		w.tally[nRetriedInstead]++
		h := w.known(e.Item)
		h.notBefore = w.at + max(int64(h.dir.After), int64(time.Millisecond))
	}
	w.tell("note: %v", e.Note)
}
