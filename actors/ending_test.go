package actors_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// A handler whose lease can't be extended any more is told while the lease still
// lives, and the policy decides in time: here on a dead letter. Others aren't
// told.
func TestLeaseEnding(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, &memory.QueueOptions{FIFO: true, Lease: 10 * time.Second, LeaseMax: time.Minute})
		causes := make(chan error, 2)
		began := time.Now()
		pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
			switch d.ID {
			case "1": // for ever
				<-ctx.Done()
				if !transport.LeaseOf(d).Live(time.Now()) {
					t.Error("it was told when its lease had lapsed")
				}
				causes <- context.Cause(ctx)
				return errBoom
			case "2": // begins late, so its lease lasts
				select {
				case <-ctx.Done():
					t.Errorf("the other handler was cancelled: %v", context.Cause(ctx))
				case <-time.After(40 * time.Second):
				}
			}
			return nil
		}, actors.Options{Dispatch: actors.PerKey(4), Policy: supervision.On[error](supervision.PolicyFunc(func(f supervision.Failure) supervision.Directive {
			if f.Kind != supervision.TimedOut || !errors.Is(f.Err, transport.ErrLeaseEnding) || !errors.Is(f.Err, errBoom) {
				t.Errorf("the policy is asked about %v: %v", f.Kind, f.Err)
			}
			return supervision.DeadLetter("too long", "")
		}), supervision.Default())})
		r.publish(1, "A")
		time.Sleep(30 * time.Second)
		r.publish(2, "B")
		if cause := <-causes; !errors.Is(cause, transport.ErrLeaseEnding) {
			t.Errorf("cause %v, want ErrLeaseEnding", cause)
		}
		if d := time.Since(began); d < 45*time.Second || d > time.Minute {
			t.Errorf("told after %v", d)
		}
		time.Sleep(20 * time.Second)
		r.drain(pid)
		r.left(0)
		if n := r.dead.Depth(); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
	})
}

// A keyless message that outlives the ceiling of its lease comes again while its
// handler, which doesn't listen, still runs: the copy waits for its return.
func TestCopyWaitsAtTheCeiling(t *testing.T) {
	for _, d := range []actors.Dispatch{actors.PerKey(2), actors.ByKey(2), actors.Workers(2)} {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, &memory.QueueOptions{Shuffle: true, CountsOnReturn: true, Lease: time.Second, LeaseMax: 4 * time.Second})
				var steps trail
				done := make(chan struct{})
				pid := r.spawn(func(_ context.Context, d *transport.Delivery) error {
					steps.add("start %d", d.Count)
					if d.Count == 0 {
						time.Sleep(6 * time.Second)
					}
					steps.add("end %d", d.Count)
					if d.Count > 0 {
						close(done)
					}
					return nil
				}, actors.Options{Dispatch: d})
				r.publish(1, "")
				r.await(pid, done)
				steps.want(t, "start 0", "end 0", "start 1", "end 1")
				r.drain(pid)
				r.left(0)
			})
		})
	}
}
