package actors_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

var everyMode = []actors.Dispatch{actors.Sequential(), actors.Workers(4), actors.ByKey(4), actors.PerKey(4)}

// spawnBatch starts a subscription of batches.
func (r *rig) spawnBatch(h transport.BatchHandlerFunc, o actors.Options) *actor.PID {
	r.t.Helper()
	o.Logger, o.DeadLetter = quiet(), r.dead.Publisher()
	props, err := actors.BatchSubscription(r.queue.Source(), h, &o)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.sys.Root.Spawn(props)
}

// batches records what each call was given.
type batches struct{ trail }

func (b *batches) add(ds []*transport.Delivery) {
	ids := make([]string, len(ds))
	for i, d := range ds {
		ids[i] = d.ID
	}
	b.trail.add("%s", strings.Join(ids, " "))
}

// all gives the ids of each batch.
func (b *batches) all() (calls [][]string) {
	for _, ids := range b.trail.all() {
		calls = append(calls, strings.Fields(ids))
	}
	return calls
}

// Everything arrives once and in order, in batches that are full while there is
// enough.
func TestBatchesInEveryMode(t *testing.T) {
	for _, d := range everyMode {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const n, size = 1000, 16
				r, j, b := newRig(t, nil), newJournal(n), &batches{}
				keys := make([]string, n)
				for i := range keys {
					if keys[i] = fmt.Sprint("k", i%37); i%5 == 0 && d != actors.Sequential() {
						keys[i] = ""
					}
				}
				r.publish(0, keys...)
				pid := r.spawnBatch(func(_ context.Context, ds []*transport.Delivery) error {
					b.add(ds)
					time.Sleep(time.Millisecond)
					for _, m := range ds {
						j.begin(m)
						j.end(m, true)
					}
					return nil
				}, actors.Options{Dispatch: d, Batch: size})
				r.await(pid, j.done)
				r.drain(pid)
				if d == actors.Workers(4) { // no order, and keys may overlap
					r.left(0)
				} else {
					j.check(t)
					r.left(0)
				}
				full := 0
				for _, c := range b.all() {
					if len(c) > size {
						t.Fatalf("a batch of %d", len(c))
					}
					if len(c) == size {
						full++
					}
				}
				if calls := len(b.all()); full < calls*9/10 {
					t.Errorf("%d of %d batches were full", full, calls)
				}
			})
		})
	}
}

// A batch that isn't full is closed BatchWait after its first delivery came, in
// every mode; a full one at once.
func TestBatchWait(t *testing.T) {
	for _, d := range everyMode {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, b := newRig(t, nil), &batches{}
				got := make(chan struct{}, 10)
				pid := r.spawnBatch(func(_ context.Context, ds []*transport.Delivery) error {
					b.add(ds)
					got <- struct{}{}
					return nil
				}, actors.Options{Dispatch: d, Batch: 3, BatchWait: 50 * time.Millisecond})
				begun := time.Now()
				r.publish(1, "A")
				time.Sleep(20 * time.Millisecond)
				r.publish(2, "A")
				r.await(pid, got)
				time.Sleep(time.Second)
				r.publish(3, "A", "A", "A")
				r.await(pid, got)
				r.drain(pid)
				if calls := b.all(); len(calls) != 2 || len(calls[0]) != 2 || len(calls[1]) != 3 {
					t.Fatalf("batches %v, want [1 2] and [3 4 5]", calls)
				}
				if w := b.when()[0].Sub(begun); w < 50*time.Millisecond || w > 52*time.Millisecond {
					t.Errorf("the first batch was closed after %v, want 50ms", w)
				}
				if w := b.when()[1].Sub(begun); w > 1052*time.Millisecond {
					t.Errorf("the full batch was closed %v after it came", w-1050*time.Millisecond)
				}
				r.left(0)
			})
		})
	}
}

