package plansim

import (
	"fmt"
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// message is what the broker stores, and what the model knows of its fate.
type message struct {
	index int
	key   int // the broker's key; -1 keyless
	seq   int // its place in its key, counted from 0

	acked   bool  // the broker has forgotten it
	live    int   // hand-outs whose lease the broker honours
	readyAt int64 // an abandon holds it back until then
	count   int   // hand-outs so far

	decided bool // it succeeded, its copy is confirmed, or it was accepted anyway
	seen    bool // it was seen to fail
	poison  bool // its handler always fails, until the schedule quiets down
	// failures is how many counted failures the planner was told of; unsure when
	// two of its hand-outs run with no key to keep them apart.
	failures int
	unsure   bool
	// firstFailed and mark: when it first failed, and how many successes the
	// planner had accounted then.
	firstFailed int64
	mark        int
	copied      bool // its dead-letter copy was confirmed
	running     int  // handlers that run it
	held        int  // hand-outs that the planner holds
}

// hand is one hand-out of a message.
type hand struct {
	index int
	m     *message
	d     transport.Delivery
	item  *plan.Item
	group int // the planner's key: -1 keyless, in Sequential 0

	live      bool // the broker honours its lease
	settled   bool // an outcome was handed to the broker, or the lane's accept
	settledAt int  // the event in which it was
	swallowed bool // the outcome was lost on its way
	held      bool // the planner has it
	knownLost bool // the planner was told that its lease is gone
	lostAt    int  // the event that told it
	arrivedAt int  // the event that brought it
	ending    bool // its lease will lapse without a word, and the planner knows
	// guardsAt is the event since which a keyless one that is ending keeps its
	// copies from running: it was lent, or the planner was told.
	guardsAt int
	since    int64

	run       *plan.Run // of its last lend
	claimed   bool      // by a lane that hasn't reported it
	running   bool
	cancelled bool
	done      bool // its handler succeeded, and its accept was handed over
	counted   bool // the planner has accounted that
	failed    bool // its last run failed
	alone     bool // a batch that it was in failed as a whole
	reported  bool // a report says that it failed
	asked     bool // and the policy was asked about that
	copies    bool // its dead-letter copy is on its way
	confirmed bool // it was confirmed
	tries     int  // copies that failed

	mayAccept bool // something other than a success allows an accept
	dir       supervision.Directive
	notBefore int64 // its retry may not start earlier
}

// runner is what executes runs: a lane's goroutine. That of a replaced lane goes
// on until its handler returns.
type runner struct {
	lane int
	gen  uint32
	run  *plan.Run
	cur  *hand // whose handler runs; of a batch, the first
	// batch is everything that the handler runs, when it runs a batch.
	batch []*hand
	down  bool // it panicked, and its report hasn't reached the router
}

// lane is a runner and its mailbox.
type lane struct {
	runner
	mail []*plan.Run
	out  int // runs lent and not reported, of the current generation
	// probed is when it was last lent something during an outage, or when that
	// began.
	probed int64
}

// pumpEvent is something on its way from the pump to the router.
type pumpEvent struct {
	kind     pumpKind
	from, to int    // arrived: hands
	epoch    uint64 // epochEnded
	h        *hand  // acceptLost
}

type pumpKind uint8

const (
	arrived pumpKind = iota
	epochEnded
	acceptLost
)

// report is a run on its way back to the router, perhaps with a panic.
type report struct {
	run   *plan.Run
	crash bool
}

// longAgo is before anything, and not so far that a difference overflows.
const longAgo = -1 << 61

// maxHands bounds the hand-outs of one schedule.
const maxHands = 2048

// world is one schedule's state. It is reused for the next.
type world struct {
	scenario
	p      *plan.Planner
	now    int64 // the clock
	at     int64 // the planner's time: the latest that it was told
	behind int64 // how far the router's next look at the clock lags
	r      rnd   // the step's word

	msgs  []message
	byKey [maxKeys][]*message
	first [maxKeys + 1]int // of each key, and of all: the first that isn't decided

	hands []hand
	items []plan.Item
	nh    int // how many are used
	held  []*hand

	lanes   []lane
	zombies []*runner
	running [maxKeys]*hand // whose handler runs, by the planner's key
	pinned  [maxKeys]bool

	pump    []pumpEvent
	losses  []*hand  // single losses that the router hasn't heard of
	reports []report // on their way
	copying []*hand

	epoch       uint64
	outstanding int  // hand-outs that count against the credit
	closing     bool // the broker is to close the epoch
	resetting   bool // an epoch is to end, as soon as nothing runs
	endSent     bool // EndEpoch was ordered, and EpochEnded hasn't come
	lastReset   int64
	resetGap    time.Duration // to the next
	toCancel    bool          // handlers ran when the reset began, and aren't cancelled yet
	paused      bool
	draining    bool
	drained     bool
	after       int // steps since then
	halted      bool
	quiet       bool // nothing fails any more
	calm        bool // no settlement is lost unless the schedule says so
	outage      bool // as the notes say
	downstream  bool // everything fails at present

	ask     policy
	failing []*hand // the hand-outs that a report says failed

	unstolen  int // events in a row that left something to steal
	accounted int // successes that the planner has accounted
	events    int
	steps     int
	tally     tally
	only      string // the promise that is watched; "" all
	story     *story // nil: nobody listens
	spare     []*runner
	rest      []plan.Effect
}

func newWorld() *world {
	w := &world{
		msgs: make([]message, 0, maxStored), hands: make([]hand, maxHands), items: make([]plan.Item, maxHands),
		lanes: make([]lane, maxLanes),
	}
	for i := range w.hands {
		h := &w.hands[i]
		h.index, h.item = i, &w.items[i]
	}
	return w
}

// reset begins a schedule.
func (w *world) reset(s scenario) {
	used := w.nh
	clear(w.items[:used])
	for i := range w.hands[:used] {
		w.hands[i] = hand{index: i, item: &w.items[i]}
	}
	*w = world{
		scenario: s, p: plan.New(s.config()), now: 1, at: 0, epoch: 1, lastReset: longAgo,
		msgs: w.msgs[:0], byKey: w.byKey, hands: w.hands, items: w.items, held: w.held[:0],
		lanes: w.lanes[:maxLanes], zombies: w.zombies[:0], pump: w.pump[:0], losses: w.losses[:0],
		reports: w.reports[:0], failing: w.failing[:0], copying: w.copying[:0], steps: w.steps, tally: w.tally, only: w.only,
		spare: w.spare, rest: w.rest[:0], story: w.story,
	}
	w.p.SetMaxReceives(s.maxReceives)
	for k := range w.byKey {
		w.byKey[k] = w.byKey[k][:0]
	}
	if s.mode == plan.Sequential { // it has one
		w.scenario.lanes = 1
	}
	w.lanes = w.lanes[:w.scenario.lanes]
	for i := range w.lanes {
		l := &w.lanes[i]
		*l = lane{mail: l.mail[:0], runner: runner{lane: i, gen: w.p.Gen(i)}}
	}
}

// violation is a broken promise. The model panics with it.
type violation struct {
	name string
	text string
}

func (v *violation) Error() string { return v.name + ": " + v.text }

func (w *world) fail(name, format string, args ...any) {
	if w.only != "" && name != w.only {
		return
	}
	panic(&violation{name, fmt.Sprintf(format, args...)})
}

// tell adds a line to the story. Callers ask w.story != nil first where the
// arguments cost anything.
func (w *world) tell(format string, args ...any) {
	if w.story != nil {
		w.story.tell(w, format, args...)
	}
}

func (h *hand) String() string {
	n := 0
	for range h.d.Count {
		n++
	}
	return fmt.Sprintf("%v%.*s", h.m, min(n, 12), "''''''''''''")
}

// String names a message by its key and its place in it, counted from 1: A1.
func (m *message) String() string {
	if m.key < 0 {
		return fmt.Sprint("-", m.seq+1)
	}
	return fmt.Sprint(keyNames[m.key], m.seq+1)
}

var (
	keyNames = [maxKeys]string{"A", "B", "C", "D", "E"}
	idNames  [maxStored]string
)

func init() {
	for i := range idNames {
		idNames[i] = fmt.Sprint("m", i)
	}
}

func keyName(k int) string {
	if k < 0 {
		return ""
	}
	return keyNames[k]
}
