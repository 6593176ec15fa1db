package actors_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// spawnLaneActor starts a subscription with an actor for each lane or key.
func (r *rig) spawnLaneActor(receive actor.ReceiveFunc, o actors.Options) *actor.PID {
	return r.spawnLaneActors(func() actor.Actor { return receive }, o)
}

func (r *rig) spawnLaneActors(producer func() actor.Actor, o actors.Options) *actor.PID {
	r.t.Helper()
	o.Logger, o.DeadLetter = quiet(), r.dead.Publisher()
	props, err := actors.LaneActor(r.queue.Source(), actor.PropsFromProducer(producer), &o)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.sys.Root.Spawn(props)
}

// counter is a user's actor: it counts what it has seen in its life.
type counter struct {
	seen  int
	reply func(c *counter, ctx actor.Context, w *actors.Work)
}

func (c *counter) Receive(ctx actor.Context) {
	if w, ok := ctx.Message().(*actors.Work); ok {
		c.seen++
		c.reply(c, ctx, w)
	}
}

// Each lane, or key, has an actor; what it responds settles; when it panics at
// work the attempt fails at once, and the next one meets a fresh actor.
func TestLaneActors(t *testing.T) {
	for _, d := range everyMode {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, j := newRig(t, nil), newJournal(40)
				var live, panicked, failed atomic.Int64
				pid := r.spawnLaneActors(func() actor.Actor {
					live.Add(1)
					return &counter{reply: func(c *counter, ctx actor.Context, w *actors.Work) {
						m := w.Delivery
						if d != actors.Workers(4) {
							j.begin(m)
						}
						switch {
						case m.ID == "20" && panicked.Add(1) == 1:
							j.end(m, false)
							panic("this one")
						case m.ID == "30" && failed.Add(1) == 1:
							j.end(m, false)
							ctx.Respond(errBoom)
							return
						case m.ID == "20" && w.Attempt != 2:
							t.Errorf("attempt %d after a panic", w.Attempt)
						}
						j.end(m, true)
						ctx.Respond(actors.Accepted{})
					}}
				}, actors.Options{Dispatch: d, Policy: fast()})
				r.publish(0, inTurn(40, 8)...)
				r.await(pid, j.done)
				r.drain(pid)
				if d != actors.Workers(4) {
					j.check(t)
				}
				r.left(0)
				want := d.Lanes() + 1
				if d == actors.PerKey(4) {
					want += 8 + 1 // the lanes have their own beside, for what has no key
				}
				if int(live.Load()) != want {
					t.Errorf("%d actors lived, want %d", live.Load(), want)
				}
			})
		})
	}
}

// An actor that panics without a delivery in its hands is restarted, and no
// attempt fails for it.
func TestLaneActorPanicsAtRest(t *testing.T) {
	for _, d := range []actors.Dispatch{actors.ByKey(1), actors.PerKey(1)} {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, j := newRig(t, nil), newJournal(2)
				var self atomic.Pointer[actor.PID]
				restarted := make(chan struct{})
				var life atomic.Int64
				pid := r.spawnLaneActors(func() actor.Actor {
					return actor.ReceiveFunc(func(ctx actor.Context) {
						switch m := ctx.Message().(type) {
						case *actor.Started:
							if life.Add(1) == 2+int64(d.Lanes())-1 && d == actors.ByKey(1) || ctx.Message() == nil {
								close(restarted)
							}
						case *actor.Restarting:
							if d == actors.PerKey(1) {
								close(restarted)
							}
						case string:
							panic(m)
						case *actors.Work:
							self.Store(ctx.Self())
							j.begin(m.Delivery)
							j.end(m.Delivery, true)
							ctx.Respond(actors.Accepted{})
						}
					})
				}, actors.Options{Dispatch: d, Policy: fast()})
				r.publish(1, "A")
				for self.Load() == nil {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(time.Millisecond)
				r.sys.Root.Send(self.Load(), "of its own accord")
				<-restarted
				r.publish(2, "A")
				r.await(pid, j.done)
				st := r.stats(pid)
				r.drain(pid)
				if st.Failed != 0 || st.LaneRestarts != 0 {
					t.Errorf("%d attempts failed, %d lanes restarted", st.Failed, st.LaneRestarts)
				}
			})
		})
	}
}

