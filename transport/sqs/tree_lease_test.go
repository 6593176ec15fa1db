package sqs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// Handlers that take three times the visibility timeout: each message runs once.
func TestHandlersOutliveTheTimeout(t *testing.T) {
	onBoth(t, bothKinds, map[string]string{"VisibilityTimeout": "2"}, func(j *job) {
		const n = 16
		j.publish(load(n, 8)...)
		done := newTally(n)
		r := j.start(nil, keylanes.Options{Dispatch: keylanes.PerKey(8)}, func(ctx context.Context, d *keylanes.Delivery) error {
			if d.Count != 0 {
				j.Errorf("%v: count %d, want 0", d, d.Count)
			}
			if err := work(ctx, 6*time.Second); err != nil {
				return err
			}
			done.add(d.ID)
			return nil
		})
		done.await(j, time.Minute)
		r.stop()
		j.checkDone(oracle.Rules{Credit: 256})
		if j.fake != nil && j.fake.server.Stale() > 0 {
			j.Errorf("%d receipt handles were used after their end", j.fake.server.Stale())
		}
	})
}

// A lane's queue that is worth four visibility timeouts: what waits in it is
// kept, so every receive count stays 1.
func TestQueueWorthFourTimeouts(t *testing.T) {
	onBoth(t, bothKinds, map[string]string{"VisibilityTimeout": "5"}, func(j *job) {
		const n, took = 20, time.Second
		j.publish(load(n, 2)...) // on FIFO a receive is one group
		done := newTally(n)
		r := j.start(nil, keylanes.Options{}, func(ctx context.Context, d *keylanes.Delivery) error {
			if d.Count != 0 {
				j.Errorf("%v: count %d, want 0", d, d.Count)
			}
			if err := work(ctx, took); err != nil {
				return err
			}
			done.add(d.ID)
			return nil
		})
		done.await(j, time.Minute)
		r.stop()
		j.checkDone(oracle.Rules{})
	})
}

// 5,000 held over five subscriptions, on a slow and jittery network, with
// handlers of up to four timeouts: no handle is used after its end, no lease is
// lost, each message comes once, and extending costs at most held/10 calls per
// half timeout.
func TestThousandsHeld(t *testing.T) {
	virtual(t, func(f *fake) {
		const subscriptions, each, n, lease = 5, 1000, 6500, 10 * time.Second
		j := newJob(f, f, f.client, "", map[string]string{"VisibilityTimeout": "10"})
		ms := load(n, n)
		for i := range ms {
			ms[i].Key = ""
		}
		j.publish(ms...)
		jitter := rand.New(rand.NewPCG(1, 1))
		f.wire.Script(func(c sqsfake.Call) sqsfake.Fault {
			return slow(time.Duration(jitter.Int64N(int64(20*time.Millisecond))), time.Duration(jitter.Int64N(int64(20*time.Millisecond))))
		})
		done := newTally(n)
		var rs []*running
		for s := range subscriptions {
			seed := uint64(s)
			rng := newSafeRand(seed)
			rs = append(rs, j.start(nil, keylanes.Options{Dispatch: keylanes.Workers(each), Credit: each},
				func(ctx context.Context, d *keylanes.Delivery) error {
					if d.Count != 0 {
						f.Errorf("%v: count %d, want 0", d, d.Count)
					}
					if err := work(ctx, lease/2+rng.duration(4*lease)); err != nil {
						return err
					}
					if !transport.LeaseOf(d).Live(time.Now()) {
						f.Errorf("%v: its lease has lapsed", d)
					}
					done.add(d.ID)
					return nil
				}))
		}
		done.await(f, 10*time.Minute)
		for _, r := range rs {
			r.stop()
		}
		f.wire.Script(nil)
		j.checkDone(oracle.Rules{})
		if f.server.Stale() > 0 {
			f.Errorf("%d receipt handles were used after their end", f.server.Stale())
		}
		most := busiest(f.wire.Times(changeOp), lease/2)
		f.Logf("%d visibility calls, at most %d in %v", f.wire.Calls(changeOp), most, lease/2)
		if most > subscriptions*each/10*11/10 { // a call that isn't full costs as much
			f.Errorf("%d visibility calls in %v, want at most %d", most, lease/2, subscriptions*each/10)
		}
	})
}

