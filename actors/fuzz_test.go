package actors_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// TestFuzz runs the real tree on random queues, with random handlers, policies,
// faults, pauses, drains and stops. Then the faults end, everything has to come
// to rest, and the oracle judges what happened.
//
// KEYLANES_FUZZ_RUNS says how many runs there are, KEYLANES_FUZZ_SEED with which
// seed they begin. A run's every choice follows from its seed; what the scheduler
// makes of it doesn't, so a rare failure may need a few runs of its seed.
func TestFuzz(t *testing.T) {
	t.Parallel()
	runs, first := fuzzNumber(t, "KEYLANES_FUZZ_RUNS", 300), fuzzNumber(t, "KEYLANES_FUZZ_SEED", 1)
	if testing.Short() {
		runs = min(runs, 50)
	}
	if os.Getenv("KEYLANES_FUZZ_SEED") != "" && os.Getenv("KEYLANES_FUZZ_RUNS") == "" {
		runs = 1
	}
	var next atomic.Uint64
	for shard := range runtime.GOMAXPROCS(0) {
		t.Run(fmt.Sprint("shard ", shard), func(t *testing.T) {
			t.Parallel()
			for n := next.Add(1); n <= runs && !t.Failed(); n = next.Add(1) {
				seed := first + n - 1
				// The name shows the seed when a run never ends.
				t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { newFuzz(t, seed).run() })
				})
			}
		})
	}
}

func fuzzNumber(t *testing.T, name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s = %q: must be a number", name, s)
	}
	return n
}

// fuzz is one run.
type fuzz struct {
	t    *testing.T
	seed uint64
	r    *rig
	log  *oracle.Log
	opts actors.Options
	rand *rand.Rand // the driver's own

	queue    memory.QueueOptions
	keys     int
	total    int
	wild     int  // how many of a hundred handler runs don't just succeed
	faulty   int  // how many of a thousand operations fail
	ignores  bool // handlers may ignore their context for long
	escalate bool // the policy may escalate
	more     bool // the broker may over-deliver
	key      int  // which of keyNames' functions finds the keys; 0: none
	calm     atomic.Bool
	attached atomic.Bool // a fatal error of Open isn't one of the start any more
	running  atomic.Int64

	mu   sync.Mutex
	runs map[string]int // of each message; of each kind of operation
	dead int            // how many dead letters were looked at
}

