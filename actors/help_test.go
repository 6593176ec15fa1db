package actors_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// system makes an actor system whose log goes nowhere. Protoactor starts a
// goroutine for each burst of dead letters, which lasts for the interval.
func system() *actor.ActorSystem {
	return actor.NewActorSystemWithConfig(actor.Configure(
		actor.WithDeadLetterThrottleInterval(time.Millisecond),
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet() })))
}

// bench is a queue and the system that reads it.
type rig struct {
	t     *testing.T
	queue *memory.Queue
	dead  *memory.Queue
	sys   *actor.ActorSystem
}

func newRig(t *testing.T, o *memory.QueueOptions) *rig {
	t.Helper()
	b := memory.New(nil)
	q, err := b.Queue("orders", o)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := b.Queue("orders.dead", nil)
	if err != nil {
		t.Fatal(err)
	}
	// Virtual: for protoactor's goroutine, see system.
	t.Cleanup(func() { time.Sleep(10 * time.Millisecond) })
	return &rig{t: t, queue: q, dead: dead, sys: system()}
}

// publish sends one message for each key; bodies and ids count from from.
func (r *rig) publish(from int, keys ...string) {
	r.t.Helper()
	ms := make([]transport.Message, len(keys))
	for i, k := range keys {
		n := strconv.Itoa(from + i)
		ms[i] = transport.Message{ID: n, Key: k, Body: []byte(n)}
	}
	if err := r.queue.Publisher().Publish(context.Background(), ms...); err != nil {
		r.t.Fatal(err)
	}
}

// spawn starts a subscription with the rig's logger and dead-letter target.
func (r *rig) spawn(h transport.HandlerFunc, o actors.Options) *actor.PID {
	r.t.Helper()
	if o.Logger == nil {
		o.Logger = quiet()
	}
	if o.DeadLetter == nil {
		o.DeadLetter = r.dead.Publisher()
	}
	props, err := actors.Subscription(r.queue.Source(), h, &o)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.sys.Root.Spawn(props)
}

// drain drains pid and fails the test when that isn't clean.
func (r *rig) drain(pid *actor.PID) {
	r.t.Helper()
	if err := actors.Drain(context.Background(), r.sys.Root, pid); err != nil {
		r.t.Errorf("drain: %v", err)
	}
}

// left fails the test unless the queue holds ready messages and nothing is out.
func (r *rig) left(ready int) {
	r.t.Helper()
	if s := r.queue.Stats(); s.Ready != ready || s.InFlight != 0 {
		r.t.Errorf("the queue has %d ready and %d in flight, want %d and 0", s.Ready, s.InFlight, ready)
	}
}

// journal records what handlers did, and checks that no key overlaps.
type journal struct {
	mu      sync.Mutex
	byKey   map[string][]string
	running map[string]bool
	faults  []string
	n       int
	done    chan struct{}
	want    int
}

func newJournal(want int) *journal {
	return &journal{byKey: map[string][]string{}, running: map[string]bool{}, done: make(chan struct{}), want: want}
}

func (j *journal) begin(d *transport.Delivery) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if d.Key != "" && j.running[d.Key] {
		j.faults = append(j.faults, fmt.Sprintf("%v overlaps with another of its key", d))
	}
	j.running[d.Key] = true
}

// end records a success, unless the attempt failed.
func (j *journal) end(d *transport.Delivery, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running[d.Key] = false
	if !ok {
		return
	}
	j.byKey[d.Key] = append(j.byKey[d.Key], d.ID)
	if j.n++; j.n == j.want {
		close(j.done)
	}
}

// check fails the test when a key overlapped or its successes aren't ascending.
func (j *journal) check(t *testing.T) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, f := range j.faults {
		t.Error(f)
	}
	for k, ids := range j.byKey {
		last := -1
		for _, id := range ids {
			n, _ := strconv.Atoi(id)
			if n <= last && k != "" {
				t.Errorf("key %q: %d after %d in %v", k, n, last, ids)
			}
			last = n
		}
	}
}

// fast is a policy that tries five times with a short backoff.
func fast() supervision.Policy {
	return supervision.DefaultWith(5, supervision.Backoff{Min: 1e6, Max: 4e6})
}

// await waits for done, or shows what the subscription is at when nothing will
// ever happen any more. In a synctest bubble an hour passes only then.
func (r *rig) await(pid *actor.PID, done <-chan struct{}) {
	r.t.Helper()
	select {
	case <-done:
	case <-time.After(time.Hour):
		st, err := actors.StatsOf(context.Background(), r.sys.Root, pid)
		r.t.Fatalf("nothing happens any more: %+v, %v", st, err)
	}
}
