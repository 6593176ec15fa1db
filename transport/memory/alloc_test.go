//go:build !race

package memory

import (
	"context"
	"testing"

	"github.com/keylanes/keylanes/transport"
)

// A delivery costs no allocation of its own: slabs of 32, and a slice for each
// receive. Not under the race detector, which allocates.
func TestNoAllocationForEachDelivery(t *testing.T) {
	const n, batches = 64, 50
	for name, o := range map[string]*QueueOptions{"plain": nil, "shuffle": {Shuffle: true}, "fifo with leases": {FIFO: true, Lease: 1 << 40}} {
		q := newTestQueue(t, o)
		send(t, q, n*(batches+1), benchKeys...)
		r, err := q.Source().Open(t.Context(), silent{})
		if err != nil {
			t.Fatal(err)
		}
		per := testing.AllocsPerRun(batches, func() {
			r.Grant(n)
			for left := n; left > 0; {
				ds, err := r.Receive(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range ds {
					r.Settle(d, accept)
				}
				left -= len(ds)
			}
		}) / n
		mustClose(t, r)
		if per > 0.2 {
			t.Errorf("%s: %.2f allocations for each delivery, want at most 0.2", name, per)
		}
	}
}

type silent struct{}

func (silent) Settled(*transport.Delivery, transport.Outcome, error) {}
func (silent) Lost([]*transport.Delivery, error)                     {}