func newFuzz(t *testing.T, seed uint64) *fuzz {
	f := &fuzz{t: t, seed: seed, log: oracle.New(), runs: map[string]int{}}
	f.rand = f.dice("driver", 0)
	d := f.rand
	lease := time.Duration(1+d.IntN(10)) * time.Second
	switch d.IntN(3) {
	case 0:
		f.queue = memory.QueueOptions{CountsOnLoss: d.IntN(2) == 0}
	case 1:
		f.queue = memory.QueueOptions{FIFO: true, Lease: lease, CountsOnReturn: true}
	case 2:
		f.queue = memory.QueueOptions{Shuffle: true, Lease: lease, CountsOnReturn: true, Seed: seed}
	}
	f.queue.MaxReceive = 1 + d.IntN(12)
	if f.queue.Lease > 0 && d.IntN(2) == 0 {
		f.queue.Poll = time.Duration(1+d.IntN(2000)) * time.Millisecond
	}
	if f.queue.Lease > 0 && d.IntN(4) == 0 {
		f.queue.LeaseMax = lease * time.Duration(2+d.IntN(8))
	}
	if d.IntN(4) == 0 {
		f.queue.MaxReceives = 2 + d.IntN(10)
	}
	f.keys, f.total = 1+d.IntN(8), 20+d.IntN(100)
	f.wild, f.faulty = d.IntN(50), d.IntN(120)
	f.more = d.IntN(4) == 0
	f.opts = actors.Options{
		Dispatch: []actors.Dispatch{actors.Sequential(), actors.ByKey(1), actors.ByKey(1 + d.IntN(6)),
			actors.PerKey(1 + d.IntN(6)), actors.Workers(1 + d.IntN(6))}[d.IntN(5)],
		Credit:      1 + d.IntN(40),
		StopTimeout: time.Duration(1+d.IntN(5000)) * time.Millisecond,
		StuckAfter:  time.Duration(1+d.IntN(3000)) * time.Millisecond,
		OutageAfter: time.Duration(d.IntN(3)) * 30 * time.Second,
		Policy:      supervision.PolicyFunc(f.decide),
		Middleware:  []transport.Middleware{f.log.Middleware()},
		Observer:    actors.ObserverFunc(f.observe),
		Logger:      quiet(),
	}
	f.opts.NativeDeadLetter = d.IntN(4) == 0
	if d.IntN(4) == 0 {
		f.opts.Batch, f.opts.Middleware = 1+d.IntN(min(8, f.opts.Credit)), nil
		f.opts.BatchWait = time.Duration(1+d.IntN(500)) * time.Millisecond
	}
	if f.key = max(0, d.IntN(6)-2); f.key > 0 && !f.queue.FIFO {
		f.opts.Key, f.log.Key = f.keyOf, f.keyOf
	}
	if d.IntN(2) == 0 {
		f.opts.HandlerTimeout = time.Duration(1+d.IntN(2000)) * time.Millisecond
	}
	// A failure to the parent doesn't wait for a stuck handler for ever, so that
	// one may still run when the parent has restarted the subscription.
	if f.ignores = d.IntN(2) == 0; !f.ignores {
		f.escalate = d.IntN(3) == 0
		f.opts.StuckAfter = 5 * time.Second
	}
	return f
}

// keyOf is the user's key function: one key for several of the transport's, two
// keys for each of them, or now and then a panic.
func (f *fuzz) keyOf(m *transport.Message) string {
	switch {
	case f.key == 3 && f.dice("key "+m.ID, 0).IntN(10) == 0:
		panic("the key function panics")
	case m.Key == "" || f.key == 3:
		return m.Key
	case f.key == 1:
		return strconv.Itoa(int(m.Key[len(m.Key)-1]) % 3)
	default:
		return m.Key + "/" + strconv.Itoa(int(m.Body[0])%2)
	}
}

// keyNames are all the names that keyOf gives.
func (f *fuzz) keyNames() []string {
	names := []string{"", "0", "1", "2"}
	for k := range f.keys + 1 {
		name := "key-" + strconv.Itoa(k)
		names = append(names, name, name+"/0", name+"/1")
	}
	return names
}

// dice gives random numbers that depend on the seed, on what they are for and on
// which time it is, and not on who comes first.
func (f *fuzz) dice(what string, n int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, what, " ", n)
	return rand.New(rand.NewPCG(f.seed, h.Sum64()))
}

// again counts how often it was asked about what.
func (f *fuzz) again(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs[what]++
	return f.runs[what]
}

func (f *fuzz) observe(o actors.Observation) {
	switch o.Kind {
	case actors.ObserveAcceptedAnyway:
		f.log.Record(oracle.AcceptedAnyway, &o.Delivery.Message)
	case actors.ObserveDeadLettered:
		if f.opts.NativeDeadLetter {
			f.log.Record(oracle.DeadLettered, &o.Delivery.Message)
		}
	case actors.ObserveStarted:
		f.moved()
	}
}

// moved records what the broker has moved to its dead letters by itself, before
// anything starts that it handed out since.
func (f *fuzz) moved() {
	if f.queue.MaxReceives == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	ms := f.r.dead.Messages()
	for i := f.dead; i < len(ms); i++ {
		if ms[i].Headers[memory.HeaderReason] == memory.ReasonMaxReceives {
			f.log.Record(oracle.DeadLettered, &ms[i])
		}
	}
	f.dead = len(ms)
}

