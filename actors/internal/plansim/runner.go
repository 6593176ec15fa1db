package plansim

import (
	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/transport"
)

// outcome is how a handler ends.
type outcome uint8

const (
	succeeds outcome = iota
	swallows         // succeeds, and its accept is lost on the way to the broker, or comes too late
	fails
	panics
)

// canStep says that the runner's next claim does something.
func (w *world) canStep(l *lane) bool {
	return l.cur == nil && !l.down && (l.run != nil || len(l.mail) > 0)
}

// step lets a lane take its next run, if it has none, and claim the next item.
func (w *world) step(l *lane) bool {
	if !w.canStep(l) {
		return false
	}
	for l.run == nil {
		if len(l.mail) == 0 {
			return true
		}
		r := l.mail[0]
		l.mail = append(l.mail[:0], l.mail[1:]...)
		if r.Gen == l.gen {
			l.run = r
		}
	}
	w.claim(&l.runner)
	return true
}

// claim starts the run's next item, or ends the run.
func (w *world) claim(x *runner) {
	r := x.run
	if r.Batch {
		w.claimBatch(x)
		return
	}
	i, ok := r.Claim()
	if !ok {
		w.tell("lane %d has done its run", x.lane)
		w.report(x, r, false)
		return
	}
	h := handOf(r.Items[i])
	w.checkClaim(h, r)
	r.Finished = i + 1
	h.claimed = true
	if !h.live {
		w.tally[nLapsed]++
		w.tell("lane %d finds %v's lease lapsed", x.lane, h)
		w.end(x, plan.VerdictLapsed)
		return
	}
	w.start(x, h)
	x.cur = h
}

func (w *world) start(x *runner, h *hand) {
	w.checkStart(h)
	w.tally[nStarts]++
	h.running = true
	h.m.running++
	if h.group >= 0 {
		w.running[h.group] = h
	}
	if w.story != nil {
		w.tell("lane %d starts %v, attempt %d", x.lane, h, h.item.Attempt)
	}
}

func (w *world) stop(h *hand) {
	h.running = false
	h.m.running--
	if h.group >= 0 {
		w.running[h.group] = nil
	}
}

// finish ends the handler that x runs.
func (w *world) finish(x *runner, o outcome) bool {
	h := x.cur
	if h == nil {
		return false
	}
	if x.run.Batch {
		w.finishBatch(x, o)
		return true
	}
	x.cur = nil
	w.stop(h)
	switch {
	case o == fails && h.live && (h.cancelled || w.draining): // a drain's time may be over
		w.tell("lane %d: %v gives up", x.lane, h)
		w.tally[nGaveUp]++
		w.end(x, plan.VerdictGaveUp)
	case o >= fails:
		h.failed = true
		w.tell("lane %d: %v fails", x.lane, h)
		x.down = o == panics
		w.tally[nFailures+int(o-fails)]++
		w.end(x, plan.VerdictFailed)
	case !h.live && o == succeeds:
		w.tally[nRefused]++
		w.tell("lane %d: %v succeeds, but its lease is lost", x.lane, h)
		w.end(x, plan.VerdictRefused)
	default:
		w.succeed(x, h, o == swallows)
	}
	return true
}

func (w *world) succeed(x *runner, h *hand, swallowed bool) {
	w.tell("lane %d: %v succeeds", x.lane, h)
	h.done = true
	w.decide(h.m) // even if its lease was lost in the very moment
	w.settle(h, transport.Outcome{Kind: transport.Accept}, swallowed)
}

// end closes the run at the item that was claimed last. What waits behind it is
// void: it is of a generation that is over.
func (w *world) end(x *runner, v plan.Verdict) {
	r := x.run
	r.Finished, r.Verdict = r.Claw(), v
	x.gen++
	w.report(x, r, x.down)
}

func (w *world) report(x *runner, r *plan.Run, crash bool) {
	x.run = nil
	w.reports = append(w.reports, report{r, crash})
	for i, z := range w.zombies {
		if z == x { // its last report
			w.tally[nStuckEnds]++
			w.zombies = append(w.zombies[:i], w.zombies[i+1:]...)
			w.spare = append(w.spare, z)
			return
		}
	}
}

// decide: what becomes of m is settled.
func (w *world) decide(m *message) {
	m.decided = true
	m.failures, m.firstFailed, m.mark = 0, 0, 0
	if m.key >= 0 {
		k := w.byKey[m.key]
		for f := &w.first[m.key]; *f < len(k) && k[*f].decided; *f++ {
		}
	}
	for f := &w.first[maxKeys]; *f < len(w.msgs) && w.msgs[*f].decided; *f++ {
	}
}

// replace is what the router does when a lane's handler ignores its context.
func (w *world) replace(l *lane) bool {
	w.tell("lane %d is stuck: it is replaced", l.lane)
	es, stuck := w.p.Replace(w.time(), l.lane)
	if stuck != nil {
		w.tally[nStuck]++
		for _, it := range stuck {
			if h := handOf(it); !h.claimed {
				w.fail("stuck", "%v isn't claimed by a lane, but named as stuck", h)
			}
		}
		if l.run != nil {
			z := &runner{}
			if n := len(w.spare); n > 0 {
				z, w.spare = w.spare[n-1], w.spare[:n-1]
			}
			*z = l.runner
			w.zombies = append(w.zombies, z)
		}
		l.runner = runner{lane: l.lane, gen: w.p.Gen(l.lane)}
		l.mail = l.mail[:0]
		l.out = 0
	}
	w.apply(es)
	return true
}

func handOf(it *plan.Item) *hand { return it.D.Native.(*hand) }
