package plansim

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
)

// The things that can happen in a step.
const (
	doHandOut = iota
	doPump
	doStep
	doFinish
	doReport
	doTime
	doTick
	doCopied
	doLost
	doLease
	doEpoch
	doClose
	doPause
	doUnpark
	doDrain
	doReplace
	doZombie
	doDuplicate
	doDownstream
	doEnding
	doKinds
)

// profile is how often what happens, and how a schedule's policy thinks.
type profile struct {
	name    string
	weights [doKinds]int // of 256 in all; what is left over goes to doStep
	fail    int          // of 256 attempts, how many fail
	chaos   bool         // directives of every kind, at random
	table   [256]uint8
}

var profiles = [...]*profile{
	{name: "calm", fail: 20, weights: weights{
		doHandOut: 28, doPump: 28, doFinish: 64, doReport: 52, doTime: 12, doTick: 4, doCopied: 6, doLost: 2, doClose: 4, doZombie: 1}.list()},
	{name: "failing", fail: 120, weights: weights{
		doHandOut: 20, doPump: 20, doFinish: 60, doReport: 50, doTime: 28, doTick: 6, doCopied: 8, doLost: 2, doLease: 1, doClose: 4, doZombie: 2, doReplace: 1, doUnpark: 2}.list()},
	{name: "chaos", fail: 90, chaos: true, weights: weights{
		doHandOut: 20, doPump: 20, doFinish: 48, doReport: 44, doTime: 22, doTick: 6, doCopied: 8, doLost: 6, doLease: 6, doEpoch: 1, doClose: 5, doZombie: 4, doReplace: 3, doUnpark: 4, doPause: 3, doDuplicate: 3, doDrain: 0, doEnding: 8}.list()},
	{name: "lossy", fail: 50, weights: weights{
		doHandOut: 26, doPump: 24, doFinish: 44, doReport: 40, doTime: 12, doTick: 4, doCopied: 6, doLost: 10, doLease: 16, doEpoch: 4, doClose: 6, doZombie: 3, doReplace: 2, doDuplicate: 6, doEnding: 8}.list()},
	{name: "stuck", fail: 60, chaos: true, weights: weights{
		doHandOut: 22, doPump: 22, doFinish: 36, doReport: 36, doTime: 18, doTick: 4, doCopied: 4, doLost: 6, doLease: 6, doEpoch: 2, doClose: 4, doZombie: 6, doReplace: 14, doUnpark: 2, doEnding: 8}.list()},
	{name: "outage", fail: 10, weights: weights{
		doHandOut: 24, doPump: 24, doFinish: 60, doReport: 54, doTime: 32, doTick: 6, doCopied: 4, doLost: 2, doLease: 1, doClose: 4, doReplace: 1, doDownstream: 4}.list()},
	{name: "stopping", fail: 60, chaos: true, weights: weights{
		doHandOut: 22, doPump: 22, doFinish: 44, doReport: 40, doTime: 16, doTick: 4, doCopied: 6, doLost: 4, doLease: 4, doEpoch: 1, doClose: 4, doZombie: 3, doReplace: 3, doUnpark: 2, doPause: 6, doDrain: 1, doEnding: 8}.list()},
}

type weights map[int]int

func (ws weights) list() (l [doKinds]int) {
	for k, n := range ws {
		l[k] = n
	}
	return l
}

func init() {
	for _, p := range profiles {
		at := 0
		for k, n := range p.weights {
			for range n {
				p.table[at] = uint8(k)
				at++
			}
		}
		for ; at < len(p.table); at++ {
			p.table[at] = doStep
		}
	}
}

// schedule is a scenario and where its words come from: a seed, or a list that
// was shrunk.
type schedule struct {
	seed     uint64
	scenario scenario
	words    []uint64 // nil: from the seed
}

func scheduleOf(seed uint64) schedule { return schedule{seed: seed, scenario: scenarioOf(seed)} }

