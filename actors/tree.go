package actors

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/transport"
)

// tree is what the actors of one subscription, and the goroutines that they own,
// share: addresses, counters, and the epoch that settlements go to. One tree
// lives from a subscription's start, or restart, to its stop.
type tree struct {
	opts Options
	src  transport.Source
	made
	system *actor.ActorSystem
	log    *slog.Logger
	pool   *goroutines
	loop   *pumpLoop
	base   time.Time // times within the tree count from here

	subscription, router, pump *actor.PID

	epoch atomic.Pointer[epoch] // of the current receiver; nil between two
	// runnable is how many deliveries wait for a lane as of the router's last
	// event, inbound how many are on their way to the router. wake tells the
	// pump that they have fallen.
	runnable, inbound atomic.Int64
	wake              chan struct{}

	runners       runners
	confirmations confirmations
	// ignoring counts cancelled handlers that haven't returned.
	ignoring atomic.Int64
	counts   counts
}

// made is how a subscription's handlers are made.
type made struct {
	// handler is the factory, middleware included; it is called on a lane's
	// runner goroutine. Its second argument is what LaneActor's handler asks.
	handler func(Lane, *asked) transport.Handler
	batch   transport.BatchHandler // instead of it, or nil
	// stateful: a handler belongs to its lane, or in PerKey to its key.
	stateful bool
	child    *actor.Props // LaneActor's, or nil
}

// counts are a subscription's totals, written from wherever the thing happens.
type counts struct {
	received, settled, settleFailed, lost, overDelivered atomic.Uint64
}

func (t *tree) send(to *actor.PID, message any) {
	if to != nil {
		t.system.Root.Send(to, message)
	}
}

// observe calls the user's observer; a panic in it is logged and ignored.
func (t *tree) observe(o Observation) {
	if t.opts.Observer == nil {
		return
	}
	defer t.guard("Observer")
	t.opts.Observer.Observe(o)
}

// event logs e and publishes it. A subscriber runs on this goroutine: a panic in
// it is logged and ignored.
func (t *tree) event(e Event) {
	e.Subscription, e.Name = t.subscription, t.opts.Name
	level := slog.LevelInfo
	switch e.Kind {
	case EventDetached, EventAttachFailed, EventLaneRestarted, EventDeadLettered, EventWaitsForEvidence, EventOutageBegan, EventOverDelivered, EventBlocked:
		level = slog.LevelWarn
	case EventHandlerStuck, EventKeyParked, EventDeadLetterFailed:
		level = slog.LevelError
	}
	t.log.Log(context.Background(), level, "keylanes: "+e.Kind.String(), slog.Any("", &e)) // no name: its attributes stand for themselves
	defer t.guard("event subscriber")
	t.system.EventStream.Publish(&e)
}

// guard keeps a panic of the user's code from spreading. Defer it.
func (t *tree) guard(what string) {
	if r := recover(); r != nil {
		t.log.Error("keylanes: a callback panicked", slog.String("subscription", t.opts.Name), slog.String("callback", what),
			slog.String("panic", fmt.Sprint(r)), slog.String("stack", string(debug.Stack())))
	}
}

// settle hands an outcome to the receiver of the delivery's epoch. Any goroutine;
// it doesn't block.
func (t *tree) settle(d *transport.Delivery, o transport.Outcome) {
	e := t.epoch.Load()
	if e == nil || e.id.Load() != d.Epoch {
		t.counts.settleFailed.Add(1)
		t.observe(Observation{Kind: ObserveSettleFailed, Delivery: d, Lane: -1, Err: errEpochOver(d.Epoch)})
		t.confirmations.reported(d)
		return
	}
	e.settle(d, o)
}

func errEpochOver(n uint64) error {
	return fmt.Errorf("epoch %d is over: %w", n, transport.ErrLeaseLost)
}

// runners counts the goroutines that run handlers, and remembers what each is
// at, so that a stop can wait for them and name those that don't end.
type runners struct {
	mu    sync.Mutex
	n     int
	empty chan struct{} // closed when n is 0; nil when nobody waits
	all   map[*runner]struct{}
}

func (rs *runners) add(r *runner) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.all == nil {
		rs.all = make(map[*runner]struct{})
	}
	rs.all[r] = struct{}{}
	rs.n++
}

func (rs *runners) remove(r *runner) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.all, r)
	rs.n--
	if rs.n == 0 && rs.empty != nil {
		close(rs.empty)
		rs.empty = nil
	}
}

// cancelAll ends the context of whatever runs.
func (rs *runners) cancelAll(cause error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for r := range rs.all {
		if c := r.at.Load(); c != nil {
			c.cancel(cause)
		}
	}
}

// quit tells every runner to end, and waits for them for at most d. It says what
// still runs then.
func (rs *runners) quit(d time.Duration) []*transport.Delivery {
	rs.mu.Lock()
	for r := range rs.all {
		r.end()
	}
	if rs.n == 0 {
		rs.mu.Unlock()
		return nil
	}
	if rs.empty == nil {
		rs.empty = make(chan struct{})
	}
	empty := rs.empty
	rs.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-empty:
		return nil
	case <-timer.C:
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	var left []*transport.Delivery
	for r := range rs.all {
		if c := r.at.Load(); c != nil {
			left = append(left, c.item.D)
		}
	}
	return left
}

// goroutines is a dispatcher that reuses goroutines: a fresh one for each time
// an actor wakes costs more in stack growth than the message itself. It belongs
// to one tree, so that a tree lives inside a testing/synctest bubble.
type goroutines struct {
	work   chan func()
	closed chan struct{}
	once   sync.Once
}

func newGoroutines() *goroutines {
	return &goroutines{work: make(chan func()), closed: make(chan struct{})}
}

// Schedule implements actor.Dispatcher.
func (g *goroutines) Schedule(f func()) {
	select {
	case g.work <- f:
	default:
		go g.worker(f)
	}
}

// Throughput implements actor.Dispatcher: how many messages in a row.
func (g *goroutines) Throughput() int { return 300 }

func (g *goroutines) worker(f func()) {
	for {
		f()
		select {
		case f = <-g.work:
		case <-g.closed:
			return
		}
	}
}

// close lets idle workers end. Schedule still works.
func (g *goroutines) close() { g.once.Do(func() { close(g.closed) }) }
