package actors_test

import (
	"runtime"
	"testing"

	"github.com/keylanes/keylanes/actors"
)

// A delivery may cost its part of the slabs of deliveries, items and contexts,
// and of the messages between actors, each for many deliveries at once, and
// nothing of its own: together a fraction of an allocation. Two sizes are
// compared, since an actor system costs 66,000 allocations alone. Run without
// the race detector, which allocates.
func TestAllocsOfADelivery(t *testing.T) {
	const few, many = 50_000, 250_000
	for _, d := range []actors.Dispatch{actors.ByKey(compareLanes), actors.PerKey(compareLanes)} {
		measure := func(n int) (allocs, bytes float64) {
			q := filled(t, n, 64)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			runTree(t, q, n, d)
			runtime.ReadMemStats(&after)
			return float64(after.Mallocs - before.Mallocs), float64(after.TotalAlloc - before.TotalAlloc)
		}
		a0, b0 := measure(few)
		a1, b1 := measure(many)
		allocs, bytes := (a1-a0)/(many-few), (b1-b0)/(many-few)
		t.Logf("%v: %.3f allocations and %.0f bytes a delivery", d, allocs, bytes)
		if allocs > 0.3 {
			t.Errorf("%v: %.3f allocations a delivery, want at most 0.3", d, allocs)
		}
		if bytes > 600 {
			t.Errorf("%v: %.0f bytes a delivery, want at most 600", d, bytes)
		}
	}
}
