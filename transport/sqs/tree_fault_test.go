package sqs

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/transport"
)

// fault is a spell of trouble in the middle of a subscription's work.
type fault struct {
	name      string
	lasts     time.Duration
	does      func(sqsfake.Call) sqsfake.Fault
	perSecond int // calls a second at most, 0: not judged, since most succeed
}

// every breaks every call in the same way.
func every(f sqsfake.Fault) func(sqsfake.Call) sqsfake.Fault {
	return func(sqsfake.Call) sqsfake.Fault { return f }
}

// some breaks about a third of the calls of the operations.
func some(f sqsfake.Fault, ops ...string) func(sqsfake.Call) sqsfake.Fault {
	return func(c sqsfake.Call) sqsfake.Fault {
		for _, op := range ops {
			if c.Op == op && c.N%3 == 1 {
				return f
			}
		}
		return nil
	}
}

const deleteOp, receiveOp = "DeleteMessageBatch", "ReceiveMessage"

var faults = []fault{
	{"cut", 20 * time.Second, every(sqsfake.Drop), 8},
	{"black hole", 20 * time.Second, every(sqsfake.BlackHole), 8},
	{"throttled", 30 * time.Second, every(sqsfake.Fail(400, "ThrottlingException")), 8},
	{"throttled by another name", 30 * time.Second, every(sqsfake.Fail(400, "RequestThrottled")), 8},
	{"over limit", 20 * time.Second, every(sqsfake.Fail(403, "OverLimit")), 8},
	{"500 with text", 20 * time.Second, every(sqsfake.FailText(500, "oops")), 8},
	{"503 with text", 20 * time.Second, every(sqsfake.FailText(503, "<html>busy</html>")), 8},
	{"lost replies to deletes", 20 * time.Second, some(sqsfake.LoseReply, deleteOp), 0},
	{"lost replies to receives", 20 * time.Second, some(sqsfake.LoseReply, receiveOp), 0},
	{"cut replies", 20 * time.Second, some(sqsfake.CutReply, deleteOp, receiveOp, changeOp), 0},
	{"lost replies to extensions", 20 * time.Second, some(sqsfake.LoseReply, changeOp), 0},
	{"a third of the entries fail", 30 * time.Second, func(c sqsfake.Call) sqsfake.Fault {
		if c.Op == receiveOp {
			return nil
		}
		return sqsfake.FailEntries("InternalError", false, func(i int) bool { return (i+c.N)%10 < 3 })
	}, 0},
	{"a third fail for an unknown reason", 30 * time.Second, func(c sqsfake.Call) sqsfake.Fault {
		if c.Op == receiveOp {
			return nil
		}
		return sqsfake.FailEntries("NobodyKnows", false, func(i int) bool { return (i+c.N)%10 < 3 })
	}, 0},
}

// Whatever goes wrong for a while, nothing is lost, nothing is handled again while
// its lease can outlast the fault, order is kept, and no loop runs hot.
func TestTreeThroughFaults(t *testing.T) {
	for _, c := range faults {
		for _, kind := range bothKinds {
			t.Run(c.name+kind, func(t *testing.T) {
				virtual(t, func(f *fake) { c.run(f, kind) })
			})
		}
	}
}

func (c fault) run(f *fake, kind string) {
	const n, credit = 600, 40
	// Three times the longest fault: within it a lease can't be lost.
	j := newJob(f, f, f.client, kind, map[string]string{"VisibilityTimeout": "90"})
	j.publish(load(n, 30)...)
	done := newTally(n)
	rng := newSafeRand(1)
	r := j.start(nil, keylanes.Options{Dispatch: keylanes.PerKey(8), Credit: credit}, func(ctx context.Context, d *keylanes.Delivery) error {
		if err := work(ctx, rng.duration(time.Second)); err != nil {
			return err
		}
		done.add(d.ID)
		return nil
	})
	time.Sleep(5 * time.Second)
	began := time.Now()
	before := f.wire.Total()
	f.wire.Script(c.does)
	time.Sleep(c.lasts)
	f.wire.Script(nil)
	calls := f.wire.Total() - before
	most := 0
	if c.perSecond > 0 {
		for _, op := range []string{receiveOp, deleteOp, changeOp} {
			for _, at := range f.wire.Times(op) {
				if at.After(began.Add(time.Second)) && at.Before(began.Add(c.lasts)) {
					most++
				}
			}
		}
		most = most * int(time.Second) / int(c.lasts-time.Second)
		if most > c.perSecond {
			f.Errorf("%d calls a second that all failed", most)
		}
	}
	time.Sleep(5 * time.Minute)
	r.stop()
	again := done.moreThanOnce()
	f.Logf("%d calls in %v; %d handled again", calls, c.lasts, len(again))
	j.checkDone(oracle.Rules{Credit: credit})
}

