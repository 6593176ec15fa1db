package plan

import (
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// Mode is how deliveries are spread over lanes.
type Mode uint8

// The modes.
const (
	Sequential Mode = iota // the stream is one key
	Workers                // no order: every delivery is keyless
	ByKey                  // a key's lane is its hash
	PerKey                 // a ready key is lent to any lane
)

// Config is what a planner needs to know. It doesn't change.
type Config struct {
	Mode   Mode
	Lanes  int // at least 1; Sequential has one
	Traits transport.Traits
	// MaxReceives is the broker's own limit of hand-outs, 0 without one.
	MaxReceives int
	// OutageAfter is how long a dead-letter for exhausted attempts waits for
	// evidence; 0 or less: it doesn't wait.
	OutageAfter time.Duration
	// NativeDeadLetter settles a dead-letter with Reject instead of a copy.
	NativeDeadLetter bool
	// HasTarget: there is somewhere to copy a dead letter to.
	HasTarget bool
	// Batch is how many deliveries a batch holds at most; 0: no batches. A batch
	// is lent when it is full, or BatchWait after its first delivery came, or
	// when Credit is held and nothing runs, so that nothing more can come.
	Batch     int
	BatchWait time.Duration
	Credit    int
	// ResetWait is how long an epoch reset waits for running handlers before
	// they are cancelled.
	ResetWait time.Duration
}

const (
	// lanesAhead is how many runs a lane has at once: one that it works on and
	// one that waits behind it, so that a report's way back costs no idle time.
	lanesAhead = 2
	// coldKeys is how many keys without anything are kept, so that a key that
	// comes and goes costs no map insert each time.
	coldKeys = 4096
	// copyRetryMin and copyRetryMax bound the delay between copies to a
	// dead-letter target that refuses.
	copyRetryMin = int64(100 * time.Millisecond)
	copyRetryMax = int64(30 * time.Second)
	// resetGapMin, resetGapMax and resetCalm: an epoch reset stalls every key,
	// so resets are at least resetGapMin apart, doubling to resetGapMax, and
	// back to the minimum after resetCalm without one.
	resetGapMin = int64(time.Second)
	resetGapMax = int64(30 * time.Second)
	resetCalm   = int64(time.Minute)
	// stealEvery is how long an idle lane waits before it looks again whether
	// something waits behind another lane's slow handler.
	stealEvery = int64(time.Millisecond)
	// minRetry is the shortest delay of a retry, so that a handler that fails
	// at once can't spin.
	minRetry = int64(time.Millisecond)
)

// LaneOf is the lane of a key among n: XXH64, seed 0, of its bytes, modulo n.
func LaneOf(key string, n int) int { return int(xxhash.Sum64String(key) % uint64(n)) }

type lane struct {
	gen   uint32
	runs  [lanesAhead]*Run // lent and not reported, the older first
	out   int              // how many of them
	ready readyKeys        // ByKey: its own
	dirty bool
	idle  bool // on the idle stack
	// keyless says whose turn it is, the lane's own keys' or what is shared, and
	// sharedTurn the same between shared keys and the keyless.
	keyless, sharedTurn bool
	probeAt             int64
}

// Planner is the state machine. Make it with New; one goroutine may use it.
type Planner struct {
	cfg        Config
	now        int64
	gate       uint8
	lanes      []lane
	dirty      []int // lanes that may take something
	idle       []int // lanes with nothing; an entry may be out of date
	idleN      int   // lanes with out == 0
	out        int   // runs out, of current generations
	sharedRuns int   // of them, those with something that another lane could do
	keys       map[string]*key
	cold       ring // keys without anything
	spare      *key // free list, linked by next
	only       *key // Sequential's one key
	keyless    readyItems
	shared     readyKeys // PerKey
	timers     timers
	runs       []*Run // free list

	oldest, newest *Item // all held items
	heldN          int
	queuedN        int // items in queues
	barredN        int // of them, those whose key is barred
	copyingN       int
	stuckN         int
	fencesN        int // items that fence something
	parkedN        int // Parked, CopyWait, AbandonWait, Pinned

	successes uint64
	streak    int // failures since the last success
	outage    bool
	recovered bool // an outage has ended in this event

	starved bool  // batches don't wait: nothing more can come
	asking  int   // items that the policy is being asked about
	stealAt int64 // when an idle lane looks again; 0 when not

	abandoning []*Item
	resetBy    int64 // when running handlers are cancelled; 0 when not
	nextReset  int64
	resetGap   int64
	lastReset  int64
	endSent    bool
	drained    bool

	carry  memory
	copies map[string]*copies // keyless messages whose lost copy still runs

	effects []Effect
}

// New gives a planner at rest. cfg must be valid: the options were checked.
func New(cfg Config) *Planner {
	if cfg.Mode == Sequential {
		cfg.Lanes = 1
	}
	p := &Planner{
		cfg:    cfg,
		lanes:  make([]lane, cfg.Lanes),
		keys:   make(map[string]*key),
		copies: make(map[string]*copies),
	}
	for i := range p.lanes {
		p.becameIdle(i)
	}
	if cfg.Mode == Sequential {
		p.only = &key{name: ""}
	}
	return p
}

func (p *Planner) begin(now int64) {
	if now > p.now { // a clock that steps back doesn't turn the planner's
		p.now = now
	}
	p.effects = p.effects[:0]
}

// end starts what can start, and closes what has come to rest.
func (p *Planner) end() []Effect {
	if p.recovered && p.asking == 0 {
		p.recovered = false
		p.fireDue()
	}
	switch {
	case p.asking > 0:
		// The answer may bar, restart or stop: nothing starts before it.
	case p.gate == 0:
		p.dispatch()
	default:
		p.checkQuiet()
	}
	return p.effects
}

// Arrive takes deliveries in the order in which the broker handed them out. The
// slab's items are the planner's from now on.
func (p *Planner) Arrive(now int64, slab []Item) []Effect {
	p.begin(now)
	for i := range slab {
		it := &slab[i]
		it.Attempt, it.state, it.arrived = 1, Queued, p.now
		p.link(it)
		it.k = p.keyFor(it)
		if len(p.carry.by) > 0 && p.carry.wasCopied(it) {
			// Its dead-letter copy was confirmed and only the accept got lost:
			// no second copy, and no second run.
			p.emit(Effect{Kind: Settle, Item: it, Outcome: transport.Outcome{Kind: transport.Accept}})
			p.gone(it)
			continue
		}
		if it.k == nil && len(p.copies) > 0 && p.copies[it.D.ID] != nil && it.D.ID != "" {
			it.state = Fenced
			c := p.copies[it.D.ID]
			c.waiting = append(c.waiting, it)
			continue
		}
		p.queueBack(it)
	}
	return p.end()
}

func (p *Planner) keyFor(it *Item) *key {
	switch p.cfg.Mode {
	case Sequential:
		return p.only
	case Workers:
		return nil
	}
	if it.Key == "" {
		return nil
	}
	k := p.keys[it.Key]
	if k == nil {
		if k = p.spare; k != nil {
			p.spare, k.next = k.next, nil
		} else {
			k = &key{}
		}
		k.name = it.Key
		if p.cfg.Mode == ByKey {
			k.lane = LaneOf(it.Key, p.cfg.Lanes)
		}
		p.keys[it.Key] = k
	}
	return k
}

// Done takes a lane's report: run r has ended, r.Finished items of it were
// claimed and all but perhaps the last succeeded.
func (p *Planner) Done(now int64, r *Run) []Effect {
	p.begin(now)
	l := &p.lanes[r.Lane]
	if r.Gen != l.gen {
		p.stuckEnded(r)
		return p.end()
	}
	if r.Batch {
		p.batchDone(r)
		return p.end()
	}
	n, good := r.Finished, r.Succeeded()
	for i := r.acc; i < good; i++ {
		p.succeeded(r.Items[i])
	}
	r.acc = good
	if good < n {
		p.voidBehind(r)
	}
	p.takeBackFrom(r, n)
	p.dropRun(r.Lane, r)
	if good < n {
		it := r.Items[good]
		r.Items[good] = nil
		p.afterFailure(r.Lane, it)
		p.ended(it, r.Lane, r.Verdict)
	}
	p.recycle(r)
	return p.end()
}

// voidBehind begins a new generation of r's lane, since something in r failed. What
// waits behind r goes back to its queues, the later run first and each from its
// end, so that every key's order is kept. The lane ignores those runs: they are of
// the old generation.
func (p *Planner) voidBehind(r *Run) {
	l := &p.lanes[r.Lane]
	l.gen++
	for i := l.out - 1; l.runs[i] != r; i-- {
		p.takeBack(l.runs[i])
		p.dropRun(r.Lane, l.runs[i])
	}
}

// stuckEnded takes the report of a lane that was replaced while it ran.
func (p *Planner) stuckEnded(r *Run) {
	if r.Batch {
		p.settleBatch(r)
		return
	}
	if r.Finished == 0 {
		return
	}
	it := r.Items[r.Finished-1]
	if it == nil || it.state != Stuck {
		return
	}
	if r.Verdict == VerdictOK {
		p.succeeded(it)
	} else {
		p.ended(it, r.Lane, r.Verdict)
	}
}

// letGo takes an item from the lane that it was lent to.
func (p *Planner) letGo(it *Item) {
	if it.state == Stuck {
		p.stuckN--
		it.state = Lent
	} else if it.k != nil {
		it.k.lent--
	}
	it.run = nil
	p.unfence(it)
}

// succeeded decides a claimed item.
func (p *Planner) succeeded(it *Item) {
	p.letGo(it)
	p.noteSuccess()
	p.gone(it)
}

func (p *Planner) noteSuccess() {
	p.successes++
	p.streak = 0
	if p.outage {
		p.endOutage()
	}
}

// ended handles a claimed item that didn't succeed.
func (p *Planner) ended(it *Item, lane int, v Verdict) {
	it.inTrouble().lane = lane
	p.letGo(it)
	p.failed(it, v)
}

// failed handles an item that isn't lent any more and didn't succeed.
func (p *Planner) failed(it *Item, v Verdict) {
	if v == VerdictFailed {
		if it.FirstFailed == 0 {
			it.FirstFailed, it.mark = max(p.now, 1), p.successes
		}
	}
	switch {
	case it.lost:
		if v == VerdictFailed {
			it.Attempt++
		}
		p.goneUndecided(it)
	case v == VerdictLapsed || v == VerdictRefused:
		it.lost = true
		p.emit(Effect{Kind: Note, Note: NoteLapsed, Item: it})
		p.voidSuccessors(it)
		p.goneUndecided(it)
	case v == VerdictGaveUp || p.gate&(gateDrain|gateReset|gateHalt) != 0:
		// It goes back with everything else; the attempt is remembered.
		if v == VerdictFailed {
			it.Attempt++
		}
		it.state = Queued
		p.queueFront(it)
	default:
		it.state = Deciding
		p.asking++
		p.hold(it)
		p.emit(Effect{Kind: Ask, Item: it, Lane: it.lane})
	}
}

// Decide carries out the policy's directive for an item that Ask named. It is the
// next event after the one that asked.
func (p *Planner) Decide(now int64, it *Item, d supervision.Directive) []Effect {
	p.begin(now)
	if it.state != Deciding {
		return p.end()
	}
	p.asking--
	if d.RestartLane {
		p.restart(it.lane)
	}
	failures := it.Attempt
	if !d.Uncounted {
		it.Attempt++
	}
	if d.Action == supervision.ActionRetry || d.Exhausted {
		p.noteFailure(it)
	}
	it.dir = d
	if p.gate&(gateDrain|gateHalt) != 0 && d.Action != supervision.ActionAccept {
		// The answer for another one of its batch has stopped the subscription:
		// it goes back with everything else.
		it.state = Queued
		p.unhold(it)
		p.queueFront(it)
		return p.end()
	}
	switch d.Action {
	case supervision.ActionDeadLetter:
		p.deadLetter(it, failures)
	case supervision.ActionAccept:
		p.emit(Effect{Kind: Settle, Item: it, Outcome: transport.Outcome{Kind: transport.Accept}})
		p.decided(it)
	case supervision.ActionAbandon:
		it.dir.After = max(d.After, p.abandonFloor(it, failures))
		if !p.cfg.Traits.AbandonDelay && it.dir.After > 0 {
			p.wait(it, AbandonWait, p.now+int64(it.dir.After))
		} else {
			p.abandon(it)
		}
	case supervision.ActionStop, supervision.ActionEscalate:
		kind := Stop
		if d.Action == supervision.ActionEscalate {
			kind = Escalate
		}
		p.halt()
		it.state = Queued
		p.unhold(it)
		p.queueFront(it)
		p.emit(Effect{Kind: kind, Item: it})
	default: // a policy that orders nothing gets a retry
		p.park(it, d.After)
	}
	return p.end()
}

func (p *Planner) park(it *Item, after time.Duration) {
	p.wait(it, Parked, p.now+max(int64(after), minRetry))
	p.emit(Effect{Kind: Note, Note: NoteParked, Item: it})
}

// wait parks it in state s until due.
func (p *Planner) wait(it *Item, s State, due int64) {
	it.state = s
	p.parkedN++
	p.timers.add(it, due)
}

// unwait takes it out of the timers, whether it fired or not.
func (p *Planner) unwait(it *Item) {
	p.parkedN--
	p.timers.remove(it)
}

// decided ends a held item whose outcome is sealed.
func (p *Planner) decided(it *Item) {
	k, pin := it.k, it.dir.Park
	p.unhold(it)
	if pin && k != nil {
		p.bar(k, func() { k.pinned = true })
		p.emit(Effect{Kind: Note, Note: NotePinned, Item: it})
	}
	p.gone(it)
}

// deadLetter starts the copy, or puts it off.
func (p *Planner) deadLetter(it *Item, failures int) {
	d := it.dir
	if d.Exhausted && p.cfg.OutageAfter > 0 && p.successes == it.mark && p.now-it.FirstFailed < int64(p.cfg.OutageAfter) {
		// Attempts have run out and nothing works: that is an outage, however
		// few failures it took. What waits for its end is tried as often as
		// lanes probe, so that the end is seen at once.
		p.beginOutage()
		if p.successes == it.mark {
			p.emit(Effect{Kind: Note, Note: NoteNoEvidence, Item: it, Count: failures})
			p.park(it, time.Duration(probeEvery))
			return
		}
	}
	switch {
	case p.cfg.NativeDeadLetter:
		p.emit(Effect{Kind: Settle, Item: it, Outcome: transport.Outcome{
			Kind: transport.Reject, Reason: d.Reason, Description: d.Description}})
		p.decided(it)
	case !p.cfg.HasTarget:
		it.state = Pinned
		p.parkedN++
		p.emit(Effect{Kind: Note, Note: NoteNoTarget, Item: it})
	default:
		p.copy(it)
	}
}

// copy publishes it's dead-letter copy, unless that was confirmed before: an
// earlier hand-out of the message may have been copied while this one was held.
func (p *Planner) copy(it *Item) {
	if p.carry.wasCopied(it) {
		p.emit(Effect{Kind: Settle, Item: it, Outcome: transport.Outcome{Kind: transport.Accept}})
		p.decided(it)
		return
	}
	it.state = Copying
	p.copyingN++
	p.emit(Effect{Kind: Copy, Item: it})
}

// Copied says how the dead-letter copy of it went. A copy that failed is tried
// again, after a delay that doubles with tries, never accepted.
func (p *Planner) Copied(now int64, it *Item, ok bool, tries int) []Effect {
	p.begin(now)
	if it.state != Copying {
		return p.end()
	}
	p.copyingN--
	switch {
	case ok && it.lost:
		p.AcceptLost(it.D)
		p.unhold(it)
		p.gone(it)
	case ok:
		p.emit(Effect{Kind: Settle, Item: it, Outcome: transport.Outcome{Kind: transport.Accept}})
		p.decided(it)
	case it.lost:
		p.goneUndecided(it)
	case p.gate&(gateDrain|gateReset|gateHalt) != 0:
		it.state = Queued
		p.unhold(it)
		p.queueFront(it)
	default:
		p.wait(it, CopyWait, p.now+min(copyRetryMin<<min(max(tries, 1)-1, 20), copyRetryMax))
	}
	return p.end()
}

// Tick lets timers fire. Call it when NextTimer has come; earlier or later does
// no harm.
func (p *Planner) Tick(now int64) []Effect {
	p.begin(now)
	p.fireDue()
	if p.resetBy != 0 && p.now >= p.resetBy {
		p.resetBy = 0
		p.emit(Effect{Kind: CancelAll})
	}
	if (p.outage || p.cfg.Batch > 0) && p.gate == 0 {
		p.allDirty()
	}
	return p.end()
}

// fireDue fires the timers that are due. A drain or a stop leaves them be.
func (p *Planner) fireDue() {
	if p.gate&(gateDrain|gateHalt) != 0 {
		return
	}
	for it := p.timers.peek(); it != nil && it.due <= p.now; it = p.timers.peek() {
		p.fire(it)
	}
}

func (p *Planner) fire(it *Item) {
	s := it.state
	p.unwait(it)
	switch s {
	case Parked:
		it.state = Queued
		p.unhold(it)
		p.queueFront(it)
	case CopyWait:
		p.copy(it)
	case AbandonWait:
		p.abandon(it)
	}
}

// NextTimer says when Tick is due, 0 for never.
func (p *Planner) NextTimer() int64 {
	var at int64
	if it := p.timers.peek(); it != nil && p.gate&(gateDrain|gateHalt) == 0 {
		at = it.due
	}
	if p.resetBy != 0 && (at == 0 || p.resetBy < at) {
		at = p.resetBy
	}
	if p.gate != 0 {
		return at
	}
	if p.stealAt != 0 && (at == 0 || p.stealAt < at) {
		at = p.stealAt
	}
	switch {
	case p.outage:
		for i := range p.lanes {
			l := &p.lanes[i]
			if l.out == 0 && p.hasWork(l) && (at == 0 || l.probeAt < at) {
				at = l.probeAt
			}
		}
	case p.cfg.Batch > 0:
		if due := p.batchesDue(); due != 0 && (at == 0 || due < at) {
			at = due
		}
	}
	return at
}