// An actor that stops itself is replaced: the next delivery meets a fresh one.
func TestLaneActorStopsItself(t *testing.T) {
	for _, d := range []actors.Dispatch{actors.ByKey(1), actors.PerKey(1)} {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, j := newRig(t, nil), newJournal(3)
				pid := r.spawnLaneActors(func() actor.Actor {
					return &counter{reply: func(c *counter, ctx actor.Context, w *actors.Work) {
						if c.seen != 1 {
							t.Errorf("an actor that stopped has seen %d", c.seen)
						}
						j.begin(w.Delivery)
						j.end(w.Delivery, true)
						ctx.Respond(actors.Accepted{})
						ctx.Stop(ctx.Self())
					}}
				}, actors.Options{Dispatch: d, Policy: fast()})
				for i := range 3 {
					r.publish(i, "A")
					time.Sleep(time.Second)
				}
				r.await(pid, j.done)
				st := r.stats(pid)
				r.drain(pid)
				j.check(t)
				if st.Failed != 0 {
					t.Errorf("%d attempts failed", st.Failed)
				}
			})
		})
	}
}

// An actor that doesn't respond is waited for until the timeout; what it responds
// to the first attempt later isn't taken for the second.
func TestLaneActorRespondsLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		var late atomic.Pointer[actor.PID]
		var errs []error
		done := make(chan struct{})
		pid := r.spawnLaneActor(func(ctx actor.Context) {
			w, ok := ctx.Message().(*actors.Work)
			if !ok {
				return
			}
			if w.Attempt == 1 {
				late.Store(ctx.Sender()) // and nothing else
				return
			}
			ctx.Send(late.Load(), actors.Accepted{})
			if w.Attempt == 2 {
				ctx.Respond(errBoom)
				return
			}
			close(done)
			ctx.Respond(actors.Accepted{})
		}, actors.Options{Dispatch: actors.PerKey(1), HandlerTimeout: time.Second, Policy: supervision.PolicyFunc(func(f supervision.Failure) supervision.Directive {
			errs = append(errs, f.Err)
			return supervision.Retry(time.Millisecond)
		})})
		r.publish(1, "A")
		r.await(pid, done)
		r.drain(pid)
		r.left(0)
		if len(errs) != 2 || !errors.Is(errs[0], transport.ErrHandlerTimeout) || !errors.Is(errs[1], errBoom) {
			t.Errorf("the attempts failed with %v, want a timeout and boom", errs)
		}
	})
}

// Thousands of keys, each with an actor: none is stranded, and goroutines,
// actors and heap are flat afterwards. Passivation races the keys that come back:
// each message of a key is in order, and an actor's end never hits its successor.
func TestKeyActorsChurn(t *testing.T) { churn(t, 5_000) }

// The same with a hundred thousand keys, without the race detector.
func TestAllocOfAHundredThousandKeyActors(t *testing.T) { churn(t, 100_000) }

func churn(t *testing.T, keys int) {
	bubble(t, func(t *testing.T) {
		const each = 2
		r := newRig(t, nil)
		var live atomic.Int64
		var mu sync.Mutex
		last := map[string]int{}
		c := newCountdown(keys * each)
		pid := r.spawnLaneActors(func() actor.Actor {
			return actor.ReceiveFunc(func(ctx actor.Context) {
				switch m := ctx.Message().(type) {
				case *actor.Started:
					live.Add(1)
				case *actor.Stopped:
					live.Add(-1)
				case *actors.Work:
					n, _ := strconv.Atoi(m.Delivery.ID)
					mu.Lock()
					if n <= last[m.Delivery.Key] {
						t.Errorf("%s after %d", m.Delivery.ID, last[m.Delivery.Key])
					}
					last[m.Delivery.Key] = n
					mu.Unlock()
					ctx.Respond(c.Handle(context.Background(), m.Delivery) == nil)
				}
			})
		}, actors.Options{Dispatch: actors.PerKey(4), IdleAfter: time.Millisecond, MaxLanes: 300})
		if err := actors.AwaitStarted(context.Background(), r.sys.Root, pid); err != nil {
			t.Fatal(err)
		}
		r.stats(pid) // the router has its lanes
		synctest.Wait()
		before := actorsIn(r.sys)
		var heap [2]runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&heap[0])
		names := make([]string, 1000)
		for i := range keys * each / len(names) {
			for k := range names { // each key comes back when others have come between
				names[k] = strconv.Itoa((i/each*len(names) + k))
			}
			r.publish(1+i*len(names), names...)
			if i%10 == 9 {
				time.Sleep(time.Millisecond) // some are idle for long enough now
			}
		}
		r.await(pid, c.done)
		time.Sleep(time.Second)
		if st := r.stats(pid); st.KeyLanes != 0 || st.Keys != 0 {
			t.Errorf("%d key lanes and %d keys are left", st.KeyLanes, st.Keys)
		}
		if n := live.Load(); n != 4 { // the lanes' own
			t.Errorf("%d actors are left, want 4", n)
		}
		if after := actorsIn(r.sys); after > before+10 {
			t.Errorf("%d processes, %d before", after, before)
		}
		clear(last)
		runtime.GC()
		runtime.ReadMemStats(&heap[1])
		if grown := int64(heap[1].HeapAlloc) - int64(heap[0].HeapAlloc); keys > 50_000 && grown > 16<<20 { // 1.5 KB each would be 150 MB
			t.Errorf("the heap has grown by %d bytes", grown)
		}
		r.drain(pid)
		r.left(0)
		if n := live.Load(); n != 0 {
			t.Errorf("%d actors are left after the drain", n)
		}
	})
}

