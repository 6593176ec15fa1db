package actors_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// A lane panics while another run is queued behind the one that panics: the
// queued run isn't lost with the lane, and nothing of the key overtakes.
func TestInterleaving02PanicWithARunQueued(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		const n = 60
		j := newJournal(n)
		running, release := make(chan struct{}), make(chan struct{})
		var runs trail
		pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
			j.begin(d)
			first := d.ID == "1" && transport.Attempt(ctx) == 1
			defer func() { j.end(d, !first) }()
			runs.add("%s", d.ID)
			if first {
				close(running)
				<-release
				panic(errBoom)
			}
			return nil
		}, actors.Options{Dispatch: actors.ByKey(1), Policy: retryEvery(time.Second)})
		keys := slices.Repeat([]string{"A", "B", "C"}, n/3)
		r.publish(1, keys...)
		<-running
		synctest.Wait() // by now the router has lent all that it lends
		close(release)
		r.await(pid, j.done)
		r.drain(pid)
		j.check(t)
		r.left(0)
		if got := len(runs.all()); got != n+1 {
			t.Errorf("%d runs, want %d and one retry", got, n)
		}
	})
}

// The head of one key is abandoned again and again, with many more messages of
// the key than credit: there is progress after each. Where an abandon ends the
// epoch, abandons keep a distance of up to half a minute.
func TestInterleaving05HeadAbandonedAgainAndAgain(t *testing.T) {
	for name, q := range map[string]memory.QueueOptions{
		"amqp": {},
		"fifo": {FIFO: true, Lease: 30 * time.Second, CountsOnReturn: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, &q)
				const n, failing, credit = 100, 30, 8
				j := newJournal(n)
				seen := map[string]int{}
				var mu sync.Mutex
				pid := r.spawn(func(_ context.Context, d *transport.Delivery) error {
					j.begin(d)
					mu.Lock()
					defer mu.Unlock()
					seen[d.ID]++
					ok := seen[d.ID] > 2 || len(seen) > failing
					j.end(d, ok)
					if !ok {
						return errBoom
					}
					return nil
				}, actors.Options{Dispatch: actors.PerKey(4), Credit: credit, Policy: supervision.Always(supervision.Abandon(0))})
				r.publish(1, slices.Repeat([]string{"A"}, n)...)
				r.await(pid, j.done)
				r.drain(pid)
				j.check(t)
				r.left(0)
				ran := 0
				for _, n := range seen {
					ran += n
				}
				if ran != n+2*failing {
					t.Errorf("%d runs, want %d", ran, n+2*failing)
				}
			})
		})
	}
}

// The lease of A1 alone is lost while it runs. In a group what is held behind it
// is void: it doesn't start, and goes back once A1's handler has returned. Where
// the broker keeps no order, only A1 is lost.
func TestInterleaving07LeaseOfTheHeadIsLost(t *testing.T) {
	for _, fifo := range []bool{true, false} {
		t.Run(fmt.Sprint("fifo ", fifo), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				q := memory.QueueOptions{FIFO: fifo, Shuffle: !fifo, Lease: 6 * time.Second, CountsOnReturn: true}
				r := newRig(t, &q)
				j := newJournal(9)
				var steps trail
				cancelled := make(chan struct{})
				var mu sync.Mutex
				received := map[string]int{}
				behind := slices.Repeat([]string{"A"}, 8)
				r.queue.SetFault(refuseExtension("1"))
				r.publish(1, "A")
				if fifo { // they come together: nothing of a group is handed out while some of it is held
					r.publish(2, behind...)
				}
				pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
					j.begin(d)
					first := d.ID == "1" && d.Count == 0
					defer j.end(d, !first)
					steps.add("start %s", d.ID)
					if !first {
						return nil
					}
					<-ctx.Done()
					close(cancelled)
					time.Sleep(30 * time.Second) // ignores it: long enough for A1 to come again
					steps.add("end 1")
					return nil
				}, actors.Options{Dispatch: actors.ByKey(2), Observer: actors.ObserverFunc(func(o actors.Observation) {
					switch o.Kind {
					case actors.ObserveReturned:
						steps.add("return")
					case actors.ObserveReceived:
						mu.Lock()
						defer mu.Unlock()
						received[o.Delivery.ID]++
					}
				})})
				if !fifo {
					synctest.Wait() // so that A1 is the first to run
					r.publish(2, behind...)
				}
				<-cancelled
				r.await(pid, j.done)
				r.drain(pid)
				r.left(0)
				got := steps.all()
				end := slices.Index(got, "end 1")
				if end != 1 {
					t.Errorf("before the handler of 1 returned: %q, want its start only", got[:end])
				}
				again, returns := 1, 0 // of those behind A1
				if fifo {
					j.check(t)
					again, returns = 2, 8
				}
				for id, n := range received {
					if want := map[bool]int{true: 2, false: again}[id == "1"]; n != want {
						t.Errorf("%s was received %d times, want %d", id, n, want)
					}
				}
				if n := steps.count("return"); n != returns {
					t.Errorf("%d went back, want %d: %q", n, returns, got)
				}
			})
		})
	}
}

