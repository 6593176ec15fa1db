package actors_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/transport"
)

// Interleaving 6. The handler of A1 keeps its context through the drain, its
// accept leaves before anything is given back, and the other subscription gets
// A2 only after A1 ended.
func TestDrainWhileAHandlerRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		var steps trail
		running, release := make(chan struct{}), make(chan struct{})
		first := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
			steps.add("first starts %s", d.ID)
			close(running)
			<-release
			if err := ctx.Err(); err != nil {
				t.Errorf("the context ended during the drain: %v", context.Cause(ctx))
			}
			steps.add("first ends %s", d.ID)
			return nil
		}, actors.Options{Dispatch: actors.ByKey(4)})
		r.publish(1, "A", "A", "A")
		<-running
		drained := make(chan error, 1)
		go func() { drained <- actors.Drain(context.Background(), r.sys.Root, first) }()
		synctest.Wait()
		done := make(chan struct{})
		second := r.spawn(func(_ context.Context, d *transport.Delivery) error {
			steps.add("second starts %s", d.ID)
			if d.Count > 0 {
				t.Errorf("%v counts as handed out before", d)
			}
			if d.ID == "3" {
				close(done)
			}
			return nil
		}, actors.Options{Dispatch: actors.ByKey(4)})
		time.Sleep(5 * time.Second)
		steps.want(t, "first starts 1")
		close(release)
		if err := <-drained; err != nil {
			t.Errorf("drain: %v", err)
		}
		r.await(second, done)
		steps.want(t, "first starts 1", "first ends 1", "second starts 2", "second starts 3")
		r.drain(second)
		r.left(0)
	})
}

// A handler that outlasts StopTimeout is cancelled with ErrStopping; when it then
// returns, the drain is clean.
func TestDrainCancelsAtItsLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		running := make(chan struct{})
		cause := make(chan error, 1)
		pid := r.spawn(func(ctx context.Context, _ *transport.Delivery) error {
			close(running)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
		}, actors.Options{StopTimeout: 3 * time.Second})
		r.publish(1, "A", "A")
		<-running
		start := time.Now()
		r.drain(pid)
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("the drain took %v, want 3s", took)
		}
		if err := <-cause; !errors.Is(err, transport.ErrStopping) {
			t.Errorf("cause %v, want ErrStopping", err)
		}
		r.left(2)
	})
}

// A handler that ignores its context is named, and nothing else is left. The
// drain doesn't take longer than StopTimeout and the grace.
func TestDrainNamesAStuckHandler(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Second} {
		t.Run(fmt.Sprint("timeout ", timeout), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				running, release := make(chan struct{}), make(chan struct{})
				var once sync.Once
				pid := r.spawn(func(context.Context, *transport.Delivery) error {
					once.Do(func() { close(running) })
					<-release
					return nil
				}, actors.Options{StopTimeout: 3 * time.Second, HandlerTimeout: timeout, Dispatch: actors.ByKey(2)})
				r.publish(1, "A", "A")
				<-running
				start := time.Now()
				err := actors.Drain(context.Background(), r.sys.Root, pid)
				if took := time.Since(start); took > 8500*time.Millisecond {
					t.Errorf("the drain took %v, want at most StopTimeout and 5s", took)
				}
				if !errors.Is(err, actors.ErrHandlerStuck) {
					t.Errorf("drain: %v, want ErrHandlerStuck", err)
				}
				var stuck *actors.StuckError
				if !errors.As(err, &stuck) || len(stuck.Deliveries) != 1 || stuck.Deliveries[0].ID != "1" {
					t.Errorf("drain: %v, want it to name message 1", err)
				}
				r.left(2)
				close(release)
				synctest.Wait()
				r.left(2) // a late success is refused
			})
		})
	}
}

func TestHardStop(t *testing.T) {
	for name, handler := range map[string]transport.HandlerFunc{
		"returns its error": func(ctx context.Context, _ *transport.Delivery) error { <-ctx.Done(); return context.Cause(ctx) },
		"returns nil":       func(ctx context.Context, _ *transport.Delivery) error { <-ctx.Done(); return nil },
		"panics":            func(ctx context.Context, _ *transport.Delivery) error { <-ctx.Done(); panic("late") },
		"calls Goexit":      func(ctx context.Context, _ *transport.Delivery) error { <-ctx.Done(); runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				running := make(chan struct{}, 16)
				pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
					running <- struct{}{}
					err := handler(ctx, d)
					if cause := context.Cause(ctx); !errors.Is(cause, transport.ErrStopping) {
						t.Errorf("cause %v, want ErrStopping", cause)
					}
					return err
				}, actors.Options{Dispatch: actors.PerKey(4)})
				r.publish(1, "A", "A", "B", "B", "")
				for range 3 {
					<-running
				}
				start := time.Now()
				r.stop(pid)
				if took := time.Since(start); took != 0 {
					t.Errorf("the stop took %v, want none", took)
				}
				s := r.queue.Stats()
				if name == "returns nil" {
					r.left(2)
				} else if s.Ready != 5 || s.InFlight != 0 {
					t.Errorf("the queue has %d ready and %d in flight, want 5 and 0", s.Ready, s.InFlight)
				}
			})
		})
	}
}

