package actors_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// A policy that abandons whatever fails, at once, on the only host that there is:
// the message goes round, ever more slowly, and not as fast as the broker can hand
// it out.
func TestAbandonDoesntSpin(t *testing.T) {
	fifo := &memory.QueueOptions{FIFO: true, Lease: time.Minute, CountsOnReturn: true}
	for name, c := range map[string]struct {
		o       *memory.QueueOptions
		d       actors.Dispatch
		key, id string
		policy  supervision.Directive
		most    int64
	}{
		"workers":     {nil, actors.Workers(4), "", "m", supervision.Abandon(0), 16},
		"keyless":     {nil, actors.PerKey(4), "", "m", supervision.Abandon(0), 16},
		"group":       {fifo, actors.PerKey(4), "A", "m", supervision.Abandon(0), 16},
		"reset":       {nil, actors.PerKey(4), "A", "m", supervision.Abandon(0), 16},
		"without ids": {nil, actors.Workers(4), "", "", supervision.Abandon(0), 60*100 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, c.o)
				if err := r.queue.Publisher().Publish(context.Background(), transport.Message{ID: c.id, Key: c.key}); err != nil {
					t.Fatal(err)
				}
				var calls atomic.Int64
				pid := r.spawn(func(context.Context, *transport.Delivery) error {
					calls.Add(1)
					return errBoom
				}, actors.Options{Dispatch: c.d, Policy: supervision.Always(c.policy)})
				time.Sleep(time.Minute)
				n := calls.Load()
				r.stop(pid)
				if n > c.most || n < 5 {
					t.Errorf("%d calls in a minute, want 5 to %d", n, c.most)
				}
				if s := r.queue.Stats(); s.Ready+s.Delayed != 1 || s.InFlight != 0 {
					t.Errorf("left over: %+v, want the one message", s)
				}
			})
		})
	}
}