// run runs one schedule, from the first hand-out until everything is decided, and
// gives the promise that it broke, nil for none.
func (w *world) run(s *schedule) (v *violation) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *violation:
			v = e
		default:
			v = &violation{"panic", fmt.Sprintf("%v\n%s", e, debug.Stack())}
		}
	}()
	w.reset(s.scenario)
	w.publishAll(s.seed)
	if s.words != nil {
		for _, word := range s.words {
			w.random(word)
		}
	} else {
		r := rnd{s.seed}
		for range s.scenario.steps {
			w.random(r.next())
		}
	}
	w.wind()
	return nil
}

func (w *world) publishAll(seed uint64) {
	r := rnd{seed ^ 0x6d657373}
	for range w.messages {
		k := r.n(w.keys)
		if w.keyless && r.n(3) == 0 {
			k = -1
		}
		w.publish(k).poison = r.n(12) == 0
	}
}

// random takes one step.
func (w *world) random(word uint64) {
	if w.drained {
		if w.after++; w.after > 20 {
			return
		}
	}
	w.steps++
	w.r = rnd{word}
	p := profiles[w.profile]
	if w.r.n(200) == 0 {
		w.behind = int64(w.r.n(3)) * int64(time.Millisecond)
	}
	if w.do(p.table[word>>56]) {
		return
	}
	// That can't happen now: something else does.
	_ = w.do(doStep) || w.do(doFinish) || w.do(doReport) || w.do(doPump) || w.do(doHandOut) || w.do(doTime)
}

func (w *world) do(kind uint8) bool {
	switch kind {
	case doHandOut:
		return w.handOut(1 + w.r.n(8))
	case doPump:
		return w.pumped()
	case doStep:
		return w.stepAny()
	case doFinish:
		return w.finishAny()
	case doReport:
		return w.reported(randomPolicy)
	case doTime:
		return w.timePasses()
	case doTick:
		return w.tick()
	case doCopied:
		return len(w.copying) > 0 && w.copied(w.r.n(len(w.copying)), w.r.n(4) != 0)
	case doLost:
		return w.lost(1 + w.r.n(2))
	case doLease:
		return w.r.n(2) == 0 && w.endedLapses() || w.nh > 0 && w.loseLease(&w.hands[w.nh-1-w.r.n(min(w.nh, 24))])
	case doEnding:
		if len(w.held) == 0 || w.r.n(2) == 0 {
			return w.endedLapses()
		}
		return w.leaseEnds(w.held[w.r.n(len(w.held))])
	case doEpoch:
		if w.nh > 0 {
			w.tell("the link is lost")
			w.endEpoch()
		}
		return w.nh > 0
	case doClose:
		if !w.closing {
			return false
		}
		w.tell("the broker has closed the epoch")
		w.endEpoch()
		return true
	case doPause:
		if w.paused {
			return w.resume()
		}
		return w.pause()
	case doUnpark:
		return w.unpark(w.r.n(w.keys+1)-1, w.r.n(3) == 0)
	case doDrain:
		return !w.draining && w.drain()
	case doReplace:
		return w.replaceAny()
	case doZombie:
		return w.zombieGoesOn(w.ending())
	case doDuplicate:
		return w.duplicate()
	case doDownstream:
		w.downstream = !w.downstream
		w.tell("the downstream is gone: %t", w.downstream)
		return true
	}
	return false
}

// endedLapses lets a lease lapse that was said to be ending, while its handler
// runs, and its message come again at once.
func (w *world) endedLapses() bool {
	for _, h := range w.held {
		if h.ending && h.running && h.live && !h.settled && w.loseLease(h) && w.handOutAgain(h.m) {
			for w.pumped() {
			}
			return true
		}
	}
	return false
}

func (w *world) stepAny() bool {
	start := w.r.n(len(w.lanes))
	for i := range w.lanes {
		if w.step(&w.lanes[(start+i)%len(w.lanes)]) {
			return true
		}
	}
	return false
}

func (w *world) finishAny() bool {
	start := w.r.n(len(w.lanes))
	for i := range w.lanes {
		l := &w.lanes[(start+i)%len(w.lanes)]
		if l.cur != nil {
			return w.finish(&l.runner, w.endingOf(l.cur))
		}
	}
	return false
}

func (w *world) replaceAny() bool {
	l := &w.lanes[w.r.n(len(w.lanes))]
	return l.out > 0 && w.replace(l)
}

