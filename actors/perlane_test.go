package actors_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// spawnPerLane starts a subscription with a handler for each lane or key.
func (r *rig) spawnPerLane(f func(actors.Lane) transport.Handler, o actors.Options) *actor.PID {
	r.t.Helper()
	o.Logger, o.DeadLetter = quiet(), r.dead.Publisher()
	props, err := actors.PerLane(r.queue.Source(), f, &o)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.sys.Root.Spawn(props)
}

// Each lane has a handler of its own, and a fresh one after a panic, after which
// the delivery that panicked is still the first of its key.
func TestPerLaneStateIsFreshAfterARestart(t *testing.T) {
	for _, d := range everyMode {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, j := newRig(t, nil), newJournal(40)
				var mu sync.Mutex
				made := map[actors.Lane]int{}
				var panicked atomic.Bool
				wrapped := atomic.Int64{}
				pid := r.spawnPerLane(func(l actors.Lane) transport.Handler {
					mu.Lock()
					made[l]++
					mu.Unlock()
					seen := 0 // no lock: the lane's own, or the key's
					return transport.HandlerFunc(func(_ context.Context, m *transport.Delivery) error {
						if l.Key != "" && l.Key != m.Key {
							t.Errorf("the handler of %v gets %v", l, m)
						}
						if d != actors.Workers(4) {
							j.begin(m)
						}
						if seen++; m.ID == "20" && panicked.CompareAndSwap(false, true) {
							j.end(m, false)
							panic("this one")
						}
						if m.ID == "20" && seen != 1 && d == actors.PerKey(4) { // else other keys use it too
							t.Errorf("the state of %v isn't fresh after the panic: %d seen", l, seen)
						}
						j.end(m, true)
						return nil
					})
				}, actors.Options{Dispatch: d, Policy: fast(), Middleware: []transport.Middleware{func(h transport.Handler) transport.Handler {
					return transport.HandlerFunc(func(ctx context.Context, m *transport.Delivery) error {
						wrapped.Add(1)
						return h.Handle(ctx, m)
					})
				}}})
				r.publish(0, inTurn(40, 8)...)
				r.await(pid, j.done)
				r.drain(pid)
				if d != actors.Workers(4) {
					j.check(t)
				}
				r.left(0)
				if wrapped.Load() != 41 {
					t.Errorf("the middleware saw %d attempts, want 41", wrapped.Load())
				}
				total, want := 0, d.Lanes()+1
				for _, n := range made {
					total += n
				}
				if d == actors.PerKey(4) {
					want = 8 + 1
				}
				if total != want {
					t.Errorf("%d handlers were made, want %d: %v", total, want, made)
				}
			})
		})
	}
}

// Under PerKey a key's state lives as long as the key is in use: it is dropped
// IdleAfter after its last delivery, and a parked key keeps it.
func TestPerKeyStateIsPassivated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		var mu sync.Mutex
		var made []string
		seen := make(chan int, 10)
		var fails atomic.Bool
		pid := r.spawnPerLane(func(l actors.Lane) transport.Handler {
			mu.Lock()
			made = append(made, l.String())
			mu.Unlock()
			n := 0
			return transport.HandlerFunc(func(context.Context, *transport.Delivery) error {
				n++
				seen <- n
				if fails.Load() {
					return errBoom
				}
				return nil
			})
		}, actors.Options{Dispatch: actors.PerKey(2), IdleAfter: time.Minute, Policy: retryEvery(10 * time.Minute)})
		next := func(key string, want int) {
			t.Helper()
			r.publish(0, key)
			if got := <-seen; got != want {
				t.Errorf("the handler of %s has seen %d, want %d", key, got, want)
			}
		}
		next("A", 1)
		time.Sleep(59 * time.Second)
		next("A", 2) // used again before its time
		time.Sleep(59 * time.Second)
		next("A", 3)
		time.Sleep(61 * time.Second)
		next("A", 1)
		fails.Store(true)
		next("B", 1)
		fails.Store(false)
		if got := <-seen; got != 2 { // ten minutes later, parked in between
			t.Errorf("the parked key's handler has seen %d, want 2", got)
		}
		next("", 1) // what has no key has the lane's
		r.drain(pid)
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"key A", "key A", "key B", "lane 1"}; !slices.Equal(made[:3], want[:3]) || len(made) != 4 {
			t.Errorf("made %v, want %v", made, want)
		}
	})
}

// A hundred thousand keys come and go, with few kept: no key is stranded, and
// nothing is left of them. TestKeyActorsChurn is the same with actors.
func TestPerKeyChurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 100_000
		r := newRig(t, nil)
		var live atomic.Int64
		c := newCountdown(n)
		pid := r.spawnPerLane(func(actors.Lane) transport.Handler {
			live.Add(1)
			return c
		}, actors.Options{Dispatch: actors.PerKey(4), IdleAfter: time.Millisecond, MaxLanes: 256})
		keys := make([]string, 1000)
		for i := range n / len(keys) {
			for k := range keys {
				keys[k] = strconv.Itoa(i*len(keys) + k)
			}
			r.publish(0, keys...)
		}
		r.await(pid, c.done)
		time.Sleep(time.Second)
		if st := r.stats(pid); st.KeyLanes != 0 || st.Keys != 0 {
			t.Errorf("%d key lanes and %d keys are left", st.KeyLanes, st.Keys)
		}
		r.drain(pid)
		r.left(0)
		if live.Load() != n {
			t.Errorf("%d handlers were made for %d keys", live.Load(), n)
		}
	})
}