func (f *fuzz) handle(ctx context.Context, dl *transport.Delivery) error {
	f.running.Add(1)
	defer f.running.Add(-1)
	d := f.dice("handler "+dl.ID, f.again("handler "+dl.ID))
	if f.calm.Load() || d.IntN(100) >= f.wild {
		return nil
	}
	span := time.Duration(d.IntN(1000)) * time.Millisecond
	if f.ignores {
		span *= time.Duration(1 + d.IntN(20))
	}
	switch d.IntN(8) {
	case 0, 1:
		return errBoom
	case 2:
		panic(errBoom)
	case 3:
		runtime.Goexit()
	case 4: // heeds its context
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(span):
		}
	case 5: // ignores it, and fails
		time.Sleep(span)
		return errBoom
	case 6:
		time.Sleep(span)
		panic("late")
	default:
		time.Sleep(span)
	}
	return nil
}

// orderKey is the key by which the subscription keeps d's order, "" for none.
func (f *fuzz) orderKey(d *transport.Delivery) string {
	switch {
	case f.opts.Dispatch == actors.Sequential():
		return "all"
	case f.opts.Dispatch.String()[0] == 'w':
		return ""
	case f.opts.Key != nil: // it doesn't panic: what it panicked on isn't handled
		return f.opts.Key(&d.Message)
	default:
		return d.Key
	}
}

// handleBatch works on one element after the other, and stops a key at its first
// failure. Now and then a failure is the whole batch's; a panic always is.
func (f *fuzz) handleBatch(ctx context.Context, ds []*transport.Delivery) error {
	errs, failed := make([]error, len(ds)), map[string]bool{}
	one := func(d *transport.Delivery) error {
		run, end := f.log.Start(&d.Message, transport.Attempt(ctx)), oracle.Panicked
		defer func() { run.End(end) }()
		err := f.handle(ctx, d)
		if end = oracle.Succeeded; err != nil {
			end = oracle.Failed
		}
		return err
	}
	for i, d := range ds {
		key := f.orderKey(d)
		if failed[key] {
			errs[i] = errors.New("one before it has failed")
			continue
		}
		if errs[i] = one(d); errs[i] != nil {
			failed[key] = key != ""
			if f.dice("batch "+d.ID, f.again("batch "+d.ID)).IntN(3) == 0 {
				return errs[i]
			}
		}
	}
	for _, err := range errs {
		if err != nil {
			return &transport.BatchError{Errs: errs}
		}
	}
	return nil
}

func (f *fuzz) decide(fl supervision.Failure) supervision.Directive {
	d := f.dice("policy "+fl.Message.ID, f.again("policy "+fl.Message.ID))
	after := time.Duration(d.IntN(2000)) * time.Millisecond
	var dir supervision.Directive
	switch n := d.IntN(40); {
	case n < 18:
		dir = supervision.Retry(after)
	case n < 21:
		dir = supervision.RetryUncounted(after)
	case n < 28:
		dir = supervision.Abandon(after)
	case n < 32:
		dir = supervision.DeadLetter("poison", "")
	case n < 35:
		dir = supervision.DeadLetter("exhausted", "")
		dir.Exhausted, dir.After = true, after
	case n < 37:
		dir = supervision.AcceptAnyway()
	case n < 38:
		dir = supervision.StopSubscription()
	case n < 39 && f.escalate:
		dir = supervision.Escalate()
	case n < 39:
		panic("the policy panics")
	}
	dir.RestartLane = d.IntN(6) == 0
	dir.Park = d.IntN(20) == 0
	return dir
}