// zombieGoesOn lets the handler of a replaced lane return, or its runner report.
func (w *world) zombieGoesOn(o outcome) bool {
	if len(w.zombies) == 0 {
		return false
	}
	z := w.zombies[w.r.n(len(w.zombies))]
	if z.cur != nil {
		return w.finish(z, o)
	}
	w.claim(z)
	return true
}

func (w *world) ending() outcome { return outcome(w.r.n(4)) }

// endingOf draws how a handler ends.
func (w *world) endingOf(h *hand) outcome {
	n := w.r.n(256)
	switch {
	case w.downstream || (h.m.poison && n < 240) || n < profiles[w.profile].fail:
		return fails + outcome(n&7/7)
	case n > 250:
		return swallows
	default:
		return succeeds
	}
}

// timePasses moves the clock: a little, to the next timer, or far past every
// lease. Timers fire now, or late.
func (w *world) timePasses() bool {
	ms := int64(time.Millisecond)
	switch n := w.r.n(16); {
	case n < 5:
		w.now += int64(w.r.n(3000)) * ms / 1000
	case n < 13:
		if at := w.p.NextTimer(); at > w.now {
			w.now = at
		} else {
			w.now += int64(w.r.n(1000)) * ms
		}
	case n < 15:
		w.now += int64(w.r.n(20000)) * ms
	default:
		w.now += int64(w.r.n(1200000)) * ms
		if w.broker != stream && w.r.n(4) == 0 {
			w.lapseAll()
		}
	}
	w.tell("time passes")
	if w.r.n(4) != 0 {
		w.tick()
	}
	return true
}

// lapseAll: the clock has jumped past every lease.
func (w *world) lapseAll() {
	for i := range w.hands[:w.nh] {
		w.loseLease(&w.hands[i])
	}
}

var delays = [...]time.Duration{0, time.Millisecond, 20 * time.Millisecond, time.Second, 40 * time.Second}

// randomPolicy is like the default one in most schedules, and anything in some.
func randomPolicy(w *world, h *hand) supervision.Directive {
	attempt := h.item.Attempt
	if w.quiet {
		return supervision.Retry(time.Millisecond)
	}
	if !profiles[w.profile].chaos || w.r.n(3) == 0 {
		d := supervision.Retry(delays[w.r.n(4)])
		if attempt >= 3 {
			d.Action, d.Exhausted = supervision.ActionDeadLetter, true
		}
		if w.r.n(16) == 0 {
			d.RestartLane = true
		}
		return d
	}
	d := supervision.Directive{Action: supervision.Action(w.r.n(12)), After: delays[w.r.n(len(delays))]}
	switch {
	case d.Action == supervision.ActionStop || d.Action == supervision.ActionEscalate:
		if w.r.n(12) != 0 {
			d.Action = supervision.ActionAbandon
		}
	case d.Action > supervision.ActionEscalate:
		d.Action = supervision.ActionRetry + supervision.Action(w.r.n(3))
	}
	flags := w.r.next()
	d.Uncounted, d.RestartLane, d.Park = flags&7 == 0, flags>>3&7 == 0, flags>>6&7 == 0
	d.Exhausted = d.Action == supervision.ActionDeadLetter && flags>>9&1 == 0
	return d
}

// wind brings the schedule to its end: nothing fails any more, and everything
// has to be decided, or given back by a drain and decided by the next planner.
func (w *world) wind() {
	w.checkMostHeld()
	w.quiet, w.downstream = true, false
	w.tell("from here on nothing fails")
	if w.halted && !w.draining {
		w.drain()
	}
	if w.draining {
		w.untilDrained()
		w.nextLife()
	}
	if w.paused {
		w.resume()
	}
	for k := -1; k < w.keys; k++ {
		w.unpark(k, false)
	}
	w.untilDone()
}

// goOn takes one step of what can happen without new faults.
func (w *world) goOn() bool {
	w.steps++
	w.r.s++
	_ = w.r.next()
	switch {
	case w.stepAny(), w.finishQuietly(), w.zombieQuietly():
	case w.reported(randomPolicy):
	case w.pumped(), w.lost(2):
	case w.copied(0, true):
	case w.closing:
		w.tell("the broker has closed the epoch")
		w.endEpoch()
	default:
		return false
	}
	return true
}

