package actors_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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

// The attempts of a message are counted on while its lane restarts, for it
// panics, and its epoch ends: after each failure the link is lost.
func TestFiveAttemptsAcrossEpochs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, &memory.QueueOptions{CountsOnLoss: true})
		ev := listen(r.sys)
		failed := make(chan int, 10)
		pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
			if d.Key != "poison" {
				return nil
			}
			n := transport.Attempt(ctx)
			failed <- n
			if n%2 == 0 {
				panic("poison")
			}
			return errBoom
		}, actors.Options{Dispatch: actors.ByKey(2), Policy: fast()})
		r.publish(1, "poison", "poison-not")
		for want := 1; want <= 5; want++ {
			if got := <-failed; got != want {
				t.Errorf("attempt %d, want %d", got, want)
			}
			r.publish(10*want, "healthy") // the evidence
			synctest.Wait()
			if want < 5 {
				r.queue.CutLinks()
			}
		}
		time.Sleep(time.Minute)
		if n := len(failed); n != 0 {
			t.Errorf("%d attempts after the fifth", n)
		}
		ev.want(t, 1, actors.EventDeadLettered)
		if es := ev.of(actors.EventAttached); len(es) != 5 {
			t.Errorf("%d epochs, want 5", len(es))
		}
		if n := r.dead.Depth(); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
		r.drain(pid)
		r.left(0)
	})
}

// Nine lost links and one real error aren't ten failures.
func TestLostLinksAreNoFailures(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, &memory.QueueOptions{CountsOnLoss: true})
		running, done := make(chan int), make(chan struct{})
		n := 0
		pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
			if d.Key == "healthy" {
				return nil
			}
			n++
			if n <= 9 {
				running <- transport.Attempt(ctx)
				<-ctx.Done()
				return context.Cause(ctx)
			}
			if n == 10 {
				return errBoom
			}
			if got := transport.Attempt(ctx); got != 2 {
				t.Errorf("attempt %d after one real error, want 2", got)
			}
			close(done)
			return nil
		}, actors.Options{Policy: fast(), Dispatch: actors.ByKey(2)})
		r.publish(1, "A")
		for range 9 {
			if got := <-running; got != 1 {
				t.Errorf("attempt %d after nothing but lost links, want 1", got)
			}
			r.publish(2, "healthy")
			synctest.Wait()
			r.queue.CutLinks()
		}
		r.await(pid, done)
		r.drain(pid)
		r.left(0)
		if n := r.dead.Depth(); n != 0 {
			t.Errorf("%d dead letters, want none", n)
		}
	})
}

// The copy of a dead letter is confirmed and its accept is lost: the message
// comes again, and is accepted without another run and another copy.
func TestLostAcceptMakesNoSecondCopy(t *testing.T) {
	for _, how := range []memory.Reply{{Err: errors.New("refused")}, {CutLink: true, Err: errors.New("refused")}} {
		t.Run(fmt.Sprint("cut ", how.CutLink), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, &memory.QueueOptions{Fault: func(op memory.Op) memory.Reply {
					if op.Kind == memory.OpSettle && op.Epoch == 1 && op.Delivery.ID == "1" {
						return how
					}
					return memory.Reply{}
				}})
				var runs trail
				done := make(chan struct{})
				pid := r.spawn(func(_ context.Context, d *transport.Delivery) error {
					runs.add("%s", d.ID)
					if d.ID == "1" {
						return errBoom
					}
					close(done)
					return nil
				}, actors.Options{Policy: supervision.Always(supervision.DeadLetter("poison", ""))})
				r.publish(1, "A")
				synctest.Wait()
				r.queue.CutLinks() // what was refused comes again only in the next epoch
				r.publish(2, "A")
				r.await(pid, done)
				r.drain(pid)
				r.left(0)
				runs.want(t, "1", "2")
				if n := r.dead.Depth(); n != 1 {
					t.Errorf("%d dead letters, want 1", n)
				}
			})
		})
	}
}

// For a minute nothing attaches: it is tried at growing distances, everybody can
// see why, and then everything flows.
func TestReattachBacksOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		ev := listen(r.sys)
		j := newJournal(3)
		pid := r.spawn(func(_ context.Context, d *transport.Delivery) error {
			j.begin(d)
			j.end(d, true)
			return nil
		}, actors.Options{})
		r.publish(1, "A")
		synctest.Wait()
		down := time.Now()
		var opens trail
		r.queue.SetFault(func(op memory.Op) memory.Reply {
			if op.Kind == memory.OpOpen && time.Since(down) < time.Minute {
				opens.add("open")
				return memory.Reply{Err: &transport.TemporaryError{Op: "open", Err: errors.New("no route")}}
			}
			return memory.Reply{}
		})
		r.queue.CutLinks()
		r.publish(2, "A", "A")
		time.Sleep(30 * time.Second)
		st := r.stats(pid)
		if st.State != actors.StateDetached || st.NotReady == nil {
			t.Errorf("state %v, not ready because of %v; want detached and a reason", st.State, st.NotReady)
		}
		var temporary *transport.TemporaryError
		if !errors.As(st.NotReady, &temporary) {
			t.Errorf("not ready because of %v, want the error of the open", st.NotReady)
		}
		r.await(pid, j.done)
		if took := time.Since(down); took > 90*time.Second+time.Second {
			t.Errorf("it flows after %v, want at most the longest wait after the minute", took)
		}
		failed := ev.of(actors.EventAttachFailed)
		if n := len(failed); n < 5 {
			t.Errorf("%d failed opens in a minute", n)
		}
		backedOff(t, opens.when(), failed, 0)
		if err := actors.Ready(context.Background(), r.sys.Root, pid); err != nil {
			t.Errorf("not ready after it flows: %v", err)
		}
		r.drain(pid)
		r.left(0)
	})
}

// Two hundred reattaches leave neither goroutines nor memory behind. Not
// parallel: it counts what the process has.
func TestReattachesLeaveNothing(t *testing.T) { //nolint:paralleltest // counts goroutines
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &memory.QueueOptions{FIFO: true, Lease: 30 * time.Second})
		var mu sync.Mutex
		seen := map[string]int{}
		pid := r.spawn(func(_ context.Context, d *transport.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			seen[d.ID]++
			return nil
		}, actors.Options{Dispatch: actors.PerKey(4)})
		var goroutines []int
		var heap []uint64
		for i := range 200 {
			r.publish(10*i, "A", "B", "C", "", "A")
			time.Sleep(time.Second)
			r.queue.CutLinks()
			time.Sleep(time.Second)
			if i%50 == 49 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				goroutines, heap = append(goroutines, runtime.NumGoroutine()), append(heap, m.HeapAlloc)
			}
		}
		if slices.Max(goroutines) > goroutines[0]+2 {
			t.Errorf("goroutines after 50, 100, 150 and 200 reattaches: %v", goroutines)
		}
		if heap[3] > heap[0]+1<<20 {
			t.Errorf("heap after 50, 100, 150 and 200 reattaches: %v", heap)
		}
		if st := r.stats(pid); st.Epoch != 201 {
			t.Errorf("epoch %d, want 201", st.Epoch)
		}
		r.drain(pid)
		if len(seen) != 1000 {
			t.Errorf("%d messages were handled, want 1000", len(seen))
		}
	})
}