// The same on a real server, where only counts can be judged.
// It runs alone, and its timeout is long: 5,000 leases want 50 calls a second of a
// server that may share a slow machine.
func TestServerThousandsHeld(t *testing.T) {
	const subscriptions, each, n = 5, 1000, 5000
	j := newJob(t, nil, newClient(t, serverURL(t)), "", map[string]string{"VisibilityTimeout": "20"})
	ms := load(n, n)
	for i := range ms {
		ms[i].Key = ""
	}
	j.publish(ms...)
	done := newTally(n)
	var rs []*running
	for range subscriptions {
		rs = append(rs, j.start(nil, keylanes.Options{Dispatch: keylanes.Workers(each), Credit: each}, func(ctx context.Context, d *keylanes.Delivery) error {
			if d.Count != 0 {
				t.Errorf("%v: count %d, want 0", d, d.Count)
			}
			if err := work(ctx, 30*time.Second); err != nil {
				return err
			}
			done.add(d.ID)
			return nil
		}))
	}
	done.await(t, 2*time.Minute)
	for _, r := range rs {
		r.stop()
	}
	j.checkDone(oracle.Rules{})
}

// busiest is how many of times fall into the busiest span.
func busiest(times []time.Time, span time.Duration) (most int) {
	from := 0
	for i, t := range times {
		for t.Sub(times[from]) >= span {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

// Two consumers, handlers of half a visibility timeout, five messages of one
// group: five starts, no overlap.
func TestTwoConsumers(t *testing.T) {
	onBoth(t, []string{".fifo"}, map[string]string{"VisibilityTimeout": "2"}, func(j *job) {
		j.publish(load(5, 1)...)
		started, done := newTally(100), newTally(5)
		h := func(ctx context.Context, d *keylanes.Delivery) error {
			started.add(d.ID)
			if err := work(ctx, time.Second); err != nil {
				return err
			}
			done.add(d.ID)
			return nil
		}
		a := j.start(nil, keylanes.Options{Dispatch: keylanes.ByKey(4)}, h)
		b := j.start(nil, keylanes.Options{Dispatch: keylanes.ByKey(4)}, h)
		done.await(j, 30*time.Second)
		a.stop()
		b.stop()
		if started.total != 5 || started.moreThanOnce() != nil {
			j.Errorf("%d starts, want 5; more than once: %v", started.total, started.moreThanOnce())
		}
		j.checkDone(oracle.Rules{})
	})
}

// One of the ten of a receive fails, and is retried much later: the other nine
// aren't delayed.
func TestOneFailureDelaysNobody(t *testing.T) {
	onBoth(t, bothKinds, nil, func(j *job) {
		j.publish(load(10, 10)...)
		began := time.Now()
		done := newTally(9)
		r := j.start(nil, keylanes.Options{Dispatch: keylanes.ByKey(1), Policy: always(time.Hour)},
			func(ctx context.Context, d *keylanes.Delivery) error {
				if string(d.Body) == "0" {
					return errNo
				}
				done.add(d.ID)
				return nil
			})
		done.await(j, 10*time.Second)
		if took := time.Since(began); took > 5*time.Second {
			j.Errorf("the others took %v", took)
		}
		r.stop()
		if v, i := countsAfterStop(j, j.client, j.q); v != "1" || i != "0" {
			j.Errorf("%s visible, %s invisible, want the one that failed", v, i)
		}
		j.check(oracle.Rules{})
	})
}

// The server's clock runs on while the process that holds the messages stands
// still for a minute, or its clocks do: what it accepts then is refused or isn't
// true, comes again, and keeps its group's order.
func TestClockJump(t *testing.T) {
	for _, kind := range bothKinds {
		t.Run("queue"+kind, func(t *testing.T) {
			virtual(t, func(f *fake) {
				const n, credit = 120, 40
				j := newJob(f, f, f.client, kind, nil)
				j.publish(load(n, 12)...)
				done := newTally(n)
				r := j.start(nil, keylanes.Options{Dispatch: keylanes.ByKey(4), Credit: credit}, func(ctx context.Context, d *keylanes.Delivery) error {
					if err := work(ctx, 500*time.Millisecond); err != nil {
						return err
					}
					done.add(d.ID)
					return nil
				})
				time.Sleep(5 * time.Second)
				f.server.Skip(time.Minute)
				time.Sleep(5 * time.Minute)
				r.stop()
				f.Logf("handled again: %v; %d handles were no longer good", done.moreThanOnce(), f.server.Stale())
				if f.server.Stale() == 0 {
					f.Error("nothing was held when the clock jumped: the test shows nothing")
				}
				j.checkDone(oracle.Rules{Duplicates: credit})
			})
		})
	}
}

// Before the 12 hours are over the handler is told, and the policy is asked while
// the lease still lives; what it orders keeps the group's order. A handler that
// doesn't listen loses its lease at the end.
func TestTwelveHours(t *testing.T) {
	for _, listens := range []bool{true, false} {
		t.Run(fmt.Sprint("listens ", listens), func(t *testing.T) {
			virtual(t, func(f *fake) {
				j := newJob(f, f, f.client, ".fifo", map[string]string{"VisibilityTimeout": "600"})
				j.publish(load(3, 1)...)
				done := newTally(3)
				var asked []supervision.Failure
				began := time.Now()
				causes := make(chan error, 1)
				r := j.start(&Options{WaitTime: 20 * time.Second}, keylanes.Options{StuckAfter: 24 * time.Hour, Policy: abandons(func(failed supervision.Failure) { asked = append(asked, failed) })},
					func(ctx context.Context, d *keylanes.Delivery) error {
						if string(d.Body) != "0" || d.Count > 0 {
							done.add(d.ID)
							return nil
						}
						if !listens {
							<-time.After(12*time.Hour + 10*time.Minute)
							causes <- context.Cause(ctx)
							return nil
						}
						<-ctx.Done()
						causes <- context.Cause(ctx)
						return ctx.Err()
					})
				select {
				case cause := <-causes:
					if !errors.Is(cause, transport.ErrLeaseEnding) {
						f.Errorf("cause %v, want ErrLeaseEnding", cause)
					}
				case <-time.After(13 * time.Hour):
					f.Error("the handler wasn't told")
				}
				if d := time.Since(began); listens && (d < 12*time.Hour-15*time.Minute || d > 12*time.Hour) {
					f.Errorf("told after %v", d)
				}
				done.await(f, time.Hour)
				r.stop()
				if listens && (len(asked) != 1 || asked[0].Kind != supervision.TimedOut || !errors.Is(asked[0].Err, transport.ErrLeaseEnding)) {
					f.Errorf("the policy was asked about %+v", asked)
				}
				if !listens && len(asked) > 0 { // it returned nil, for a lease that was gone
					f.Errorf("the policy was asked about %+v", asked)
				}
				rules := oracle.Rules{Duplicates: 1} // who doesn't listen has succeeded in vain
				if listens {
					rules.Duplicates = 0
				}
				j.checkDone(rules)
				if n := f.server.Stale(); n > 0 {
					f.Errorf("%d receipt handles were used after their end", n)
				}
			})
		})
	}
}

// abandons gives everything back at once, and tells f.
type abandons func(supervision.Failure)

func (a abandons) Decide(f supervision.Failure) supervision.Directive {
	a(f)
	return supervision.Abandon(0)
}

func (abandons) MayDeadLetter() bool { return false }

// safeRand may be used by many goroutines.
type safeRand struct {
	mu  chan struct{}
	rng *rand.Rand
}

func newSafeRand(seed uint64) *safeRand {
	return &safeRand{mu: make(chan struct{}, 1), rng: rand.New(rand.NewPCG(seed, 5))}
}

func (r *safeRand) duration(below time.Duration) time.Duration {
	r.mu <- struct{}{}
	defer func() { <-r.mu }()
	return time.Duration(r.rng.Int64N(int64(below)))
}
