package actors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/codec"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// A message that doesn't decode is dead-lettered without any delay, and its copy
// says all that the message said, and why.
func TestUndecodableIsDeadLetteredAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		h := transport.Typed(codec.JSON, func(_ context.Context, v int, d *transport.Delivery) error {
			t.Errorf("%v is handled with %d", d, v)
			return nil
		})
		pid := r.spawn(h.Handle, actors.Options{Name: "billing"})
		if err := r.queue.Publisher().Publish(context.Background(), transport.Message{
			ID: "m1", Key: "A", ContentType: "application/json", CorrelationID: "c1", ReplyTo: "replies",
			Body: []byte("{cut"), Headers: map[string]any{"tenant": "x", transport.HeaderReason: "of an earlier life"},
		}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		synctest.Wait()
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v, want none", took)
		}
		ms := r.dead.Messages()
		if len(ms) != 1 {
			t.Fatalf("%d dead letters, want one", len(ms))
		}
		m := ms[0]
		if m.ID != "m1" || m.Key != "A" || m.ContentType != "application/json" || m.CorrelationID != "c1" || m.ReplyTo != "replies" || string(m.Body) != "{cut" {
			t.Errorf("the copy is %+v, want the message as it was", m)
		}
		for k, want := range map[string]any{
			"tenant": "x", transport.HeaderReason: "undecodable", transport.HeaderAttempts: int64(1),
			transport.HeaderKey: "A", transport.HeaderSource: "billing",
		} {
			if m.Headers[k] != want {
				t.Errorf("header %s is %v, want %v", k, m.Headers[k], want)
			}
		}
		if s, _ := m.Headers[transport.HeaderDescription].(string); !strings.Contains(s, "doesn't decode") {
			t.Errorf("description %q, want the error's text", s)
		}
		r.drain(pid)
		r.left(0)
	})
}

// A handler's advice is obeyed at the first failure.
func TestAdviceIsObeyed(t *testing.T) {
	for name, c := range map[string]struct {
		advice supervision.Directive
		after  time.Duration // when the key's next message starts
		starts string        // of the two messages of the key
		dead   int
	}{
		"dead-letter":     {supervision.DeadLetter("declined", "card 12"), 0, "[1/1 2/1]", 1},
		"accept":          {supervision.AcceptAnyway(), 0, "[1/1 2/1]", 0},
		"retry":           {supervision.Retry(3 * time.Second), 3 * time.Second, "[1/1 1/2 2/1]", 0},
		"retry uncounted": {supervision.RetryUncounted(3 * time.Second), 3 * time.Second, "[1/1 1/1 2/1]", 0},
		"abandon":         {supervision.Abandon(3 * time.Second), 3 * time.Second, "[1/1 1/2 2/1]", 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				var steps trail
				var failed atomic.Bool
				pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
					steps.add("%s/%d", d.ID, transport.Attempt(ctx))
					if d.ID == "1" && !failed.Swap(true) {
						return supervision.With(errBoom, c.advice)
					}
					return nil
				}, actors.Options{Dispatch: actors.ByKey(2)})
				start := time.Now()
				r.publish(1, "A", "A")
				time.Sleep(time.Minute)
				if got := fmt.Sprint(steps.all()); got != c.starts {
					t.Errorf("starts %s, want %s", got, c.starts)
				}
				if after := steps.at("2/1").Sub(start); after < c.after || after > c.after+100*time.Millisecond {
					t.Errorf("the successor starts after %v, want %v", after, c.after)
				}
				ms := r.dead.Messages()
				if len(ms) != c.dead {
					t.Fatalf("%d dead letters, want %d", len(ms), c.dead)
				}
				for _, m := range ms {
					if m.Headers[transport.HeaderReason] != "declined" || m.Headers[transport.HeaderDescription] != "card 12" {
						t.Errorf("headers %v, want the advice's", m.Headers)
					}
				}
				r.drain(pid)
				r.left(0)
			})
		})
	}
}

// refusing is a publisher that refuses until it is told otherwise.
type refusing struct {
	transport.Publisher
	tries trail
	ok    atomic.Bool
}

