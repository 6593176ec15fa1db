package actors_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// refuseExtension makes the broker refuse to extend a message's first lease.
func refuseExtension(id string) memory.Fault {
	return func(op memory.Op) memory.Reply {
		if op.Kind == memory.OpExtend && op.Delivery.ID == id && op.Delivery.Count == 0 {
			return memory.Reply{Err: errors.New("the lease can't be extended")}
		}
		return memory.Reply{}
	}
}

// A lease that is lost cancels the handler that runs on it, and no other.
func TestLostLeaseCancelsItsHandlerOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, &memory.QueueOptions{FIFO: true, Lease: 10 * time.Second, CountsOnReturn: true})
		r.queue.SetFault(refuseExtension("1"))
		j := newJournal(2)
		lost := make(chan error, 1)
		pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
			j.begin(d)
			defer j.end(d, d.ID == "2" || d.Count > 0)
			switch {
			case d.ID == "1" && d.Count == 0:
				<-ctx.Done()
				lost <- context.Cause(ctx)
			case d.ID == "2":
				select {
				case <-ctx.Done():
					t.Errorf("the other handler was cancelled: %v", context.Cause(ctx))
				case <-time.After(time.Minute):
				}
			}
			return nil
		}, actors.Options{Dispatch: actors.PerKey(4)})
		r.publish(1, "A", "B")
		if err := <-lost; !errors.Is(err, transport.ErrLeaseLost) {
			t.Errorf("cause %v, want ErrLeaseLost", err)
		}
		r.await(pid, j.done)
		r.drain(pid)
		j.check(t)
		r.left(0)
	})
}

// The three reasons for which a context ends are told apart by its cause.
func TestCausesAreToldApart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		want error
		opts actors.Options
		act  func(r *rig, pid *actorPID)
	}{
		{"lease", transport.ErrLeaseLost, actors.Options{HandlerTimeout: time.Hour}, func(r *rig, _ *actorPID) { r.queue.CutLinks() }},
		{"timeout", transport.ErrHandlerTimeout, actors.Options{HandlerTimeout: time.Second}, func(*rig, *actorPID) {}},
		{"stopping", transport.ErrStopping, actors.Options{HandlerTimeout: time.Hour}, func(r *rig, pid *actorPID) { r.stop(pid) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				running, cause := make(chan struct{}), make(chan error, 1)
				pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
					select {
					case <-running: // it comes again after the link is back
						return nil
					default:
						close(running)
					}
					<-ctx.Done()
					cause <- context.Cause(ctx)
					return ctx.Err()
				}, c.opts)
				r.publish(1, "A")
				<-running
				c.act(r, pid)
				got := <-cause
				for _, err := range []error{transport.ErrLeaseLost, transport.ErrHandlerTimeout, transport.ErrStopping} {
					if errors.Is(got, err) != errors.Is(err, c.want) {
						t.Errorf("cause %v, want %v and nothing else", got, c.want)
					}
				}
				r.stop(pid)
			})
		})
	}
}

// Leases are extended while their deliveries run, wait behind their key, wait
// for a lane, and are parked: nothing lapses, and nothing is handed out twice.
func TestLeasesAreExtendedWhileHeld(t *testing.T) {
	for _, q := range []memory.QueueOptions{
		{FIFO: true, Lease: 3 * time.Second, CountsOnReturn: true},
		{Shuffle: true, Lease: 3 * time.Second, CountsOnReturn: true},
	} {
		name := "fifo"
		if q.Shuffle {
			name = "standard"
		}
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, &q)
				j := newJournal(6)
				var runs trail
				pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
					j.begin(d)
					ok := d.ID != "3" || transport.Attempt(ctx) == 2
					defer j.end(d, ok)
					runs.add("%s", d.ID)
					if d.Count != 0 {
						t.Errorf("%v was handed out before", d)
					}
					time.Sleep(9 * time.Second) // three leases
					if ctx.Err() != nil {
						t.Errorf("%v was cancelled: %v", d, context.Cause(ctx))
					}
					if !ok {
						return errBoom
					}
					return nil
				}, actors.Options{Dispatch: actors.ByKey(1), Policy: retryEvery(20 * time.Second)})
				r.publish(1, "A", "A", "B", "B", "C", "C")
				r.await(pid, j.done)
				r.drain(pid)
				if n := len(runs.all()); n != 7 {
					t.Errorf("%d runs, want 7, the one retry included: %q", n, runs.all())
				}
				if s := r.queue.Stats(); s.Lapsed != 0 {
					t.Errorf("%d leases lapsed", s.Lapsed)
				}
				if !q.Shuffle {
					j.check(t)
				}
				r.left(0)
			})
		})
	}
}