// The queue is deleted during a poll and made again: the subscription attaches
// to the new one.
func TestTreeQueueDeletedInAPoll(t *testing.T) {
	for _, kind := range bothKinds {
		t.Run("queue"+kind, func(t *testing.T) {
			virtual(t, func(f *fake) {
				j := newJob(f, f, f.client, kind, nil)
				j.publish(load(10, 5)...)
				done := newTally(20)
				r := j.start(nil, keylanes.Options{Dispatch: keylanes.ByKey(2)}, func(_ context.Context, d *keylanes.Delivery) error {
					done.add(d.ID)
					return nil
				})
				time.Sleep(2500 * time.Millisecond)
				f.deleteQueue(j.q)
				before := f.wire.Total()
				time.Sleep(20 * time.Second)
				if calls := f.wire.Total() - before; calls > 20*8 {
					f.Errorf("%d calls in 20 s without a queue", calls)
				}
				name, attrs := queueName(j.q), map[string]string{}
				if kind != "" {
					attrs["FifoQueue"] = "true"
				}
				if _, err := f.client.CreateQueue(f.Context(), &awssqs.CreateQueueInput{QueueName: &name, Attributes: attrs}); err != nil {
					f.Fatal(err)
				}
				more := load(20, 5)[10:]
				j.publish(more...)
				done.await(f, 2*time.Minute)
				r.stop()
				j.checkDone(oracle.Rules{})
			})
		})
	}
}

// 10,000 groups, on both kinds of queue, in the fewest calls.
func TestTenThousandGroups(t *testing.T) {
	for _, kind := range bothKinds {
		t.Run("queue"+kind, func(t *testing.T) {
			virtual(t, func(f *fake) {
				const n = 10_000
				j := newJob(f, f, f.client, kind, nil)
				j.publish(load(n, n)...)
				done := newTally(n)
				r := j.start(nil, keylanes.Options{Dispatch: keylanes.PerKey(16)}, func(_ context.Context, d *keylanes.Delivery) error {
					done.add(d.ID)
					return nil
				})
				done.await(f, 10*time.Minute)
				r.stop()
				j.checkDone(oracle.Rules{Credit: 256})
				if calls := f.wire.Calls(receiveOp) + f.wire.Calls(deleteOp); calls > n*215/1000 {
					f.Errorf("%d receives and deletes for %d messages", calls, n)
				}
			})
		})
	}
}

// One group with 50,000 messages (in a soak; else 5,000, since it is the race
// detector that takes its time), published first, beside healthy ones: those
// aren't kept waiting for it.
func TestHotGroupBesideHealthyOnes(t *testing.T) {
	virtual(t, func(f *fake) {
		const groups, each, took = 50, 10, 5 * time.Millisecond
		hot := 5_000
		if os.Getenv("KEYLANES_SOAK") != "" {
			hot = 50_000
		}
		j := newJob(f, f, f.client, ".fifo", nil)
		p, err := Publisher(f.client, j.q, &PublisherOptions{GroupBatches: true})
		if err != nil {
			f.Fatal(err)
		}
		ms := load(hot+groups*each, 1)
		for i := range ms[hot:] {
			ms[hot+i].Key = fmt.Sprint("healthy", i%groups)
		}
		for part := range chunks(ms, 1000) {
			if err := j.log.Publisher(p).Publish(f.Context(), part...); err != nil {
				f.Fatal(err)
			}
		}
		healthy, all := newTally(groups*each), newTally(len(ms))
		began := time.Now()
		f.wire.Script(func(sqsfake.Call) sqsfake.Fault { return sqsfake.Delay(5 * time.Millisecond) })
		r := j.start(nil, keylanes.Options{Dispatch: keylanes.PerKey(4)}, func(ctx context.Context, d *keylanes.Delivery) error {
			if err := work(ctx, took); err != nil {
				return err
			}
			if strings.HasPrefix(d.Key, "healthy") {
				healthy.add("")
			}
			all.add("")
			return nil
		})
		healthy.await(f, time.Hour)
		f.Logf("the healthy groups took %v", time.Since(began))
		if d := time.Since(began); d > 10*time.Second {
			f.Errorf("the healthy groups took %v", d)
		}
		all.await(f, time.Hour)
		f.Logf("all took %v, %d receives", time.Since(began), f.wire.Calls(receiveOp))
		if d, most := time.Since(began), 2*time.Duration(hot)*took; d > most {
			f.Errorf("all took %v: at most %v expected, twice what its handlers take", d, most)
		}
		r.stop()
		f.wire.Script(nil)
		j.checkDone(oracle.Rules{})
		if err := p.Close(f.Context()); err != nil {
			f.Error(err)
		}
	})
}

// chunks cuts ms into parts of at most n.
func chunks(ms []transport.Message, n int) func(func([]transport.Message) bool) {
	return func(yield func([]transport.Message) bool) {
		for len(ms) > 0 {
			k := min(n, len(ms))
			if !yield(ms[:k]) {
				return
			}
			ms = ms[k:]
		}
	}
}

// Bodies of nearly 1 MiB come through whole.
func TestLargeBodies(t *testing.T) {
	onBoth(t, bothKinds, nil, func(j *job) {
		const n = 6
		size := maxBytes - 1000 // attributes count too
		body := func(i int) string { return strings.Repeat(string(rune('a'+i)), size) }
		ms := load(n, 4)
		for i := range ms {
			ms[i].Body = []byte(body(i))
		}
		j.publish(ms...)
		done := newTally(n)
		var seen [n]bool
		r := j.start(nil, keylanes.Options{}, func(_ context.Context, d *keylanes.Delivery) error {
			i := int(d.Body[0] - 'a')
			if string(d.Body) != body(i) {
				j.Errorf("body %d came through changed: %d bytes", i, len(d.Body))
			}
			seen[i] = true
			done.add(d.ID)
			return nil
		})
		done.await(j, time.Minute)
		r.stop()
		for i, ok := range seen {
			if !ok {
				j.Errorf("body %d didn't come", i)
			}
		}
		j.checkDone(oracle.Rules{})
	})
}
