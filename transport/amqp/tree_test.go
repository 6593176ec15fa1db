package amqp_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

// tree is a whole subscription on a queue, watched by the oracle.
type tree struct {
	t      *testing.T
	broker string // to publish at, and to look into the queue
	queue  string
	log    *oracle.Log
	sys    *actor.ActorSystem
	pid    *actor.PID
	out    transport.Publisher // of the log

	mu        sync.Mutex // guards what follows
	events    []actors.Event
	succeeded map[string]bool // by identity
	changed   chan struct{}   // closed and replaced at each change
}

// newTree subscribes to the queue at url with h. Messages go to broker itself,
// which url may reach by a detour.
func newTree(t *testing.T, broker, url, queue string, ao *amqp.Options, h transport.HandlerFunc, o actors.Options) *tree {
	t.Helper()
	return newTreeOn(t, oracle.New(), broker, url, queue, ao, h, o)
}

// newTreeOn is newTree with a log that others write as well.
func newTreeOn(t *testing.T, log *oracle.Log, broker, url, queue string, ao *amqp.Options, h transport.HandlerFunc, o actors.Options) *tree {
	t.Helper()
	w := &tree{t: t, broker: broker, queue: queue, log: log, succeeded: map[string]bool{}, changed: make(chan struct{})}
	src, err := amqp.Queue(url, queue, ao)
	if err != nil {
		t.Fatal(err)
	}
	w.out = w.log.Publisher(newPublisher(t, broker, queue, nil))
	o.Logger = slog.New(slog.DiscardHandler)
	o.Middleware = append(o.Middleware, w.count, w.log.Middleware())
	props, err := actors.Subscription(w.log.Source(src), h, &o)
	if err != nil {
		t.Fatal(err)
	}
	w.sys = actor.NewActorSystemWithConfig(actor.Configure(
		actor.WithDeadLetterThrottleInterval(time.Microsecond),
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return o.Logger })))
	t.Cleanup(w.sys.Shutdown)
	w.sys.EventStream.Subscribe(func(m any) {
		if e, ok := m.(*actors.Event); ok {
			w.change(func() { w.events = append(w.events, *e) })
		}
	})
	w.pid = w.sys.Root.Spawn(props)
	t.Cleanup(func() { w.stop() }) // when the test failed
	if err := actors.AwaitStarted(testCtx(t), w.sys.Root, w.pid); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *tree) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
	close(w.changed)
	w.changed = make(chan struct{})
}

// count is a middleware that counts messages that were handled.
func (w *tree) count(next transport.Handler) transport.Handler {
	return transport.HandlerFunc(func(ctx context.Context, d *transport.Delivery) error {
		err := next.Handle(ctx, d)
		if err == nil {
			id := oracle.Identity(&d.Message)
			w.change(func() { w.succeeded[id] = true })
		}
		return err
	})
}

// await waits until done, which is called with w.mu held.
func (w *tree) await(what string, within time.Duration, done func() bool) {
	w.t.Helper()
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		w.mu.Lock()
		ok, changed, n := done(), w.changed, len(w.succeeded)
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-late.C:
			w.t.Fatalf("not within %v: %s; %d messages were handled; %+v", within, what, n, w.stats())
		}
	}
}

// awaitHandled waits until n different messages were handled since the start.
func (w *tree) awaitHandled(n int, within time.Duration) {
	w.t.Helper()
	w.await(fmt.Sprint(n, " messages handled"), within, func() bool { return len(w.succeeded) >= n })
}

// awaitEvent waits for the nth event of a kind since the start.
func (w *tree) awaitEvent(k actors.EventKind, n int, within time.Duration) {
	w.t.Helper()
	w.await(fmt.Sprint("event ", k), within, func() bool { return w.countLocked(k) >= n })
}

func (w *tree) countLocked(k actors.EventKind) int {
	n := 0
	for _, e := range w.events {
		if e.Kind == k {
			n++
		}
	}
	return n
}

// detached is how often a receiver was lost.
func (w *tree) detached() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.countLocked(actors.EventDetached)
}

func (w *tree) stats() actors.Stats {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	st, err := actors.StatsOf(ctx, w.sys.Root, w.pid)
	if err != nil {
		w.t.Log(err)
		return actors.Stats{}
	}
	return *st
}

func (w *tree) publish(ms ...transport.Message) {
	w.t.Helper()
	if err := w.out.Publish(testCtx(w.t), ms...); err != nil {
		w.t.Fatal(err)
	}
}

// stop drains; it may be called again.
func (w *tree) stop() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	if err := actors.Drain(ctx, w.sys.Root, w.pid); err != nil && err != actors.ErrNotRunning {
		w.t.Errorf("drain: %v", err)
	}
}

// finish drains, judges, and looks whether the queue is empty.
func (w *tree) finish(rules oracle.Rules) {
	w.t.Helper()
	w.stop()
	v := w.log.Check(rules)
	w.t.Log(strings.ReplaceAll(v.String(), "\n", "; "))
	if err := v.Err(); err != nil {
		w.t.Error(err)
	}
	empty(w.t, w.broker, w.queue)
}

// keyed gives n messages of so many keys in turn, the first with number from.
func keyed(queue string, from, n, keys int) []transport.Message {
	ms := make([]transport.Message, n)
	for i := range ms {
		ms[i] = transport.Message{ID: fmt.Sprint(queue, from+i), Key: fmt.Sprint("k", (from+i)%keys), Body: []byte(fmt.Sprint(from + i))}
	}
	return ms
}
