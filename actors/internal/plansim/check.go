package plansim

import (
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// checkClaim: an item is never both claimed and taken back.
func (w *world) checkClaim(h *hand, r *plan.Run) {
	if h.claimed || h.run != r || h.item.State() != plan.Lent {
		w.fail("claim", "a lane claims %v, which is %v, claimed %t, or lent again", h, h.item.State(), h.claimed)
	}
	if w.paused || w.drained || w.draining || w.resetting || w.halted {
		w.fail("gate", "%v is claimed, but paused %t, draining %t, resetting %t, halted %t", h, w.paused, w.draining, w.resetting, w.halted)
	}
}

// checkStart: the handlers of one key never overlap, and start in the order
// handed out, each only when every earlier delivery of its key is decided.
func (w *world) checkStart(h *hand) {
	m := h.m
	if h.group >= 0 {
		if o := w.running[h.group]; o != nil && !(o.run == h.run && h.run.Batch) {
			w.fail("overlap", "%v starts while %v runs", h, o)
		}
		w.checkTurn(h)
	} else if m.running > 0 && w.ids {
		w.checkCopies(h)
	}
	if w.broker == standard || m.decided {
		return
	}
	if w.mode == plan.Sequential && w.broker == stream {
		for f := w.first[maxKeys]; f < m.index; f++ {
			if o := &w.msgs[f]; !o.decided && !w.besides(h, o) {
				w.fail("order", "%v starts, and %v isn't decided", h, o)
			}
		}
	} else if h.group >= 0 && m.key >= 0 {
		for f := w.first[m.key]; f < m.seq; f++ {
			if o := w.byKey[m.key][f]; !o.decided && !w.besides(h, o) {
				w.fail("order", "%v starts, and %v isn't decided", h, o)
			}
		}
	}
}

// besides says whether o runs in the same batch as h, before it.
func (w *world) besides(h *hand, o *message) bool {
	if !h.run.Batch {
		return false
	}
	for _, b := range w.batchOf(h) {
		if b.m == o {
			return true
		}
	}
	return false
}

// checkTurn: whatever came before h, is of its key and still held, is done.
func (w *world) checkTurn(h *hand) {
	for _, o := range w.held {
		if o == h {
			return
		}
		if o.group == h.group && !o.done && !(o.run == h.run && o.running && h.run.Batch) {
			w.fail("order", "%v starts before %v, which came earlier and is %v", h, o, o.item.State())
		}
	}
	w.fail("order", "%v starts, and isn't held", h)
}

// checkCopies: a keyless message that is known by its id and comes again, because
// its lease was lost or is ending, waits until its earlier handler has returned.
func (w *world) checkCopies(h *hand) {
	for _, o := range w.held {
		switch {
		case o.m != h.m || !o.running:
		case o.knownLost && o.lostAt < h.arrivedAt:
			w.fail("overlap", "%v starts while %v, whose lease was lost, runs", h, o)
		case o.ending && o.guardsAt < h.arrivedAt:
			w.fail("overlap", "%v starts while %v, whose lease is ending, runs", h, o)
		}
	}
}

// checkDeadLetter: nothing is dead-lettered that wasn't seen to fail, and nothing
// for exhausted attempts without evidence that anything works.
func (w *world) checkDeadLetter(h *hand) {
	m := h.m
	if h.dir.Action != supervision.ActionDeadLetter {
		w.fail("dead-letter", "%v is dead-lettered, its directive is %v", h, h.dir.Action)
	}
	if !m.seen {
		w.fail("dead-letter", "%v is dead-lettered, and never failed here", h)
	}
	if h.tries > 0 || !h.dir.Exhausted || m.unsure || w.outageAfter <= 0 || w.at-m.firstFailed >= int64(w.outageAfter) {
		return
	}
	w.account()
	if w.accounted <= m.mark {
		w.fail("evidence", "%v is dead-lettered %v after its first failure, and nothing has succeeded since",
			h, time.Duration(w.at-m.firstFailed))
	}
}

// checkBehind: what is held behind a delivery of a group goes back before it, and
// not while the one whose lease was lost still runs.
func (w *world) checkBehind(h *hand, how transport.OutcomeKind) {
	if w.broker != fifo || h.group < 0 || h.m.key < 0 {
		return
	}
	if o := w.running[h.group]; o != nil && o.m.key == h.m.key && o.m.seq < h.m.seq && o.knownLost {
		w.fail("void", "%v goes back (%v) while %v, whose lease was lost, runs", h, how, o)
	}
	if h.m.held > 1 || !h.live { // refused in any case
		return
	}
	for _, o := range w.held {
		if o.m.key == h.m.key && o.m.seq > h.m.seq && o.index > h.index && o.live && !o.settled {
			w.fail("reverse", "%v goes back (%v) before its successor %v", h, how, o)
		}
	}
}

// checkReceives: no successor is given back, for the sake of h, that the broker
// would then be near to moving away by its own limit of hand-outs.
func (w *world) checkReceives(h *hand) {
	if w.broker != fifo || h.group < 0 || w.maxReceives == 0 {
		return
	}
	for _, o := range w.held {
		if o.group == h.group && o != h && o.settledAt == w.events && o.d.Count+1 >= w.maxReceives-1 {
			w.fail("receives", "%v goes back after %d hand-outs of at most %d, because %v failed", o, o.d.Count+1, w.maxReceives, h)
		}
	}
}

// atRest: nothing runs, apart from what was replaced, and nothing can start.
func (w *world) atRest(what string) {
	for i := range w.lanes {
		l := &w.lanes[i]
		if l.cur != nil {
			w.fail("rest", "%s: lane %d runs %v", what, i, l.cur)
		}
		if l.out > 0 {
			w.fail("rest", "%s: lane %d has %d runs", what, i, l.out)
		}
	}
	if len(w.copying) > 0 {
		w.fail("rest", "%s: %v is being copied", what, w.copying[0])
	}
}

// account counts the successes that the planner has heard of so far.
func (w *world) account() {
	for _, h := range w.held {
		if h.done && !h.counted && h.item.State() == plan.Gone {
			h.counted = true
			w.accounted++
		}
	}
}

// sweep drops what the planner has forgotten, each with a reason.
func (w *world) sweep() {
	w.account()
	n := 0
	for _, h := range w.held {
		if h.item.State() != plan.Gone {
			w.held[n] = h
			n++
			continue
		}
		switch {
		case h.done, h.settled:
		case h.knownLost && !h.running && !h.copies:
		default:
			w.fail("lost message", "the planner has forgotten %v: running %t, copying %t, lease lost %t", h, h.running, h.copies, h.knownLost)
		}
		h.held = false
		h.m.held--
	}
	w.held = w.held[:n]
}

// census is a slow count of what the planner holds.
type census struct {
	due                                             int64 // the first timer of what is held; 0 none
	begun, free                                     uint  // bits of lanes: that have begun, that have what others could do
	queued, parked, copying, stuck, keyless, fences int
	// Bits of groups: those that a lane has claimed something of, and those that
	// it was lent something of that it hasn't claimed; the lowest is what is keyless.
	mine, lent [maxLanes]uint
	fresh      bool // something keyless hasn't failed yet
	group      [maxKeys]struct {
		queued, lent, held int
		barred, fresh      bool // fresh: the first that is queued hasn't failed yet
	}
}

// checkAll compares the planner with the books.
func (w *world) checkAll() {
	w.sweep()
	var c census
	i := 0
	w.p.Held(func(it *plan.Item) bool {
		if i == len(w.held) || w.held[i].item != it {
			w.fail("held", "the planner holds %v at place %d, the books say otherwise", handOf(it), i)
		}
		w.count(&c, w.held[i])
		i++
		return true
	})
	if i != len(w.held) {
		w.fail("held", "the planner has forgotten %v", w.held[i])
	}
	for i := range w.lanes {
		if c.lent[i]&^(c.mine[i]<<1) != 0 {
			c.free |= 1 << i
		}
	}
	w.checkCounts(&c)
	if w.paused || w.draining || w.resetting || w.halted {
		w.unstolen = 0
	} else {
		w.checkWork(&c)
	}
	w.checkGates(&c)
	if c.due != 0 && !w.draining && !w.halted {
		if at := w.p.NextTimer(); at == 0 || at > c.due {
			w.fail("timers", "something is due at %v, the next timer is at %v", time.Duration(c.due), time.Duration(at))
		}
	}
}

func (w *world) count(c *census, h *hand) {
	s, k := h.item.State(), h.group
	if h.item.Lost() != h.knownLost {
		w.fail("lost", "%v: the planner says lost %t, it was told %t", h, h.item.Lost(), h.knownLost)
	}
	if s != plan.Lent && h.claimed != (s == plan.Stuck) {
		w.fail("state", "%v is %v, but claimed %t", h, s, h.claimed)
	}
	bars := false
	switch s {
	case plan.Queued:
		c.queued++
		fresh := h.m.firstFailed == 0 && !h.m.unsure && !h.m.decided && w.ids && !w.isFailing(h.m)
		if k < 0 {
			c.keyless++
			c.fresh = c.fresh || fresh
		} else {
			if c.group[k].queued == 0 {
				c.group[k].fresh = fresh
			}
			c.group[k].queued++
		}
	case plan.Lent:
		if h.knownLost {
			bars = true
			c.fences++
		} else if h.ending && k < 0 {
			c.fences++
		}
		if k >= 0 {
			c.group[k].lent++
		}
		if h.claimed {
			c.begun |= 1 << h.run.Lane
			if k >= 0 {
				c.mine[h.run.Lane] |= 1 << k
			}
		}
		if !h.claimed && !h.done && h.run.Verdict == plan.VerdictOK && (k < 0 || w.mode == plan.PerKey) {
			c.lent[h.run.Lane] |= 1 << (k + 1)
		}
	case plan.Stuck:
		bars = true
		c.stuck++
		c.fences++
	case plan.Parked, plan.CopyWait, plan.AbandonWait, plan.Pinned:
		bars = true
		c.parked++
		if due := h.item.Due(); due != 0 {
			if c.due == 0 || due < c.due {
				c.due = due
			}
		} else if s != plan.Pinned {
			w.fail("timers", "%v is %v without a timer", h, s)
		}
	case plan.Copying:
		bars = true
		c.copying++
		if !h.copies {
			w.fail("copy", "%v is being copied, as the planner says", h)
		}
	case plan.Abandoning:
		bars = true
		w.beginReset()
	case plan.Fenced:
		w.tally[nWaitingCopies]++
	case plan.Deciding:
		w.fail("ask", "%v is undecided after its event", h)
	}
	if k >= 0 {
		c.group[k].held++
		c.group[k].barred = c.group[k].barred || bars
	}
}

// beginReset: an epoch is to end, no sooner than a second after the last time,
// twice as long each time up to 30 s, until a minute was without one.
func (w *world) beginReset() {
	if w.resetting {
		return
	}
	w.resetting = true
	since := time.Duration(w.at - w.lastReset)
	if since < w.resetGap {
		w.fail("reset", "an epoch reset %v after the last, want at least %v between them", since, w.resetGap)
	}
	if since >= time.Minute {
		w.resetGap = time.Second
	} else {
		w.resetGap = min(2*w.resetGap, 30*time.Second)
	}
	w.lastReset = w.at
	for i := range w.lanes {
		if w.lanes[i].out > 0 {
			w.toCancel = w.resetWait > 0
		}
	}
}

func (w *world) checkCounts(c *census) {
	s := w.p.Snapshot()
	runnable, keys, busy := c.keyless, 0, 0
	for k := range w.keys {
		g := &c.group[k]
		if !g.barred && !w.pinned[k] {
			runnable += g.queued
		}
		if w.mode != plan.ByKey && w.mode != plan.PerKey {
			continue
		}
		// The actor of an idle key is passivated.
		idle := g.held == 0 && !w.pinned[k]
		if w.p.KeyIdle(keyName(k)) != idle {
			w.fail("idle", "the planner says that key %s is idle: %t, but %d of it are held, parked %t", keyName(k), !idle, g.held, w.pinned[k])
		}
		if !idle {
			keys++
		}
	}
	for i := range w.lanes {
		if w.lanes[i].out > 0 {
			busy++
		}
	}
	if s.Held != len(w.held) || s.Queued != c.queued || s.Runnable != runnable || s.Parked != c.parked ||
		s.Copying != c.copying || s.Stuck != c.stuck || s.Keys != keys || s.LanesBusy != busy || s.Outage != w.outage {
		w.fail("counts", "the snapshot says %+v, but held %d, queued %d, runnable %d, parked %d, copying %d, stuck %d, keys %d, lanes busy %d, outage %t",
			s, len(w.held), c.queued, runnable, c.parked, c.copying, c.stuck, keys, busy, w.outage)
	}
	if len(w.held) > 0 && (s.Oldest != &w.held[0].d || s.OldestArrived != w.held[0].since) {
		w.fail("counts", "the oldest held is %v since %d, the snapshot says %v since %d", w.held[0], w.held[0].since, s.Oldest, s.OldestArrived)
	}
	if w.p.Runnable() != runnable || w.p.Busy() != (busy > 0) || w.p.Idle() != (busy < len(w.lanes)) || w.p.AnyLost() != (c.fences > 0) {
		w.fail("counts", "Runnable %d, Busy %t, Idle %t, AnyLost %t, but runnable %d, lanes busy %d, fences %d",
			w.p.Runnable(), w.p.Busy(), w.p.Idle(), w.p.AnyLost(), runnable, busy, c.fences)
	}
}

// checkMostHeld: the key that is named as holding most does.
func (w *world) checkMostHeld() {
	var n [maxKeys]int
	most := 0
	for _, h := range w.held {
		if h.m.key >= 0 {
			n[h.m.key]++
			most = max(most, n[h.m.key])
		}
	}
	name, got := w.p.MostHeld()
	if got != most || most > 0 && n[name[0]-'A'] != most {
		w.fail("counts", "the key %q holds most, %d, as the planner says; the books say %v", name, got, n)
	}
}

// checkWork: nothing that could start waits while a lane that could take it
// idles, apart from the probing of an outage and the timer of a steal.
func (w *world) checkWork(c *census) {
	idle := -1
	if w.outage || c.begun&c.free == 0 {
		w.unstolen = 0
	}
	for i := range w.lanes {
		if w.lanes[i].out == 0 {
			idle = i
			break
		}
	}
	if idle < 0 {
		w.unstolen = 0
		return
	}
	anywhere, lane, key, fresh := c.keyless > 0, -1, -1, c.fresh
	for k := range w.keys {
		g := &c.group[k]
		if g.queued == 0 || g.barred || w.pinned[k] {
			continue
		}
		switch w.mode {
		case plan.PerKey:
			if g.lent == 0 {
				anywhere, key, fresh = true, k, fresh || g.fresh
			}
		case plan.ByKey:
			if i := laneOf(k, w.scenario.lanes); w.lanes[i].out == 0 {
				lane, key, fresh = i, k, fresh || g.fresh
			}
		case plan.Sequential:
			anywhere, key, fresh = true, k, fresh || g.fresh
		}
	}
	switch waits := anywhere || lane >= 0; {
	case waits && !w.outage && w.batch > 0:
		w.checkBatchWaits(c)
	case waits && !w.outage:
		w.fail("work", "lane %d idles, and something of key %q (or keyless %d) waits for it", max(lane, idle), keyName(key), c.keyless)
	case waits && w.outage && fresh:
		w.fail("fresh", "a lane idles during an outage, and something that hasn't failed yet waits for it")
	case waits && w.outage:
		w.dueWithin(250*time.Millisecond, "an outage's probe")
	case c.free != 0 && !w.outage:
		w.checkSteal(c)
		w.dueWithin(time.Millisecond, "a steal")
	}
}

// checkBatchWaits: a full batch doesn't wait while a lane idles, and what is less
// waits for a while.
func (w *world) checkBatchWaits(c *census) {
	shared := c.keyless
	var own [maxLanes]int
	for k := range w.keys {
		g := &c.group[k]
		switch {
		case g.barred || w.pinned[k]:
		case w.mode == plan.ByKey:
			own[laneOf(k, w.scenario.lanes)] += g.queued
		case g.lent == 0 || w.mode == plan.Sequential:
			shared += g.queued
		}
	}
	for i := range w.lanes {
		if n := own[i] + shared; w.lanes[i].out == 0 && n >= w.batch {
			w.fail("work", "lane %d idles, and %d deliveries, a full batch, wait for it", i, n)
		}
	}
	busy := 0
	for i := range w.lanes {
		busy += w.lanes[i].out
	}
	if busy == 0 && len(w.held) >= w.credit {
		w.fail("work", "nothing runs, %d are held, all that may be, and a batch waits for more", len(w.held))
	}
	w.dueWithin(batchWait, "a batch")
}

// checkSteal: an idle lane takes what waits unclaimed behind a handler of another
// lane, one lane's an event.
func (w *world) checkSteal(c *census) {
	if c.begun&c.free == 0 {
		w.unstolen = 0
		return
	}
	if w.unstolen++; w.unstolen > maxLanes {
		w.fail("steal", "a lane idles, and after %d events it still hasn't got what waits behind a slow handler", w.unstolen)
	}
}

func (w *world) dueWithin(d time.Duration, what string) {
	if at := w.p.NextTimer(); at == 0 || at > w.at+int64(d) {
		w.fail("work", "a lane idles while others have work for it, and the timer for %s is at %v, now %v", what, time.Duration(at), time.Duration(w.at))
	}
}

// checkGates: a reset and a drain go on as soon as nothing runs.
func (w *world) checkGates(c *census) {
	if !w.resetting && !w.draining {
		return
	}
	for i := range w.lanes {
		if w.lanes[i].out > 0 {
			return
		}
	}
	if c.copying > 0 {
		return
	}
	if w.resetting && !w.endSent {
		w.fail("reset", "nothing runs, and the epoch isn't ended")
	}
	if w.draining && !w.drained {
		w.fail("drain", "nothing runs, and the drain isn't reported")
	}
}

// laneOf is a table: hashing each time would be most of a check.
func laneOf(k, lanes int) int { return laneTable[lanes][k] }

var laneTable [maxLanes + 1][maxKeys]int

func init() {
	for n := 1; n <= maxLanes; n++ {
		for k := range maxKeys {
			laneTable[n][k] = plan.LaneOf(keyNames[k], n)
		}
	}
}
