package actors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// pump is an actor that owns one goroutine, the loop, which owns the receiver:
// it attaches, grants, receives, hands what it received to the router, and
// attaches again when the link is gone. The actor turns messages into the loop's
// orders, so that it always sees Stop, however long a receive takes.
type pump struct{ t *tree }

// Orders to the loop, and its reports to the subscription and the router.
type (
	// startPump begins the loop, once everybody's address is known.
	startPump struct{}
	// endEpoch: close the receiver and open the next.
	endEpoch struct{}
	// endIntake: receive nothing more; answered with intakeEnded.
	endIntake struct{}
	// holdIntake: receive and grant nothing for now, or again.
	holdIntake struct{ on bool }

	attached struct{ epoch uint64 }
	detached struct {
		err  error
		wait time.Duration // until it is tried to attach again
	}
	openFailed struct {
		err   error
		wait  time.Duration
		fatal bool
	}
	intakeEnded struct{}
	pumpClosed  struct{ err error }
	// epochEnded follows the last arrival of its epoch.
	epochEnded struct{ epoch uint64 }
	arrived    struct{ items []plan.Item }
	lost       struct {
		ds  []*transport.Delivery
		err error
	}
	// leasesEnding: the leases of ds can't be extended any more.
	leasesEnding struct{ ds []*transport.Delivery }
	acceptLost   struct{ d *transport.Delivery }
)

// pumpCrash is the failure of the pump's goroutine, or of the receiver on somebody
// else's, which part names. The pump panics with it.
type pumpCrash struct {
	part  string
	value any
	stack []byte
}

// Receive implements actor.Actor.
func (p *pump) Receive(ctx actor.Context) {
	loop := p.t.loop
	switch m := ctx.Message().(type) {
	case *startPump:
		loop.self = ctx.Self()
		go loop.run()
	case *endEpoch:
		loop.order(func(o *orders) { o.resetting = true })
	case *endIntake:
		loop.order(func(o *orders) { o.noIntake = true })
	case *holdIntake:
		loop.order(func(o *orders) { o.held = m.on })
	case *pumpCrash:
		panic(&CrashError{Name: p.t.opts.Name, Part: m.part, Reason: fmt.Sprintf("%v\n%s", m.value, m.stack)})
	}
}

// orders are what the loop is told to do.
type orders struct {
	resetting bool // end the epoch
	noIntake  bool // receive nothing more
	closing   bool // close the receiver, and end
	held      bool // receive and grant nothing for now
}

// pumpLoop is the pump's goroutine.
type pumpLoop struct {
	t      *tree
	self   *actor.PID
	closed chan struct{} // closed when the loop has ended

	mu     sync.Mutex
	now    orders
	ctx    context.Context    // what the loop waits with
	cancel context.CancelFunc // ends it

	// The loop's own.
	epochs   uint64
	attempts int // failed opens, and links that were of no use, in a row
	everOpen bool
}

// healthyAfter is how long a link lives before its loss is a new trouble, and not
// more of the old one, even if nothing was settled on it.
const healthyAfter = 5 * time.Second

func newPumpLoop(t *tree) *pumpLoop { return &pumpLoop{t: t, closed: make(chan struct{})} }

// order changes the orders and interrupts whatever the loop waits for. Any
// goroutine.
func (l *pumpLoop) order(change func(*orders)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.now)
	if l.cancel != nil {
		l.cancel()
	}
}

func (l *pumpLoop) orders() orders {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// interruptible gives a context that the next order ends. An order that came
// since seen was read ends it at once. It is used again until an order has ended
// it, so that a receive costs no context.
func (l *pumpLoop) interruptible(seen orders) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil || l.ctx.Err() != nil {
		l.ctx, l.cancel = context.WithCancel(context.Background())
	}
	if l.now != seen {
		l.cancel()
	}
	return l.ctx
}

func (l *pumpLoop) run() {
	defer func() {
		if r := recover(); r != nil {
			stack := debug.Stack()
			l.abandonEpoch()
			close(l.closed)
			l.t.send(l.self, &pumpCrash{part: "pump", value: r, stack: stack})
			l.t.send(l.t.subscription, &pumpClosed{})
			return
		}
		close(l.closed)
	}()
	for {
		o := l.orders()
		if o.closing || o.noIntake {
			l.finish(nil)
			return
		}
		e := l.open(o)
		if e == nil {
			continue
		}
		done, err := l.receive(e)
		if done {
			l.finish(e)
			return
		}
		l.endEpoch(e, err)
	}
}