// reply is the fault of both queues.
func (f *fuzz) reply(op memory.Op) (r memory.Reply) {
	what := op.Queue + " " + op.Kind.String()
	d := f.dice(what, f.again(what))
	if f.more && op.Kind == memory.OpReceive && d.IntN(5) == 0 {
		r.More = d.IntN(6)
		if f.queue.Shuffle { // elsewhere a copy would come out of its order
			r.Again = d.IntN(4)
		}
	}
	if d.IntN(1000) >= f.faulty {
		return r
	}
	if d.IntN(3) == 0 {
		r.Delay = time.Duration(d.IntN(3000)) * time.Millisecond
	}
	switch d.IntN(6) {
	case 0, 1:
		r.Err = &transport.TemporaryError{Op: op.Kind.String(), Err: errors.New("not now")}
	case 2:
		r.Err = errors.New("broken")
	case 3:
		r.Lost = true
	case 4:
		r.CutLink = true
	case 5:
		if op.Kind == memory.OpOpen && f.attached.Load() {
			r.Err = &transport.FatalError{Op: "open", Fix: "wait", Err: errors.New("no such queue")}
		}
	}
	return r
}

// run is the whole story.
func (f *fuzz) run() {
	f.r = f.rig()
	f.r.queue.SetFault(f.reply)
	f.r.dead.SetFault(f.reply)
	f.opts.DeadLetter = f.log.DeadLetter(f.r.dead.Publisher())
	published := make(chan struct{})
	go f.publish(published)
	pid := f.spawn()
	for range 5 + f.rand.IntN(20) {
		time.Sleep(time.Duration(f.rand.IntN(1500)) * time.Millisecond)
		pid = f.step(f.alive(pid))
	}
	<-published
	f.calm.Store(true)
	f.r.queue.SetFault(nil)
	f.r.dead.SetFault(nil)
	// What the broker holds for a settlement that was refused comes back only
	// when the link ends.
	f.r.queue.CutLinks()
	pid = f.rest(pid)
	// What the policy stopped for may have been moved to the dead letters since.
	if err := actors.Drain(context.Background(), f.r.sys.Root, pid); err != nil && !errors.Is(err, actors.ErrNotRunning) {
		f.t.Errorf("drain: %v", err)
	}
	f.r.left(0)
	f.moved()
	rules := oracle.Rules{
		Unordered:   f.queue.Shuffle,
		Overlapping: f.opts.Dispatch.String()[0] == 'w',
		Sequential:  f.opts.Dispatch == actors.Sequential() && !f.queue.FIFO && !f.queue.Shuffle,
		Duplicates:  1 << 30, // as many as there were faults
		Left:        map[string]int{"handlers": int(f.running.Load())},
	}
	if !f.more {
		rules.Credit = f.opts.Credit
	}
	verdict := f.log.Check(rules)
	if f.key == 3 || f.queue.MaxReceives > 0 { // no run has failed of what has no key, or what the broker moved
		delete(verdict.Counts, oracle.Unseen)
	}
	if err := verdict.Err(); err != nil {
		f.t.Error(err)
	}
	if f.t.Failed() {
		f.t.Logf("%v, credit %d, timeout %v, stuck after %v, %d keys, queue %+v", f.opts.Dispatch, f.opts.Credit,
			f.opts.HandlerTimeout, f.opts.StuckAfter, f.keys, f.queue)
		f.t.Logf("batches of %d, native dead letters %v, key function %d, queue's dead letters %v", f.opts.Batch, f.opts.NativeDeadLetter, f.key, f.queue.MaxReceives)
		f.t.Logf("again: KEYLANES_FUZZ_SEED=%d go test -race -run '^TestFuzz$' ./actors", f.seed)
	}
}

// rig makes the queues, which may be each other's dead letters.
func (f *fuzz) rig() *rig {
	b := memory.New(nil)
	dead, err := b.Queue("orders.dead", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	if f.opts.NativeDeadLetter || f.queue.MaxReceives > 0 {
		f.queue.DeadLetter = dead
	}
	q, err := b.Queue("orders", &f.queue)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { time.Sleep(10 * time.Millisecond) }) // see newRig
	r := &rig{t: f.t, queue: q, dead: dead, sys: system()}
	r.sys.EventStream.Subscribe(func(m any) {
		if e, ok := m.(*actors.Event); ok {
			switch e.Kind {
			case actors.EventAttached:
				f.attached.Store(true)
			case actors.EventStopped:
				f.attached.Store(false)
			}
		}
	})
	return r
}