func (p *refusing) Publish(ctx context.Context, ms ...transport.Message) error {
	p.tries.add("try")
	if !p.ok.Load() {
		return &transport.PublishError{Unconfirmed: []int{0}, Err: errBoom}
	}
	return p.Publisher.Publish(ctx, ms...)
}

// While the dead-letter target refuses, the message stays held and its key waits;
// other keys go on. Copies are tried again at growing distances.
func TestDeadLetterTargetRefusesForAWhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		evs := listen(r.sys)
		target := &refusing{Publisher: r.dead.Publisher()}
		var steps trail
		pid := r.spawn(func(_ context.Context, d *transport.Delivery) error {
			steps.add("%s", d.ID)
			if d.ID == "1" {
				return supervision.With(errBoom, supervision.DeadLetter("declined", ""))
			}
			return nil
		}, actors.Options{Dispatch: actors.ByKey(1), DeadLetter: target})
		r.publish(1, "A", "A", "B")
		time.Sleep(10 * time.Minute)
		steps.want(t, "1", "3")
		if n := r.queue.InFlight(); n != 2 {
			t.Errorf("%d in flight, want the message and its successor", n)
		}
		if st := r.stats(pid); st.Held != 2 || st.DeadLettered != 0 {
			t.Errorf("stats %+v, want 2 held and nothing dead-lettered", st)
		}
		tries := target.tries.count("try")
		if tries < 20 || tries > 40 {
			t.Errorf("%d tries in ten minutes, want one each 30s at the end", tries)
		}
		evs.want(t, tries, actors.EventDeadLetterFailed)
		evs.want(t, 0, actors.EventDeadLettered)

		target.ok.Store(true)
		time.Sleep(31 * time.Second)
		steps.want(t, "1", "3", "2")
		evs.want(t, 1, actors.EventDeadLettered)
		if n := r.dead.Depth(); n != 1 {
			t.Errorf("%d dead letters, want one", n)
		}
		r.drain(pid)
		r.left(0)
	})
}

// liar says that it never dead-letters, and does.
type liar struct{ supervision.Policy }

func (liar) MayDeadLetter() bool { return false }

func (r *rig) unpark(pid *actor.PID, key string, skip bool) error {
	r.t.Helper()
	reply, err := r.sys.Root.RequestFuture(pid, &actors.Unpark{Key: key, Skip: skip}, time.Minute).Result()
	if err != nil {
		r.t.Fatalf("unpark: %v", err)
	}
	return reply.(*actors.Done).Err
}

// Where a dead letter has no target the key is parked, loudly. Unpark tries the
// head again, Unpark with Skip accepts it, and the key goes on in order.
func TestDeadLetterTargetIsMissing(t *testing.T) {
	for _, d := range []actors.Dispatch{actors.Sequential(), actors.ByKey(2), actors.PerKey(2)} {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				evs := listen(r.sys)
				var steps trail
				props, err := actors.Subscription(r.queue.Source(), transport.HandlerFunc(func(_ context.Context, d *transport.Delivery) error {
					steps.add("%s", d.ID)
					if d.ID == "1" {
						return errBoom
					}
					return nil
				}), &actors.Options{Dispatch: d, Logger: quiet(), Policy: liar{supervision.Always(supervision.DeadLetter("declined", ""))}})
				if err != nil {
					t.Fatal(err)
				}
				pid := r.sys.Root.Spawn(props)
				r.publish(1, "A", "A", "A")
				time.Sleep(time.Hour)
				steps.want(t, "1")
				evs.want(t, 1, actors.EventKeyParked)
				if es := evs.of(actors.EventKeyParked); es[0].Key != "A" || es[0].ID != "1" || !errors.Is(es[0].Err, errBoom) || !strings.Contains(es[0].Reason, "Options.DeadLetter") {
					t.Errorf("event %+v, want it to name message, cause and way out", es[0])
				}
				if st := r.stats(pid); st.Parked != 1 || st.Held != 3 {
					t.Errorf("stats %+v, want one parked of three held", st)
				}
				if d != actors.Sequential() { // there the key is ignored
					if err := r.unpark(pid, "B", false); !errors.Is(err, actors.ErrNotParked) {
						t.Errorf("unpark of another key: %v, want ErrNotParked", err)
					}
				}
				if err := r.unpark(pid, "A", false); err != nil {
					t.Errorf("unpark: %v", err)
				}
				synctest.Wait()
				steps.want(t, "1", "1")
				evs.want(t, 2, actors.EventKeyParked)
				if err := r.unpark(pid, "A", true); err != nil {
					t.Errorf("unpark with skip: %v", err)
				}
				synctest.Wait()
				steps.want(t, "1", "1", "2", "3")
				if err := r.unpark(pid, "A", true); !errors.Is(err, actors.ErrNotParked) {
					t.Errorf("unpark of what goes on: %v, want ErrNotParked", err)
				}
				r.drain(pid)
				r.left(0)
			})
		})
	}
}

