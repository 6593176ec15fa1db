package plansim

import (
	"fmt"
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/transport"
)

// broker is a kind of broker.
type broker uint8

const (
	stream   broker = iota // AMQP-like: ordered; only the end of an epoch gives back in order
	fifo                   // SQS-FIFO-like: exclusive groups, single leases, counted returns
	standard               // SQS-like without order: single leases, duplicates
)

// scenario is what doesn't change during a schedule.
type scenario struct {
	mode        plan.Mode
	lanes       int
	broker      broker
	delay       bool // the broker delays what is abandoned
	ids         bool // messages have ids
	target      bool // there is a dead-letter target
	native      bool // the broker's own dead-letter path is used
	outageAfter time.Duration
	resetWait   time.Duration
	maxReceives int
	keys        int  // how many
	keyless     bool // every third message or so has no key
	messages    int
	credit      int
	batch       int // how many deliveries a batch holds; 0: no batches
	steps       int
	profile     uint8 // what happens how often
}

func (s *scenario) config() plan.Config {
	return plan.Config{
		Mode: s.mode, Lanes: s.lanes, Traits: s.traits(),
		OutageAfter: s.outageAfter, NativeDeadLetter: s.native, HasTarget: s.target, ResetWait: s.resetWait,
		Batch: s.batch, BatchWait: batchWait, Credit: s.credit,
	}
}

func (s *scenario) traits() transport.Traits {
	t := transport.Traits{AbandonDelay: s.delay, MaxReceive: 10}
	switch s.broker {
	case stream:
		t.Ordered, t.Abandon = true, transport.AbandonReset
	case fifo:
		t.Ordered, t.GroupsExclusive, t.Abandon = true, true, transport.AbandonGroup
		t.LeaseExpires, t.CountsOnReturn = true, true
	case standard:
		t.Abandon, t.LeaseExpires, t.CountsOnReturn = transport.AbandonSingle, true, true
	}
	return t
}

var (
	modeNames   = [...]string{"Sequential", "Workers", "ByKey", "PerKey"}
	brokerNames = [...]string{"stream", "fifo", "standard"}
)

// String is the scenario on one line.
func (s *scenario) String() string {
	return fmt.Sprintf("%s(%d) on %s broker, %d messages of %d keys (keyless %t, ids %t), credit %d, batch %d, delay %t, target %t, native %t, outage after %v, reset wait %v, max receives %d, profile %s",
		modeNames[s.mode], s.lanes, brokerNames[s.broker], s.messages, s.keys, s.keyless, s.ids, s.credit, s.batch,
		s.delay, s.target, s.native, s.outageAfter, s.resetWait, s.maxReceives, profiles[s.profile].name)
}

const (
	maxKeys     = 5
	maxLanes    = 4
	maxMessages = 48  // of a random schedule
	maxStored   = 128 // of one written by hand
)

// scenarioOf draws a scenario.
func scenarioOf(seed uint64) scenario {
	r := rnd{seed ^ 0x5ce4a210}
	s := scenario{
		mode:        plan.Mode(r.n(4)),
		lanes:       1 + r.n(maxLanes),
		broker:      broker(r.n(3)),
		delay:       r.n(2) == 0,
		ids:         r.n(4) != 0,
		target:      r.n(8) != 0,
		native:      r.n(6) == 0,
		keys:        1 + r.n(maxKeys),
		keyless:     r.n(3) == 0,
		messages:    2 + r.n(maxMessages-1),
		credit:      1 + r.n(20),
		steps:       50 + r.n(451),
		profile:     uint8(r.n(len(profiles))),
		resetWait:   []time.Duration{0, time.Second, 25 * time.Second}[r.n(3)],
		outageAfter: []time.Duration{0, time.Second, 30 * time.Second, 15 * time.Minute}[r.n(4)],
	}
	if s.broker == stream {
		s.delay = false
	}
	if s.mode == plan.Sequential {
		s.lanes = 1
	}
	if s.broker != stream && r.n(3) == 0 {
		s.maxReceives = 3 + r.n(6)
	}
	if r.n(3) == 0 {
		s.batch = 1 + r.n(min(6, s.credit))
	}
	return s
}

// batchWait is how long a batch that isn't full waits.
const batchWait = 10 * time.Millisecond

// rnd is a small generator (splitmix64): one word of a schedule seeds one.
type rnd struct{ s uint64 }

func (r *rnd) next() uint64 {
	r.s += 0x9e3779b97f4a7c15
	z := r.s
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// n gives 0 to k-1.
func (r *rnd) n(k int) int { return int(uint64(uint32(r.next())) * uint64(k) >> 32) }