// A hard stop leaves a handler that ignores its context behind after the grace,
// and says which.
func TestHardStopOfAStuckHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		ev := listen(r.sys)
		running, release := make(chan struct{}), make(chan struct{})
		pid := r.spawn(func(context.Context, *transport.Delivery) error {
			close(running)
			<-release
			return nil
		}, actors.Options{})
		r.publish(1, "A", "A")
		<-running
		start := time.Now()
		r.stop(pid)
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("the stop took %v, want 5s", took)
		}
		if es := ev.of(actors.EventStopped); len(es) != 1 || !errors.Is(es[0].Err, actors.ErrHandlerStuck) {
			t.Errorf("events %+v, want one that says what is stuck", es)
		}
		r.left(2)
		close(release)
	})
}

func TestStopManyTimesAtOnce(t *testing.T) {
	for _, how := range []string{"stop", "poison", "drain", "all"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				running := make(chan struct{}, 1)
				pid := r.spawn(func(ctx context.Context, _ *transport.Delivery) error {
					select {
					case running <- struct{}{}:
					default:
					}
					select {
					case <-time.After(time.Second):
					case <-ctx.Done():
					}
					return ctx.Err()
				}, actors.Options{})
				r.publish(1, "A", "A", "A")
				<-running
				var all sync.WaitGroup
				for i := range 100 {
					all.Go(func() {
						what := how
						if how == "all" {
							what = []string{"stop", "poison", "drain"}[i%3]
						}
						switch what {
						case "stop":
							r.sys.Root.Stop(pid)
						case "poison":
							r.sys.Root.Poison(pid)
						case "drain":
							if err := actors.Drain(context.Background(), r.sys.Root, pid); err != nil && !errors.Is(err, actors.ErrNotRunning) {
								t.Errorf("drain: %v", err)
							}
						}
					})
				}
				all.Wait()
				_ = r.sys.Root.StopFuture(pid).Wait() // a second stop of the stopped
				if err := actors.Drain(context.Background(), r.sys.Root, pid); !errors.Is(err, actors.ErrNotRunning) {
					t.Errorf("a drain of the stopped: %v, want ErrNotRunning", err)
				}
				if s := r.queue.Stats(); s.InFlight != 0 || s.Receivers != 0 || s.Ready < 2 {
					t.Errorf("left: %+v", s)
				}
			})
		})
	}
}

// A stop that comes before the start, or in the middle of the first Open, leaves
// nothing, and whoever waits for the start hears of it.
func TestStopBeforeTheStart(t *testing.T) {
	for _, how := range []string{"stop", "poison", "drain"} {
		for _, when := range []string{"at once", "while it opens", "while it waits to open again"} {
			t.Run(how+" "+when, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r := newRig(t, nil)
					src := newScript()
					opening := make(chan struct{}, 8)
					src.open = func(int) error {
						opening <- struct{}{}
						switch when {
						case "while it opens":
							time.Sleep(3 * time.Second)
						case "while it waits to open again":
							return errBoom
						}
						return nil
					}
					pid := r.spawnOn(src, func(context.Context, *transport.Delivery) error { return nil }, actors.Options{})
					started := make(chan error, 1)
					if when != "at once" {
						<-opening
						go func() { started <- actors.AwaitStarted(context.Background(), r.sys.Root, pid) }()
						synctest.Wait()
					}
					switch how {
					case "stop":
						r.stop(pid)
					case "poison":
						if err := r.sys.Root.PoisonFuture(pid).Wait(); err != nil {
							t.Errorf("poison: %v", err)
						}
					case "drain":
						r.drain(pid)
					}
					if when != "at once" {
						if err := <-started; !errors.Is(err, actors.ErrNotRunning) {
							t.Errorf("AwaitStarted: %v, want ErrNotRunning", err)
						}
					}
				})
			})
		}
	}
}

// Props are a template: several subscriptions of one, at once and one after the
// other, each with its own epochs.
func TestStartStopStartFromTheSameProps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		got := make(chan string, 64)
		props := r.props(r.queue.Source(), func(_ context.Context, d *transport.Delivery) error {
			got <- d.ID
			return nil
		}, actors.Options{Dispatch: actors.ByKey(2)})
		for i := range 3 {
			pid := r.sys.Root.Spawn(props)
			other := r.sys.Root.Spawn(props)
			for _, p := range []*actorPID{pid, other} {
				if err := actors.AwaitStarted(context.Background(), r.sys.Root, p); err != nil {
					t.Fatal(err)
				}
			}
			r.publish(i*2, "A", "B")
			<-got
			<-got
			synctest.Wait()
			if n := r.queue.InFlight(); n != 0 {
				t.Errorf("round %d: %d in flight, want none", i, n)
			}
			if st := r.stats(pid); st.Epoch != 1 {
				t.Errorf("round %d: epoch %d, want 1", i, st.Epoch)
			}
			if i%2 == 0 {
				r.drain(pid)
				r.stop(other)
			} else {
				r.stop(pid)
				r.drain(other)
			}
			r.left(0)
		}
	})
}