// Directive.Park keeps the key where it is after the dead letter.
func TestParkAfterADeadLetter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		evs := listen(r.sys)
		var steps trail
		d := supervision.DeadLetter("declined", "")
		d.Park = true
		pid := r.spawn(func(_ context.Context, d *transport.Delivery) error {
			steps.add("%s", d.ID)
			if d.ID == "1" {
				return errBoom
			}
			return nil
		}, actors.Options{Dispatch: actors.ByKey(1), Policy: supervision.Always(d)})
		r.publish(1, "A", "A", "B", "A")
		time.Sleep(time.Hour)
		steps.want(t, "1", "3")
		evs.want(t, 1, actors.EventDeadLettered)
		evs.want(t, 1, actors.EventKeyParked)
		if n := r.dead.Depth(); n != 1 {
			t.Errorf("%d dead letters, want one", n)
		}
		if err := r.unpark(pid, "A", false); err != nil {
			t.Errorf("unpark: %v", err)
		}
		synctest.Wait()
		steps.want(t, "1", "3", "2", "4")
		r.drain(pid)
		r.left(0)
	})
}

// NativeDeadLetter rejects at the broker and copies nothing.
func TestNativeDeadLetter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := memory.New(nil)
		dead, err := b.Queue("native.dead", nil)
		if err != nil {
			t.Fatal(err)
		}
		r := newRig(t, nil)
		if r.queue, err = b.Queue("native", &memory.QueueOptions{DeadLetter: dead}); err != nil {
			t.Fatal(err)
		}
		evs := listen(r.sys)
		var steps trail
		pid := r.spawn(func(_ context.Context, d *transport.Delivery) error {
			steps.add("%s", d.ID)
			if d.ID == "1" {
				return supervision.With(errBoom, supervision.DeadLetter("declined", "card 12"))
			}
			return nil
		}, actors.Options{NativeDeadLetter: true})
		r.publish(1, "A", "A")
		synctest.Wait()
		steps.want(t, "1", "2")
		ms := dead.Messages()
		if len(ms) != 1 || ms[0].ID != "1" || ms[0].Headers[memory.HeaderReason] != "declined" || ms[0].Headers[memory.HeaderDescription] != "card 12" {
			t.Errorf("the broker dead-lettered %+v, want message 1 with its reason", ms)
		}
		if n := r.dead.Depth(); n != 0 {
			t.Errorf("%d copies, want none", n)
		}
		evs.want(t, 1, actors.EventDeadLettered)
		r.drain(pid)
		r.left(0)
	})
}