// open opens the next epoch. It gives nil when it failed, after the backoff, or
// was interrupted.
func (l *pumpLoop) open(o orders) *epoch {
	t := l.t
	e := newEpoch(t, l.epochs+1)
	ctx := l.interruptible(o)
	rcv, err := t.src.Open(ctx, e)
	if err != nil {
		if ctx.Err() != nil {
			return nil // an order came; it is looked at first
		}
		l.attempts++
		var fatal *transport.FatalError
		isFatal := errors.As(err, &fatal)
		if isFatal && !l.everOpen {
			t.send(t.subscription, &openFailed{err: err, fatal: true})
			l.await(ctx, 0)
			return nil
		}
		wait := reattachBackoff.Delay(l.attempts, rand.Uint64())
		t.send(t.subscription, &openFailed{err: err, wait: wait})
		l.backOff(wait)
		return nil
	}
	l.epochs++
	l.everOpen, e.opened = true, time.Now()
	e.rcv = rcv
	e.paused.Store(o.held)
	t.epoch.Store(e)
	t.send(t.subscription, &attached{epoch: e.n})
	t.send(t.router, &attachedLimits{limits: limitsOf(rcv)})
	e.begin()
	return e
}

// reattachBackoff paces attempts to attach, for ever.
var reattachBackoff = supervision.Backoff{Min: 100 * time.Millisecond, Max: 30 * time.Second}

// receiveBackoff paces receives after passing faults.
var receiveBackoff = supervision.Backoff{Min: 50 * time.Millisecond, Max: 10 * time.Second}

type attachedLimits struct{ limits transport.Limits }

func limitsOf(r transport.Receiver) transport.Limits {
	if l, ok := r.(transport.Limited); ok {
		return l.Limits()
	}
	return transport.Limits{}
}

// await waits for d, or for ever when d is 0, or until an order comes.
func (l *pumpLoop) await(ctx context.Context, d time.Duration) {
	var after <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-after:
	case <-ctx.Done():
	}
}

// backOff waits for d. Only the end of the intake cuts it short: a pause that
// comes and goes isn't a reason to call the broker.
func (l *pumpLoop) backOff(d time.Duration) {
	until := time.Now().Add(d)
	for {
		o := l.orders()
		left := time.Until(until)
		if o.closing || o.noIntake || left <= 0 {
			return
		}
		l.await(l.interruptible(o), left)
	}
}

// receive takes what comes until the epoch ends. It gives the error that ended
// it, nil for an order, and done when the loop is to end with it.
func (l *pumpLoop) receive(e *epoch) (done bool, err error) {
	stop := l.extend(e)
	defer stop()
	faults := 0
	ended := false
	for {
		o := l.orders()
		e.paused.Store(o.held)
		switch {
		case o.closing:
			return true, nil
		case o.noIntake && !ended:
			ended = true
			l.t.send(l.t.subscription, &intakeEnded{})
			fallthrough
		case o.noIntake:
			l.await(l.interruptible(o), 0)
			continue
		case o.resetting:
			return false, nil
		case o.held && l.t.opts.traits.LeaseExpires: // else the end of the link must be seen
			l.await(l.interruptible(o), 0)
			continue
		}
		e.flush()
		ctx := l.interruptible(o)
		if !l.room(ctx) {
			continue
		}
		ds, err := e.rcv.Receive(ctx)
		interrupted := ctx.Err() != nil
		l.forward(e, ds)
		var temporary *transport.TemporaryError
		switch {
		case err == nil:
			faults = 0
		case errors.As(err, &temporary):
			faults++
			wait := receiveBackoff.Delay(faults, rand.Uint64())
			l.t.send(l.t.subscription, &openFailed{err: err, wait: wait})
			l.await(l.interruptible(o), wait)
		case interrupted && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
			// an order came
		default:
			return false, err
		}
	}
}