// Each element has its own result, and once one of a key isn't accepted no later
// one of that key is: it runs again, after its predecessor.
func TestBatchPrefixRule(t *testing.T) {
	for _, d := range []actors.Dispatch{actors.ByKey(1), actors.PerKey(1)} {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, b := newRig(t, nil), &batches{}
				var mu sync.Mutex
				attempts := map[string]int{}
				done := make(chan struct{})
				r.publish(1, "A", "B", "A", "B", "A")
				pid := r.spawnBatch(func(_ context.Context, ds []*transport.Delivery) error {
					b.add(ds)
					mu.Lock()
					defer mu.Unlock()
					e := &transport.BatchError{Errs: make([]error, len(ds))}
					for i, m := range ds {
						if attempts[m.ID]++; m.ID == "1" && attempts[m.ID] == 1 {
							e.Errs[i] = errBoom
						}
						if m.ID == "5" && attempts[m.ID] == 2 {
							close(done)
						}
					}
					return e
				}, actors.Options{Dispatch: d, Batch: 5, Policy: retryEvery(time.Second)})
				r.await(pid, done)
				r.drain(pid)
				r.left(0)
				want := map[string]int{"1": 2, "2": 1, "3": 2, "4": 1, "5": 2}
				for id, n := range want {
					if attempts[id] != n {
						t.Errorf("message %s ran %d times, want %d: batches %v", id, attempts[id], n, b.all())
					}
				}
				if calls := b.all(); !slices.Equal(calls[len(calls)-1], []string{"1", "3", "5"}) {
					t.Errorf("the last batch was %v, want 1 3 5", calls[len(calls)-1])
				}
			})
		})
	}
}

// A batch that fails as a whole is retried one by one, without an attempt being
// counted: the poisonous one alone reaches the dead-letter target, after exactly
// five attempts of its own, however its batch failed.
func TestBatchFailsAsAWhole(t *testing.T) {
	for name, fail := range map[string]func(ctx context.Context) error{
		"error":   func(context.Context) error { return errBoom },
		"panic":   func(context.Context) error { panic("boom") },
		"timeout": func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
		"wrong length": func(context.Context) error {
			return &transport.BatchError{Errs: make([]error, 77)}
		},
	} {
		for _, d := range everyMode {
			t.Run(name+"/"+d.String(), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r, b := newRig(t, nil), &batches{}
					var mu sync.Mutex
					alone, together, good := 0, 0, map[string]int{}
					done := make(chan struct{})
					r.publish(0, strings.Split("A B C A B poison A B C A", " ")...)
					pid := r.spawnBatch(func(ctx context.Context, ds []*transport.Delivery) error {
						b.add(ds)
						for _, m := range ds {
							if m.Key == "poison" {
								mu.Lock()
								if len(ds) == 1 {
									alone++
								} else {
									together++
								}
								mu.Unlock()
								return fail(ctx)
							}
						}
						mu.Lock()
						defer mu.Unlock()
						for _, m := range ds {
							good[m.ID]++
						}
						if len(good) == 9 {
							select {
							case <-done:
							default:
								close(done)
							}
						}
						return nil
					}, actors.Options{Dispatch: d, Batch: 10, HandlerTimeout: time.Second, Policy: fast(), OutageAfter: -1})
					r.await(pid, done)
					for r.dead.Stats().Ready == 0 {
						time.Sleep(time.Second)
					}
					r.drain(pid)
					r.left(0)
					mu.Lock()
					defer mu.Unlock()
					if alone != 5 || together > 1 {
						t.Errorf("the poisonous one ran %d times alone and %d times with others, want 5 and at most 1, in %d batches", alone, together, len(b.all()))
					}
					for id, n := range good {
						if n != 1 {
							t.Errorf("message %s succeeded %d times", id, n)
						}
					}
				})
			})
		}
	}
}

// A drain lets a batch that runs finish, and accepts what it did.
func TestDrainDuringABatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		running, release := make(chan struct{}), make(chan struct{})
		r.publish(1, "A", "A", "A", "B")
		pid := r.spawnBatch(func(ctx context.Context, ds []*transport.Delivery) error {
			close(running)
			<-release
			if ctx.Err() != nil {
				t.Error("its context has ended")
			}
			return nil
		}, actors.Options{Dispatch: actors.ByKey(1), Batch: 2})
		<-running
		r.publish(5, "A")
		go func() {
			time.Sleep(time.Second)
			close(release)
		}()
		r.drain(pid)
		r.left(3)
	})
}

// An element whose lease is lost isn't accepted, and neither is what is behind it
// in its group; the others are. The context goes on until all are lost.
func TestBatchElementLosesItsLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, &memory.QueueOptions{FIFO: true, Lease: 10 * time.Second, CountsOnReturn: true})
		r.queue.SetFault(refuseExtension("1"))
		var mu sync.Mutex
		var calls [][]string
		done := make(chan struct{})
		r.publish(1, "A", "B", "A")
		pid := r.spawnBatch(func(ctx context.Context, ds []*transport.Delivery) error {
			mu.Lock()
			var ids []string
			for _, m := range ds {
				ids = append(ids, m.ID)
			}
			calls = append(calls, ids)
			first := len(calls) == 1
			mu.Unlock()
			if first {
				select {
				case <-ctx.Done():
					t.Errorf("the batch was cancelled: %v", context.Cause(ctx))
				case <-time.After(time.Minute):
				}
				return nil
			}
			if slices.Contains(ids, "3") {
				close(done)
			}
			return nil
		}, actors.Options{Dispatch: actors.ByKey(1), Batch: 3})
		r.await(pid, done)
		r.drain(pid)
		r.left(0)
		if got := slices.Concat(calls...); !slices.Equal(got, []string{"1", "2", "3", "1", "3"}) {
			t.Errorf("batches %v, want 1 2 3, and then 1 and 3 again", calls)
		}
	})
}