func (w *world) finishQuietly() bool {
	for i := range w.lanes {
		if l := &w.lanes[i]; l.cur != nil {
			return w.finish(&l.runner, succeeds)
		}
	}
	return false
}

func (w *world) zombieQuietly() bool { return w.zombieGoesOn(succeeds) }

func (w *world) untilDrained() {
	for range 2000 {
		if w.drained && len(w.zombies) == 0 && len(w.reports)+len(w.pump) == 0 {
			return
		}
		if !w.goOn() {
			break
		}
	}
	if !w.drained {
		w.fail("drain", "a drain with nothing left to do isn't reported")
	}
}

// nextLife is the subscription's next start: everything undecided is at the
// broker, and handed out again.
func (w *world) nextLife() {
	for i := range w.lanes {
		if h := w.lanes[i].cur; h != nil {
			w.fail("drain", "%v runs after the drain", h)
		}
	}
	w.tell("everything goes back; the next subscription begins")
	for i := range w.hands[:w.nh] {
		h := &w.hands[i]
		if h.live {
			h.settled = true
			w.lapse(h)
			w.outstanding = 0
		}
		h.held, h.m.held = false, 0
	}
	w.epoch++
	for i := range w.msgs {
		m := &w.msgs[i]
		m.failures, m.firstFailed, m.mark, m.copied = 0, 0, 0, false
	}
	w.held, w.pump, w.losses, w.reports, w.copying = w.held[:0], w.pump[:0], w.losses[:0], w.reports[:0], w.copying[:0]
	w.outstanding, w.closing, w.resetting, w.endSent, w.outage, w.toCancel = 0, false, false, false, false, false
	w.paused, w.draining, w.drained, w.halted = false, false, false, false
	w.running, w.pinned, w.accounted, w.lastReset = [maxKeys]*hand{}, [maxKeys]bool{}, 0, longAgo
	w.p = plan.New(w.config())
	w.p.SetMaxReceives(w.maxReceives)
	for i := range w.lanes {
		l := &w.lanes[i]
		l.runner, l.mail, l.out = runner{lane: i, gen: w.p.Gen(i)}, l.mail[:0], 0
	}
}

// untilDone: what doesn't fail is done in a bounded number of steps, and of
// minutes.
func (w *world) untilDone() {
	steps, latest := 1000+60*len(w.msgs), w.now+int64(10*time.Minute)
	for range steps {
		if w.goOn() || w.handOut(8) {
			continue
		}
		if w.lapseSwallowed() || w.unparkPinned() {
			continue
		}
		at := w.p.NextTimer()
		if d := w.heldBack(); d > 0 && (at == 0 || w.now+int64(d) < at) {
			w.now += int64(d)
			w.tell("time passes")
			continue
		}
		if at == 0 {
			break
		}
		w.now = max(w.now, at)
		if w.now > latest {
			break
		}
		w.tell("time passes")
		w.tick()
	}
	for i := range w.msgs {
		if m := &w.msgs[i]; !m.decided {
			w.fail("quiescence", "nothing fails any more, and %v isn't decided", m)
		}
	}
	if len(w.held) > 0 {
		w.fail("quiescence", "everything is decided, and %v is still held, %v", w.held[0], w.held[0].item.State())
	}
	if at := w.p.NextTimer(); at != 0 {
		w.fail("quiescence", "everything is decided, and a timer is set for %v", time.Duration(at))
	}
}

// unparkPinned lets one key go on that was parked by choice.
func (w *world) unparkPinned() bool {
	for k, pinned := range w.pinned {
		if pinned {
			return w.unpark(k, false)
		}
	}
	return false
}

// lapseSwallowed ends the leases of what was settled in vain.
func (w *world) lapseSwallowed() bool {
	some := false
	for i := range w.hands[:w.nh] {
		h := &w.hands[i]
		if h.swallowed && h.live {
			w.lapse(h)
			w.returned(h)
			some = true
		}
	}
	return some
}
