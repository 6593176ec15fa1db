package sqs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// busy is a handler for tests of stops: most attempts are short, some are as long
// as a lease, some fail.
func busy(rng *safeRand) keylanes.HandlerFunc {
	return func(ctx context.Context, _ *keylanes.Delivery) error {
		took := rng.duration(100 * time.Millisecond)
		switch rng.duration(20) {
		case 0:
			took = rng.duration(5 * time.Second)
		case 1:
			return errNo
		}
		return work(ctx, took)
	}
}

// stoppable is what a subscription that is stopped at any moment runs with: a
// policy of all kinds, and little time to drain.
func stoppable() keylanes.Options {
	return keylanes.Options{
		Dispatch: keylanes.PerKey(6), Credit: 40, StopTimeout: 3 * time.Second,
		Policy: hereOrThere{},
	}
}

// hereOrThere retries here, for up to a second, or gives back.
type hereOrThere struct{}

func (hereOrThere) Decide(f supervision.Failure) supervision.Directive {
	if f.Rand%2 == 0 {
		return supervision.Abandon(0)
	}
	return supervision.Retry(time.Duration(f.Rand % uint64(time.Second)))
}

func (hereOrThere) MayDeadLetter() bool { return false }

// A subscription is stopped at a random moment of a poll, a batch of deletes, an
// extension, a handler, a retry: afterwards nothing is invisible, and what isn't
// done is there.
func TestStopAnywhere(t *testing.T) {
	for _, kind := range bothKinds {
		for seed := range uint64(rounds(t, 20)) {
			t.Run(fmt.Sprintf("%d%s", seed, kind), func(t *testing.T) {
				virtual(t, func(f *fake) {
					j := newJob(f, f, f.client, kind, map[string]string{"VisibilityTimeout": "4"})
					j.publish(load(400, 25)...)
					jitter := rand.New(rand.NewPCG(seed, 3))
					f.wire.Script(func(sqsfake.Call) sqsfake.Fault {
						return slow(time.Duration(jitter.Int64N(int64(30*time.Millisecond))), time.Duration(jitter.Int64N(int64(30*time.Millisecond))))
					})
					rng := newSafeRand(seed)
					r := j.start(nil, stoppable(), busy(rng))
					time.Sleep(rng.duration(8 * time.Second))
					r.stop()
					f.wire.Script(nil)
					j.check(oracle.Rules{Credit: 40})
				})
			})
		}
	}
}

// The same on a real server.
func TestServerStopAnywhere(t *testing.T) {
	t.Parallel()
	url := serverURL(t)
	var wg sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for seed := range uint64(rounds(t, 10)) {
		for _, kind := range bothKinds {
			room <- struct{}{}
			c := newClient(t, url)
			j := newJob(t, nil, c, kind, map[string]string{"VisibilityTimeout": "6"})
			j.publish(load(200, 20)...)
			wg.Go(func() {
				defer func() { <-room }()
				rng := newSafeRand(seed)
				r := j.start(nil, stoppable(), busy(rng))
				_ = work(t.Context(), rng.duration(5*time.Second)) // the test's end would be another's failure
				r.stop()
				j.check(oracle.Rules{Credit: 40})
			})
		}
	}
	wg.Wait()
}

// 100 subscriptions of one queue stop at once, each in the middle of its work.
func TestManyStopAtOnce(t *testing.T) {
	onBoth(t, bothKinds, map[string]string{"VisibilityTimeout": "20"}, func(j *job) {
		const n = 1500
		ms := load(n, 300)
		if j.kind == "" {
			for i := range ms {
				ms[i].Key = "" // a key of a standard queue may run in two processes at once
			}
		}
		j.publish(ms...)
		started := newTally(200)
		var rs []*running
		for i := range 100 {
			rng := newSafeRand(uint64(i))
			rs = append(rs, j.start(nil, keylanes.Options{Dispatch: keylanes.PerKey(2), Credit: 20, StopTimeout: 2 * time.Second},
				func(ctx context.Context, _ *keylanes.Delivery) error {
					started.add("")
					return work(ctx, rng.duration(3*time.Second))
				}))
		}
		started.await(j, time.Minute)
		began := time.Now()
		for _, r := range rs {
			r.cancel()
		}
		for _, r := range rs {
			r.stop()
		}
		j.Logf("stopped in %v", time.Since(began))
		j.check(oracle.Rules{})
	})
}

// A stop that comes while a receive's reply is on its way, and one whose reply
// was lost on a FIFO queue: what it took goes back.
func TestStopDuringAReceive(t *testing.T) {
	for _, kind := range bothKinds {
		for name, fault := range map[string]sqsfake.Fault{"late": sqsfake.Delay(500 * time.Millisecond), "lost": sqsfake.LoseReply} {
			if kind == "" && name == "lost" {
				continue // standard queues have no attempt ids: it comes again after the timeout
			}
			t.Run(name+kind, func(t *testing.T) {
				virtual(t, func(f *fake) {
					j := newJob(f, f, f.client, kind, nil)
					f.script("ReceiveMessage", func(n int) sqsfake.Fault {
						if n == 1 {
							return fault
						}
						return nil
					})
					j.publish(load(10, 1)...)
					r := j.start(nil, keylanes.Options{}, func(context.Context, *transport.Delivery) error { return nil })
					f.awaitPoll()
					r.stop()
					j.check(oracle.Rules{})
					if v, _ := counts(f, f.client, j.q); name == "lost" && v != "10" {
						f.Errorf("%s visible, want 10", v)
					}
				})
			})
		}
	}
}
