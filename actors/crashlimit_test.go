package actors_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// CrashLimit dead-letters what fails here and was handed out too often before, as
// soon as something else has succeeded since; what was handed out as often and
// succeeds isn't touched.
func TestCrashLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, &memory.QueueOptions{CountsOnLoss: true})
		var steps trail
		crashing := true // the process that dies with its messages, again and again
		h := func(ctx context.Context, d *transport.Delivery) error {
			switch {
			case crashing:
				<-ctx.Done()
				return context.Cause(ctx)
			case d.Key == "bad":
				steps.add("%s fails, attempt %d", d.ID, transport.Attempt(ctx))
				if d.Count < 5 {
					t.Errorf("%v: count %d", d, d.Count)
				}
				return errBoom
			}
			return nil
		}
		o := actors.Options{Dispatch: actors.ByKey(1), Policy: supervision.CrashLimit(5, supervision.DeadLetter("crashes", ""), retryEvery(time.Second))}
		r.publish(1, "good", "bad", "good", "bad")
		for range 5 {
			pid := r.spawn(h, o)
			synctest.Wait()
			r.queue.CutLinks()
			r.stop(pid)
		}
		crashing = false
		pid := r.spawn(h, o)
		for i := range 60 {
			r.publish(10+i, "healthy")
			time.Sleep(time.Second)
		}
		if ms := r.dead.Messages(); len(ms) != 2 || ms[0].ID != "2" || ms[1].ID != "4" {
			t.Errorf("dead letters %v, want the two bad ones", ms)
		}
		if n := len(steps.all()); n < 4 || n > 12 { // each at least once more after the evidence
			t.Errorf("%d failed runs: %q", n, steps.all())
		}
		r.drain(pid)
		r.left(0)
	})
}