// publish sends everything, bit by bit. The faults of the queue's publishing are
// tried again: their place in the order is then uncertain, as the oracle knows.
func (f *fuzz) publish(done chan<- struct{}) {
	defer close(done)
	d, p := f.dice("publisher", 0), f.log.Publisher(f.r.queue.Publisher())
	for i := range f.total {
		m := transport.Message{ID: strconv.Itoa(i), Body: []byte{byte(i)}}
		if k := d.IntN(f.keys + 1); k < f.keys || f.more {
			m.Key = "key-" + strconv.Itoa(k)
		}
		// Two copies of a keyless message may overlap: it is sent once.
		for p.Publish(context.Background(), m) != nil && m.Key != "" {
			time.Sleep(time.Millisecond)
		}
		if d.IntN(3) == 0 {
			time.Sleep(time.Duration(d.IntN(200)) * time.Millisecond)
		}
	}
}

func (f *fuzz) spawn() *actorPID {
	if f.opts.Batch > 0 {
		props, err := actors.BatchSubscription(f.log.Source(f.r.queue.Source()), transport.BatchHandlerFunc(f.handleBatch), &f.opts)
		if err != nil {
			f.t.Fatal(err)
		}
		return f.r.sys.Root.Spawn(props)
	}
	return f.r.spawnOn(f.log.Source(f.r.queue.Source()), f.handle, f.opts)
}

// alive spawns another subscription when the policy has stopped pid.
func (f *fuzz) alive(pid *actorPID) *actorPID {
	if _, err := actors.StatsOf(context.Background(), f.r.sys.Root, pid); err == nil {
		return pid
	} else if !errors.Is(err, actors.ErrNotRunning) {
		f.t.Fatal(err)
	}
	return f.respawn()
}

// respawn waits for handlers that a stop has left behind, and spawns anew.
func (f *fuzz) respawn() *actorPID {
	for f.running.Load() > 0 {
		time.Sleep(100 * time.Millisecond)
	}
	return f.spawn()
}

// step disturbs the subscription.
func (f *fuzz) step(pid *actorPID) *actorPID {
	root := f.r.sys.Root
	switch f.rand.IntN(12) {
	case 0, 1:
		f.r.queue.CutLinks()
	case 2:
		root.Send(pid, &actors.Pause{})
	case 3, 4:
		root.Send(pid, &actors.Resume{})
	case 5, 6:
		f.unpark(pid, f.rand.IntN(3) == 0)
	case 7:
		err := actors.Drain(context.Background(), root, pid)
		var escalated *actors.EscalatedError
		if errors.As(err, &escalated) { // its parent has restarted it
			return pid
		}
		if s := f.r.queue.Stats(); s.Receivers != 0 || s.InFlight != 0 {
			f.t.Errorf("after the drain (%v) the broker has %d receivers and %d in flight", err, s.Receivers, s.InFlight)
		}
		return f.respawn()
	case 8:
		f.r.stop(pid)
		return f.respawn()
	}
	return pid
}

func (f *fuzz) unpark(pid *actorPID, skip bool) {
	for _, name := range f.keyNames() {
		f.r.sys.Root.Send(pid, &actors.Unpark{Key: name, Skip: skip})
	}
}

// rest waits until the queue is empty.
func (f *fuzz) rest(pid *actorPID) *actorPID {
	var s memory.Stats
	for range 3600 {
		pid = f.alive(pid)
		f.r.sys.Root.Send(pid, &actors.Resume{})
		f.unpark(pid, false)
		time.Sleep(time.Second)
		if s = f.r.queue.Stats(); s.Ready+s.InFlight+s.Delayed == 0 && f.running.Load() == 0 {
			return pid
		}
	}
	st, err := actors.StatsOf(context.Background(), f.r.sys.Root, pid)
	f.t.Errorf("nothing comes to rest: the broker has %+v, the subscription is %+v, %v", s, st, err)
	return pid
}