// When the link is lost all leases are, and the context ends.
func TestBatchLosesItsLink(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		running, again := make(chan struct{}), make(chan struct{})
		r.publish(1, "A", "B")
		pid := r.spawnBatch(func(ctx context.Context, ds []*transport.Delivery) error {
			select {
			case <-running:
				close(again)
				return nil
			default:
				close(running)
			}
			<-ctx.Done()
			if c := context.Cause(ctx); !errors.Is(c, transport.ErrLeaseLost) {
				t.Errorf("cause %v, want ErrLeaseLost", c)
			}
			return nil
		}, actors.Options{Dispatch: actors.ByKey(1), Batch: 2})
		<-running
		r.queue.CutLinks()
		r.await(pid, again)
		r.drain(pid)
		r.left(0)
	})
}

// An abandoned element goes back in order with what is behind it, on a broker
// whose order only an epoch reset keeps.
func TestBatchElementIsAbandoned(t *testing.T) {
	for _, fifo := range []bool{false, true} {
		t.Run(fmt.Sprint("fifo ", fifo), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var o *memory.QueueOptions
				if fifo {
					o = &memory.QueueOptions{FIFO: true, Lease: time.Minute, CountsOnReturn: true}
				}
				r, j := newRig(t, o), newJournal(20)
				var mu sync.Mutex
				failed := false
				var keys []string
				for range 10 {
					keys = append(keys, "A", "B")
				}
				r.publish(0, keys...)
				pid := r.spawnBatch(func(_ context.Context, ds []*transport.Delivery) error {
					e := &transport.BatchError{Errs: make([]error, len(ds))}
					mu.Lock()
					defer mu.Unlock()
					bad := ""
					for i, m := range ds {
						if m.ID == "4" && !failed {
							failed, bad = true, m.Key
							e.Errs[i] = supervision.With(errBoom, supervision.Abandon(0))
						}
						if m.Key != bad {
							j.begin(m)
							j.end(m, true)
						}
					}
					return e
				}, actors.Options{Dispatch: actors.ByKey(2), Batch: 4})
				r.await(pid, j.done)
				r.drain(pid)
				j.check(t)
				r.left(0)
			})
		})
	}
}

// The bounds of what only batches have.
func TestBatchBounds(t *testing.T) {
	t.Parallel()
	h := transport.BatchHandlerFunc(func(context.Context, []*transport.Delivery) error { return nil })
	for name, c := range map[string]struct {
		o                  actors.Options
		field, value, want string
	}{
		"default":       {actors.Options{}, "", "", ""},
		"small credit":  {actors.Options{Credit: 1}, "", "", ""},
		"one":           {actors.Options{Batch: 1}, "", "", ""},
		"most":          {actors.Options{Batch: 4096, Credit: 4096}, "", "", ""},
		"too many":      {actors.Options{Batch: 4097, Credit: 10000}, "Options.Batch", "4097", "1 to 4096"},
		"negative":      {actors.Options{Batch: -1}, "Options.Batch", "-1", "1 to 4096"},
		"beyond credit": {actors.Options{Batch: 257}, "Options.Batch", "257", "at most Options.Credit"},
		"short wait":    {actors.Options{BatchWait: 1}, "Options.BatchWait", "1ns", "1ms to 1m"},
		"long wait":     {actors.Options{BatchWait: time.Hour}, "Options.BatchWait", "1h", "1ms to 1m"},
		"middleware": {actors.Options{Middleware: []transport.Middleware{func(h transport.Handler) transport.Handler { return h }}},
			"Options.Middleware", "a function", "wrap the BatchHandler"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, err := memory.New(nil).Queue("q", nil)
			if err != nil {
				t.Fatal(err)
			}
			c.o.Policy = supervision.RetryForever(supervision.Backoff{})
			_, err = actors.BatchSubscription(q.Source(), h, &c.o)
			wantOptionError(t, err, c.field, c.value, c.want)
		})
	}
	_, err := actors.BatchSubscription(nil, nil, nil)
	wantOptionError(t, err, "handler", "nil", "BatchHandler")
}