// The clock passes every lease before anything could extend them: what is held
// doesn't start, and what ran isn't accepted.
func TestInterleaving08ClockPassesEveryLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, s := newRig(t, nil), newScript()
		s.traits.LeaseExpires = true // and no limits: nobody extends
		var runs trail
		pid := r.spawnOn(s, func(_ context.Context, d *transport.Delivery) error {
			runs.add("%s", d.ID)
			time.Sleep(2 * time.Second)
			return nil
		}, actors.Options{Dispatch: actors.ByKey(1)})
		synctest.Wait()
		rcv := s.last(t)
		rcv.deliverOn(func() *transport.Lease {
			l := transport.NewLease()
			l.Extend(time.Now().Add(time.Second))
			return l
		}, "1:A", "2:A", "3:B", "4:")
		time.Sleep(time.Minute)
		runs.want(t, "1")
		for _, o := range rcv.outcomes() {
			if len(o) > 6 && o[len(o)-6:] == "accept" {
				t.Errorf("settled on a lapsed lease: %q", o)
			}
		}
		if st := r.stats(pid); st.Succeeded != 0 || st.Held != 0 {
			t.Errorf("%d succeeded and %d held, want none", st.Succeeded, st.Held)
		}
		r.drain(pid)
	})
}

// Subscriptions are drained at any moment of a receive: whatever the broker
// handed out is handled or comes back, in order, and nothing runs twice.
func TestInterleaving10StopDuringAReceive(t *testing.T) {
	for name, q := range map[string]memory.QueueOptions{
		"amqp": {MaxReceive: 3},
		"fifo": {MaxReceive: 3, FIFO: true, Lease: 30 * time.Second, Poll: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				q.Fault = func(op memory.Op) memory.Reply {
					if op.Kind == memory.OpReceive { // so that a receive is under way at most times
						return memory.Reply{Delay: time.Duration(rand.IntN(3)) * time.Millisecond}
					}
					return memory.Reply{}
				}
				r := newRig(t, &q)
				const n = 600
				j := newJournal(n)
				var runs trail
				go func() {
					for i := range n {
						r.publish(i, fmt.Sprint("key-", i%7))
						time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
					}
				}()
				handler := func(_ context.Context, d *transport.Delivery) error {
					j.begin(d)
					defer j.end(d, true)
					runs.add("%s", d.ID)
					time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
					return nil
				}
				opts := actors.Options{Dispatch: actors.PerKey(4), Credit: 10}
				for range 100 {
					pid := r.spawn(handler, opts)
					time.Sleep(time.Duration(rand.IntN(8000)) * time.Microsecond)
					r.drain(pid)
					if s := r.queue.Stats(); s.InFlight != 0 || s.Receivers != 0 {
						t.Fatalf("after a drain %d are in flight at %d receivers", s.InFlight, s.Receivers)
					}
				}
				pid := r.spawn(handler, opts)
				r.await(pid, j.done)
				r.drain(pid)
				j.check(t)
				r.left(0)
				if got := len(runs.all()); got != n {
					t.Errorf("%d runs, want %d: none twice", got, n)
				}
			})
		})
	}
}

// The timer of a parked delivery fires after the delivery was unparked, lost,
// returned or dead-lettered: nothing happens.
func TestInterleaving12TimerOfWhatIsGone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		act  func(r *rig, pid *actorPID)
		runs int
	}{
		{"dead-lettered", func(r *rig, pid *actorPID) { r.sys.Root.Send(pid, &actors.Unpark{Key: "A"}) }, 2},
		{"unparked", func(r *rig, pid *actorPID) { r.sys.Root.Send(pid, &actors.Unpark{Key: "A"}) }, 2},
		{"skipped", func(r *rig, pid *actorPID) { r.sys.Root.Send(pid, &actors.Unpark{Key: "A", Skip: true}) }, 1},
		{"lost", func(r *rig, _ *actorPID) { r.queue.CutLinks() }, 2},
		{"returned", func(r *rig, pid *actorPID) { r.drain(pid) }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				var runs trail
				pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
					runs.add("%s", d.ID)
					switch {
					case transport.Attempt(ctx) == 1:
						return supervision.With(errBoom, supervision.Retry(10*time.Second))
					case c.name == "dead-lettered":
						return supervision.With(errBoom, supervision.DeadLetter("declined", ""))
					}
					return nil
				}, actors.Options{Dispatch: actors.ByKey(2)})
				r.publish(1, "A")
				time.Sleep(5 * time.Second)
				if st := r.stats(pid); st.Parked != 1 {
					t.Fatalf("%d parked, want 1", st.Parked)
				}
				c.act(r, pid)
				time.Sleep(time.Minute)
				if got := len(runs.all()); got != c.runs {
					t.Errorf("%d runs, want %d", got, c.runs)
				}
				if c.name == "returned" {
					r.left(1)
					return
				}
				if n, want := r.dead.Depth(), map[bool]int{true: 1, false: 0}[c.name == "dead-lettered"]; n != want {
					t.Errorf("%d dead letters, want %d", n, want)
				}
				if st := r.stats(pid); st.Held != 0 || st.Parked != 0 {
					t.Errorf("%d held and %d parked, want none", st.Held, st.Parked)
				}
				if err := actors.Drain(context.Background(), r.sys.Root, pid); err != nil && !errors.Is(err, actors.ErrNotRunning) {
					t.Error(err)
				}
				r.left(0)
			})
		})
	}
}
