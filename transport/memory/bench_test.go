package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// grantBack is a sink that grants again what was settled, in steps, as a pump
// does.
type grantBack struct {
	r    atomic.Pointer[receiver]
	n    atomic.Int64
	step int64
}

func (g *grantBack) Settled(_ *transport.Delivery, _ transport.Outcome, err error) {
	if err != nil {
		panic(err)
	}
	if n := g.n.Add(1); n%g.step == 0 {
		g.r.Load().Grant(int(g.step))
	}
}

func (g *grantBack) Lost([]*transport.Delivery, error) { panic("lost") }

// round is how many messages are prefilled at a time, so that what is measured is
// the queue and not how the runtime copes with a huge heap.
const round = 1 << 15

func benchQueue(b *testing.B, o *QueueOptions) *Queue {
	b.Helper()
	q, err := New(nil).Queue("bench", o)
	if err != nil {
		b.Fatal(err)
	}
	return q
}

func fill(b *testing.B, q *Queue, n int) {
	b.Helper()
	body := make([]byte, 16)
	ms := make([]transport.Message, 1)
	for i := range n {
		ms[0] = transport.Message{ID: "m", Key: benchKeys[i%len(benchKeys)], Body: body}
		if err := q.publish(ms); err != nil {
			b.Fatal(err)
		}
	}
}

var benchKeys = func() []string {
	keys := make([]string, 64)
	for i := range keys {
		keys[i] = fmt.Sprintf("key-%d", i)
	}
	return keys
}()

func openBench(b *testing.B, q *Queue, credit int) transport.Receiver {
	b.Helper()
	g := &grantBack{step: 64}
	r, err := q.Source().Open(context.Background(), g)
	if err != nil {
		b.Fatal(err)
	}
	g.r.Store(r.(*receiver))
	r.Grant(credit)
	return r
}

var accept = transport.Outcome{Kind: transport.Accept}

// BenchmarkDrain receives and accepts prefilled messages on one goroutine.
func BenchmarkDrain(b *testing.B) {
	for _, bb := range []struct {
		name string
		o    *QueueOptions
	}{
		{"plain", nil},
		{"receive256", &QueueOptions{MaxReceive: 256}},
		{"shuffle", &QueueOptions{Shuffle: true}},
		{"lease", &QueueOptions{Lease: time.Hour}},
		{"fifo", &QueueOptions{FIFO: true, Lease: time.Hour, CountsOnReturn: true}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			q := benchQueue(b, bb.o)
			r := openBench(b, q, 256)
			b.ReportAllocs()
			for left := b.N; left > 0; left -= round {
				b.StopTimer()
				n := min(left, round)
				fill(b, q, n)
				b.StartTimer()
				for n > 0 {
					ds, err := r.Receive(context.Background())
					if err != nil {
						b.Fatal(err)
					}
					for _, d := range ds {
						r.Settle(d, accept)
					}
					n -= len(ds)
				}
			}
		})
	}
}

// BenchmarkDrain8 receives on one goroutine and accepts on eight.
func BenchmarkDrain8(b *testing.B) {
	q := benchQueue(b, nil)
	r := openBench(b, q, 1024)
	var wg sync.WaitGroup
	lanes := make([]chan []*transport.Delivery, 8)
	for i := range lanes {
		lanes[i] = make(chan []*transport.Delivery, 16)
		wg.Go(func() {
			for ds := range lanes[i] {
				for _, d := range ds {
					r.Settle(d, accept)
				}
			}
		})
	}
	b.ReportAllocs()
	lane := 0
	for left := b.N; left > 0; left -= round {
		b.StopTimer()
		n := min(left, round)
		fill(b, q, n)
		b.StartTimer()
		for n > 0 {
			ds, err := r.Receive(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			n -= len(ds)
			lanes[lane%len(lanes)] <- ds
			lane++
		}
	}
	for _, l := range lanes {
		close(l)
	}
	wg.Wait()
}

func BenchmarkPublish(b *testing.B) {
	q := benchQueue(b, nil)
	b.ReportAllocs()
	fill(b, q, b.N)
}