// room waits, where deliveries are polled and their leases tick, until the lanes
// could use one more receive's worth. What waits behind its own key doesn't
// count: a hot key must not idle the other lanes.
func (l *pumpLoop) room(ctx context.Context) bool {
	if !l.t.opts.traits.LeaseExpires {
		return true
	}
	for l.t.runnable.Load()+l.t.inbound.Load() >= int64(l.t.opts.traits.MaxReceive) {
		select {
		case <-l.t.wake:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// forward hands deliveries to the router.
func (l *pumpLoop) forward(e *epoch, ds []*transport.Delivery) {
	if len(ds) == 0 {
		return
	}
	t := l.t
	if over := e.received(len(ds)); over > 0 {
		t.event(Event{Kind: EventOverDelivered, Lane: -1, Epoch: e.n, Count: over})
	}
	e.id.Store(ds[0].Epoch)
	items := make([]plan.Item, len(ds))
	for i, d := range ds {
		it := &items[i]
		it.D, it.Key = d, d.Key
		if t.opts.Key != nil {
			var err error
			if it.Key, err = l.key(&d.Message); err != nil {
				it.SetKeyErr(err)
			}
		}
	}
	if e.leases != nil {
		e.leases.add(ds, time.Now())
	}
	t.inbound.Add(int64(len(ds)))
	if t.opts.Observer != nil {
		for _, d := range ds {
			t.observe(Observation{Kind: ObserveReceived, Delivery: d, Lane: -1})
		}
	}
	t.send(t.router, &arrived{items: items})
}

// key calls the user's key function. When it panics nothing is known of the
// message's place among others: it is keyless, and undecodable.
func (l *pumpLoop) key(m *transport.Message) (key string, err error) {
	defer func() {
		if r := recover(); r != nil {
			key, err = "", &transport.DecodeError{ContentType: m.ContentType, Err: fmt.Errorf("the key function panicked: %v", r)}
		}
	}()
	return l.t.opts.Key(m), nil
}

// extend keeps the leases of an epoch alive until the returned function is
// called.
func (l *pumpLoop) extend(e *epoch) (stop func()) {
	lim := limitsOf(e.rcv)
	if e.leases == nil || lim.Lease <= 0 {
		return func() {}
	}
	ended, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		defer func() {
			if v := recover(); v != nil {
				l.t.send(l.self, &pumpCrash{part: "pump", value: v, stack: debug.Stack()})
			}
		}()
		// Often enough that each lease is asked for while more than a third of it
		// is left to try again in, and never in step with other processes.
		every := lim.Lease / 8
		timer := time.NewTimer(jitter(every))
		defer timer.Stop()
		for {
			select {
			case <-ended:
				return
			case <-timer.C:
			}
			timer.Reset(jitter(every))
			ds, ending, until := e.leases.due(time.Now(), lim)
			if len(ds) > 0 {
				e.rcv.Extend(ds, until)
			}
			if len(ending) > 0 {
				l.t.send(l.t.router, &leasesEnding{ds: ending})
			}
		}
	}()
	return func() {
		close(ended)
		<-gone
	}
}

func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/4+1) }

// endEpoch closes a receiver that failed, or whose end was ordered, and lets the
// next one be opened. The router hears of the end after everything that the
// epoch brought.
func (l *pumpLoop) endEpoch(e *epoch, cause error) {
	t := l.t
	if cause != nil { // its leases are gone already
		l.retire(e)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	err := e.rcv.Close(ctx)
	cancel()
	if cause == nil {
		l.retire(e)
	}
	l.mu.Lock()
	l.now.resetting = false
	l.mu.Unlock()
	var wait time.Duration
	switch {
	case cause == nil: // resets are paced by the planner
		cause = err
	case e.settled.Load() || time.Since(e.opened) >= healthyAfter:
		l.attempts = 0
	default: // attached, and lost at once: as bad as not attached
		l.attempts++
		wait = reattachBackoff.Delay(l.attempts, rand.Uint64())
	}
	t.send(t.subscription, &detached{err: cause, wait: wait})
	if wait > 0 {
		l.backOff(wait)
	}
}

// closeWithin bounds the close of a receiver whose epoch ends.
const closeWithin = 10 * time.Second

// retire makes e's settlements be refused, and tells the router.
func (l *pumpLoop) retire(e *epoch) {
	l.t.epoch.CompareAndSwap(e, nil)
	l.t.send(l.t.router, &epochEnded{epoch: e.id.Load()})
}

// finish ends the loop. The receiver, if there is one, flushes and gives back.
func (l *pumpLoop) finish(e *epoch) {
	t := l.t
	if e == nil {
		t.send(t.subscription, &intakeEnded{})
		for o := l.orders(); !o.closing; o = l.orders() {
			l.await(l.interruptible(o), 0)
		}
		t.send(t.subscription, &pumpClosed{})
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	err := e.rcv.Close(ctx)
	cancel()
	l.retire(e)
	t.send(t.subscription, &pumpClosed{err: err})
}

// abandonEpoch closes the receiver after a crash of the loop.
func (l *pumpLoop) abandonEpoch() {
	e := l.t.epoch.Load()
	if e == nil {
		return
	}
	defer l.t.guard("receiver's Close")
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	_ = e.rcv.Close(ctx) // the crash is what gets reported
	l.retire(e)
}