// MaxLanes bounds how many keys have a handler: the one that is idle for longest
// goes, and one that is in use never does.
func TestMaxLanes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		release := make(chan struct{})
		made := make(chan string, 100)
		done := make(chan string, 100)
		pid := r.spawnPerLane(func(l actors.Lane) transport.Handler {
			made <- l.Key
			return transport.HandlerFunc(func(context.Context, *transport.Delivery) error {
				if l.Key == "busy" {
					<-release
				}
				done <- l.Key
				return nil
			})
		}, actors.Options{Dispatch: actors.PerKey(4), Credit: 3, MaxLanes: 3})
		r.publish(0, "busy")
		if k := <-made; k != "busy" {
			t.Fatal(k)
		}
		for _, k := range []string{"A", "B", "C", "D", "C", "A"} {
			r.publish(0, k)
			if got := <-done; got != k {
				t.Fatalf("%s, want %s", got, k)
			}
			if st := r.stats(pid); st.KeyLanes > 3 {
				t.Errorf("%d key lanes, want at most 3", st.KeyLanes)
			}
		}
		close(release)
		<-done
		r.publish(0, "busy")
		<-done
		r.drain(pid)
		close(made)
		var names []string
		for k := range made {
			names = append(names, k)
		}
		if want := []string{"A", "B", "C", "D", "A"}; !slices.Equal(names, want) {
			t.Errorf("made %v, want %v: C was still there, A wasn't, and busy never went", names, want)
		}
	})
}

// A factory that panics, or gives nothing: for a lane the subscription fails, for
// a key its delivery's attempt does.
func TestPerLaneFactoryFails(t *testing.T) {
	for name, f := range map[string]func() transport.Handler{
		"panics":               func() transport.Handler { panic("no state today") },
		"gives nothing":        func() transport.Handler { return nil },
		"gives a nil function": func() transport.Handler { return transport.HandlerFunc(nil) },
		"exits":                func() transport.Handler { runtime.Goexit(); return nil },
	} {
		t.Run(name+"/lane", func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			props, err := actors.PerLane(r.queue.Source(), func(actors.Lane) transport.Handler { return f() }, &actors.Options{Dispatch: actors.ByKey(2), Logger: quiet(), DeadLetter: r.dead.Publisher()})
			if err != nil {
				t.Fatal(err)
			}
			var ce *actors.CrashError
			if err := actors.RunProps(context.Background(), props); !errors.As(err, &ce) {
				t.Errorf("it ended with %v, want a *CrashError", err)
			}
		})
		t.Run(name+"/key", func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, j := newRig(t, nil), newJournal(2)
				var tries atomic.Int64
				pid := r.spawnPerLane(func(l actors.Lane) transport.Handler {
					if l.Key == "B" && tries.Add(1) < 3 {
						return f()
					}
					return transport.HandlerFunc(func(_ context.Context, m *transport.Delivery) error {
						j.begin(m)
						j.end(m, true)
						return nil
					})
				}, actors.Options{Dispatch: actors.PerKey(2), Policy: fast()})
				r.publish(1, "A", "B")
				r.await(pid, j.done)
				r.drain(pid)
				r.left(0)
				if tries.Load() != 3 {
					t.Errorf("%d tries for B, want 3", tries.Load())
				}
			})
		})
	}
}

// A policy that restarts the lane renews the key's state under PerKey.
func TestRestartDirectiveRenewsTheKeysState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, j := newRig(t, nil), newJournal(3)
		seen := make(chan int, 10)
		pid := r.spawnPerLane(func(actors.Lane) transport.Handler {
			n := 0
			return transport.HandlerFunc(func(_ context.Context, m *transport.Delivery) error {
				n++
				seen <- n
				j.begin(m)
				ok := m.ID != "2" || n != 2
				j.end(m, ok)
				if !ok {
					return errBoom
				}
				return nil
			})
		}, actors.Options{Dispatch: actors.PerKey(2), Policy: supervision.PolicyFunc(func(supervision.Failure) supervision.Directive {
			d := supervision.Retry(time.Millisecond)
			d.RestartLane = true
			return d
		})})
		r.publish(1, "A", "A", "A")
		r.await(pid, j.done)
		r.drain(pid)
		j.check(t)
		close(seen)
		var got []int
		for n := range seen {
			got = append(got, n)
		}
		if want := []int{1, 2, 1, 2}; !slices.Equal(got, want) {
			t.Errorf("the handlers had seen %v, want %v", got, want)
		}
	})
}