// A queue of nothing but poison looks like an outage: it is dead-lettered from
// OutageAfter on, and says before that why it waits.
func TestNothingButPoison(t *testing.T) {
	for _, d := range dispatches {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				evs := listen(r.sys)
				pid := r.spawn(func(context.Context, *transport.Delivery) error { return errBoom },
					actors.Options{Dispatch: d, OutageAfter: 10 * time.Minute})
				r.publish(1, "A", "B", "C", "D")
				time.Sleep(10*time.Minute - time.Second)
				if n := r.dead.Depth(); n != 0 {
					t.Errorf("%d dead letters before OutageAfter", n)
				}
				waits := evs.of(actors.EventWaitsForEvidence)
				if len(waits) == 0 || !strings.Contains(waits[0].Reason, "outage") || !errors.Is(waits[0].Err, errBoom) || waits[0].ID == "" {
					t.Errorf("events %.300v, want one that says why it waits", fmt.Sprintf("%+v", waits))
				}
				// Sequential begins with the next only when the first is gone.
				time.Sleep(2 * time.Second)
				if n := r.dead.Depth(); n == 0 {
					t.Error("nothing is dead-lettered at OutageAfter")
				}
				time.Sleep(time.Hour)
				if n := r.dead.Depth(); n != 4 {
					t.Errorf("%d dead letters, want all 4", n)
				}
				r.drain(pid)
				r.left(0)
			})
		})
	}
}

// A handler that always fails at once is called as often as the backoff lets it,
// beside a flow that is healthy, too. Without any delay in the policy it can't
// spin either.
func TestAlwaysFailingIsBoundedByBackoff(t *testing.T) {
	for name, c := range map[string]struct {
		policy supervision.Policy
		most   int64 // calls in ten minutes
	}{
		// Half a second on average at the least, half a minute at the end.
		"default backoff": {supervision.RetryForever(supervision.Backoff{}), 50},
		"no delay at all": {supervision.Always(supervision.Retry(0)), 600_000},
		"negative delay":  {supervision.Always(supervision.Retry(-time.Hour)), 600_000},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				var calls, good atomic.Int64
				pid := r.spawn(func(_ context.Context, d *transport.Delivery) error {
					if d.Key == "bad" {
						calls.Add(1)
						return errBoom
					}
					good.Add(1)
					return nil
				}, actors.Options{Dispatch: actors.ByKey(4), Policy: c.policy})
				r.publish(0, "bad")
				rounds, step := 600, time.Second
				if c.most > 1000 {
					rounds, step = 60, 50*time.Millisecond // it is many calls
				}
				for i := range rounds {
					r.publish(i+1, "good")
					time.Sleep(step)
				}
				most := c.most * int64(time.Duration(rounds)*step) / int64(10*time.Minute)
				if n := calls.Load(); n < 3 || n > most+1 { // the first one comes at once
					t.Errorf("%d calls, want 3 to %d", n, most+1)
				}
				time.Sleep(10 * time.Second) // some may wait for a probe
				if n := good.Load(); n != int64(rounds) {
					t.Errorf("%d good ones, want %d", n, rounds)
				}
				r.drain(pid)
				r.left(1)
			})
		})
	}
}

// A thousand messages that don't decode hold up the good ones behind them no
// longer than it takes to look at each.
func TestUndecodableAheadOfGoodOnes(t *testing.T) {
	for _, d := range dispatches {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const bad, good = 1000, 100
				r := newRig(t, nil)
				j := newJournal(good)
				h := transport.Typed(codec.JSON, func(_ context.Context, _ int, d *transport.Delivery) error {
					j.begin(d)
					j.end(d, true)
					return nil
				})
				ms := make([]transport.Message, bad+good)
				for i := range ms {
					ms[i] = transport.Message{ID: fmt.Sprint(i), Key: fmt.Sprint("key-", i%30), Body: []byte("{")}
					if i >= bad {
						ms[i].Body = []byte("1")
					}
				}
				if err := r.queue.Publisher().Publish(context.Background(), ms...); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				pid := r.spawn(h.Handle, actors.Options{Dispatch: d})
				r.await(pid, j.done)
				if took := time.Since(start); took > 100*time.Millisecond {
					t.Errorf("the good ones are done after %v", took)
				}
				synctest.Wait() // copies may still be under way
				if n := r.dead.Depth(); n != bad {
					t.Errorf("%d dead letters, want %d", n, bad)
				}
				if d != actors.Workers(8) {
					j.check(t)
				}
				r.drain(pid)
				r.left(0)
			})
		})
	}
}
