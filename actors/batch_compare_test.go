package actors_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// runBatchTree runs the real thing with batches.
func runBatchTree(tb testing.TB, q *memory.Queue, n int, d actors.Dispatch, size int) cost {
	c := newCountdown(n)
	props, err := actors.BatchSubscription(q.Source(), transport.BatchHandlerFunc(func(_ context.Context, ds []*transport.Delivery) error {
		if c.left.Add(-int64(len(ds))) == 0 {
			close(c.done)
		}
		return nil
	}), &actors.Options{Dispatch: d, Credit: batchCredit, Batch: size, Logger: quiet(), DeadLetter: q.Publisher()})
	if err != nil {
		tb.Fatal(err)
	}
	return timeProps(tb, q, c, props)
}

// batchCredit lets each lane have a full batch, and another one behind it.
const batchCredit = 1024

// BenchmarkBatch compares what a message costs in batches of 64 and alone, with
// handlers that do nothing, in interleaved pairs.
func BenchmarkBatch(b *testing.B) {
	const n, rounds, size = 200_000, 7, 64
	for _, d := range []actors.Dispatch{actors.ByKey(compareLanes), actors.PerKey(compareLanes)} {
		b.Run(d.String(), func(b *testing.B) {
			for range b.N {
				var single, batched, ratios []float64
				for range rounds {
					one := runTreeWith(b, filled(b, n, 64), n, d, batchCredit)
					many := runBatchTree(b, filled(b, n, 64), n, d, size)
					single = append(single, float64(one.cpu.Nanoseconds())/n)
					batched = append(batched, float64(many.cpu.Nanoseconds())/n)
					ratios = append(ratios, float64(many.cpu)/float64(one.cpu))
				}
				for name, v := range map[string][]float64{"single-cpu-ns/msg": single, fmt.Sprintf("batch%d-cpu-ns/msg", size): batched, "batch/single": ratios} {
					slices.Sort(v)
					b.ReportMetric(v[rounds/2], name)
				}
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// BenchmarkBatchTree is batches alone, for profiles.
func BenchmarkBatchTree(b *testing.B) {
	q := filled(b, b.N, 64)
	b.ReportAllocs()
	b.ResetTimer()
	runBatchTree(b, q, b.N, actors.ByKey(compareLanes), 64)
}

// BenchmarkDistinctKeys compares what a message costs with keys drawn from a million
// with what it costs with a thousand: the tree's growth, and that of the twin that
// only hashes. What both pay is cache misses.
func BenchmarkDistinctKeys(b *testing.B) {
	const n, rounds = 1_000_000, 3
	for range b.N {
		took := map[string][]float64{}
		for range rounds {
			for _, keys := range []int{1000, n} {
				name := fmt.Sprint(keys)
				took["perkey-"+name] = append(took["perkey-"+name], float64(runTree(b, filled(b, n, keys), n, actors.PerKey(compareLanes)).cpu.Nanoseconds())/n)
				took["hash-"+name] = append(took["hash-"+name], float64(runHashTwin(b, filled(b, n, keys), n).cpu.Nanoseconds())/n)
			}
		}
		median := map[string]float64{}
		for name, v := range took {
			slices.Sort(v)
			median[name] = v[rounds/2]
			b.ReportMetric(median[name], name+"-cpu-ns/msg")
		}
		most := fmt.Sprint(n)
		perkey, hash := median["perkey-"+most]/median["perkey-1000"], median["hash-"+most]/median["hash-1000"]
		b.ReportMetric(perkey, "perkey-growth")
		b.ReportMetric(hash, "hash-growth")
		b.ReportMetric(perkey/hash, "perkey/hash-growth")
		b.ReportMetric(0, "ns/op")
	}
}