func actorsIn(sys *actor.ActorSystem) int {
	n := 0
	for _, m := range sys.ProcessRegistry.LocalPIDs.LocalPIDs {
		n += m.Count()
	}
	return n
}

// An idle actor of a key costs at most 1 KB, its address and our part included.
func TestAllocOfAnIdleKeyActor(t *testing.T) {
	const n = 100_000
	r := newRig(t, nil)
	c := newCountdown(n)
	pid := r.spawnLaneActor(func(ctx actor.Context) {
		if w, ok := ctx.Message().(*actors.Work); ok {
			ctx.Respond(c.Handle(context.Background(), w.Delivery) == nil)
		}
	}, actors.Options{Dispatch: actors.PerKey(4), IdleAfter: time.Hour, MaxLanes: n})
	if err := actors.AwaitStarted(context.Background(), r.sys.Root, pid); err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := heap()
	for i := range n / 100 {
		names := make([]string, 100)
		for k := range names {
			names[k] = strconv.Itoa(i*100 + k)
		}
		r.publish(i*100, names...)
	}
	<-c.done
	for { // until the last is settled
		if s := r.queue.Stats(); s.Ready+s.InFlight == 0 {
			break
		}
		runtime.Gosched()
	}
	per := int64(heap()-before) / n
	t.Logf("%d bytes for each idle actor of a key", per)
	if per > 1024 {
		t.Errorf("an idle actor costs %d bytes, want at most 1024", per)
	}
	r.drain(pid)
}

// Interleaving 11: a key's actor is passivated and takes its time to stop; the key
// comes back and gets a new actor; then the old one's Terminated arrives. The new
// one stays: it sees the key's next delivery too.
func TestInterleaving11OldTerminatedNeverEvictsANewActor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		var lives atomic.Int64
		stopping, release := make(chan struct{}), make(chan struct{})
		saw := make(chan string, 10)
		pid := r.spawnLaneActors(func() actor.Actor {
			life, seen := int64(0), 0
			return actor.ReceiveFunc(func(ctx actor.Context) {
				switch m := ctx.Message().(type) {
				case *actor.Stopping:
					if life == 1 {
						close(stopping)
						<-release
					}
				case *actors.Work:
					if life == 0 {
						life = lives.Add(1)
					}
					seen++
					saw <- fmt.Sprintf("%s: life %d, number %d", m.Delivery.Key, life, seen)
					ctx.Respond(actors.Accepted{})
				}
			})
		}, actors.Options{Dispatch: actors.PerKey(2), IdleAfter: time.Second})
		want := func(what string) {
			t.Helper()
			r.publish(0, "A")
			if got := <-saw; got != what {
				t.Errorf("%s, want %s", got, what)
			}
		}
		want("A: life 1, number 1")
		<-stopping // a second later
		want("A: life 2, number 1")
		close(release)
		time.Sleep(time.Millisecond) // the old one's Terminated has arrived
		want("A: life 2, number 2")
		if st := r.stats(pid); st.KeyLanes != 1 {
			t.Errorf("%d key lanes, want 1", st.KeyLanes)
		}
		r.drain(pid)
		r.left(0)
	})
}
