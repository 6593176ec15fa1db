package plansim

import (
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
)

// checkBatch: a batch that is lent is full, or its first delivery has waited for
// long enough and the lane has nothing else to do; what has to run alone does.
func (w *world) checkBatch(i int, r *plan.Run) {
	if !r.Batch || r.N > w.batch {
		w.fail("batch", "lane %d is lent %d deliveries, as a batch %t, want %d at most", i, r.N, r.Batch, w.batch)
	}
	waited := false
	for _, it := range r.Items[:r.N] {
		if it == nil {
			return // taken back within the same event
		}
		h := handOf(it)
		if h.alone && r.N > 1 {
			w.fail("alone", "%v is in a batch of %d, and one that it was in failed as a whole", h, r.N)
		}
		waited = waited || w.at-h.since >= int64(batchWait)
	}
	if r.N == w.batch || w.outage || len(w.held) >= w.credit && w.lanes[i].out == 0 {
		return
	}
	for _, h := range w.held { // one that runs alone closes a batch early
		if h.alone && (h.item.State() == plan.Queued || h.item.State() == plan.Lent) {
			return
		}
	}
	if !waited || w.lanes[i].out > 0 {
		w.fail("batch", "lane %d, with %d runs out, is lent a batch of %d, %v after the first came", i, w.lanes[i].out, r.N, time.Duration(w.at-handOf(r.Items[0]).since))
	}
}

// batchOf is what has begun of the batch that h is in.
func (w *world) batchOf(h *hand) []*hand {
	for i := range w.lanes {
		if x := &w.lanes[i].runner; x.run == h.run {
			return x.batch
		}
	}
	for _, z := range w.zombies {
		if z.run == h.run {
			return z.batch
		}
	}
	return nil
}

// claimBatch starts everything of a batch that may start.
func (w *world) claimBatch(x *runner) {
	r := x.run
	n := r.ClaimAll()
	if n == 0 {
		w.tell("lane %d finds nothing in its batch", x.lane)
		w.report(x, r, false)
		return
	}
	x.batch = x.batch[:0]
	for _, it := range r.Items[:n] {
		h := handOf(it)
		w.checkClaim(h, r)
		h.claimed = true
	}
	for i, it := range r.Items[:n] {
		h := handOf(it)
		switch {
		case r.HeldBack(i):
			r.Mark(i, plan.VerdictHeld)
		case !h.live:
			w.tally[nLapsed]++
			w.tell("lane %d finds %v's lease lapsed", x.lane, h)
			r.Mark(i, plan.VerdictLapsed)
		default:
			w.start(x, h)
			x.batch = append(x.batch, h)
			x.cur = x.batch[0]
		}
	}
	w.tally[nBatches]++
	if x.cur == nil {
		w.endBatch(x)
	}
}

// finishBatch ends the handler of a batch. The first element's outcome is given,
// the others' are drawn. A failure of the first may be the whole batch's.
func (w *world) finishBatch(x *runner, o outcome) {
	r, whole := x.run, false
	if o == panics || o == fails && w.r.n(2) == 0 {
		whole, x.down = true, o == panics
		w.tell("lane %d: the batch %s", x.lane, map[bool]string{true: "panics", false: "fails"}[x.down])
		w.tally[nSplits]++
	}
	alone := len(x.batch) == 1
	for i, it := range r.Items[:r.Finished] {
		h := handOf(it)
		if r.Results[i] != plan.VerdictOK { // it didn't start
			if r.HeldBack(i) {
				r.Mark(i, plan.VerdictHeld)
			}
			continue
		}
		w.stop(h)
		if h != x.cur {
			o = w.endingOf(h)
			if w.quiet {
				o = succeeds
			}
		}
		switch {
		case whole && !alone:
			r.Mark(i, plan.VerdictSplit)
		case r.HeldBack(i):
			r.Mark(i, plan.VerdictHeld)
		case whole || o >= fails:
			h.failed = true
			w.tell("lane %d: %v fails", x.lane, h)
			w.tally[nFailures]++
			r.Mark(i, plan.VerdictFailed)
		case !h.live && o == succeeds:
			w.tally[nRefused]++
			w.tell("lane %d: %v succeeds, but its lease is lost", x.lane, h)
			r.Mark(i, plan.VerdictRefused)
		default:
			w.succeed(x, h, o == swallows)
		}
	}
	w.endBatch(x)
}

// endBatch reports a batch. After a failure what waits behind it is void.
func (w *world) endBatch(x *runner) {
	x.cur, x.batch = nil, x.batch[:0]
	if badly(x.run) {
		x.gen++
	}
	w.report(x, x.run, x.down)
}
