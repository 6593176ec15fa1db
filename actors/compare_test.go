package actors_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// The main benchmark: what a delivery costs from the receive to the settlement,
// with a handler that does nothing, on a queue that was filled before. Beside
// the tree run two twins made of goroutines and channels on the same receiver:
// one drives the same planner, the other only hashes the key to a lane. They
// show what the actors cost, and what order through failures costs.

const (
	compareLanes  = 8
	compareCredit = 256
)

// filled gives a queue that holds n messages of the given number of keys.
func filled(tb testing.TB, n, keys int) *memory.Queue {
	q, err := memory.New(nil).Queue("bench", &memory.QueueOptions{MaxReceive: 64})
	if err != nil {
		tb.Fatal(err)
	}
	names := make([]string, keys)
	for i := range names {
		names[i] = "key-" + strconv.Itoa(i)
	}
	x := uint64(88172645463325252)
	ms := make([]transport.Message, 0, 1024)
	p := q.Publisher()
	body := make([]byte, 64)
	for i := range n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		ms = append(ms, transport.Message{Key: names[x%uint64(keys)], Body: body})
		if len(ms) == cap(ms) || i == n-1 {
			if err := p.Publish(context.Background(), ms...); err != nil {
				tb.Fatal(err)
			}
			ms = ms[:0]
		}
	}
	return q
}

// cost is what a run took, on the clock and of the processors. The second is
// steadier on a machine that does other things too.
type cost struct{ wall, cpu time.Duration }

// clock reads both.
var clock costClock

type costClock struct{}

func (costClock) now() (c cost) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) == nil {
		c.cpu = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	c.wall = time.Since(epochOfClock)
	return c
}

func (k costClock) since(s cost) cost {
	n := k.now()
	return cost{wall: n.wall - s.wall, cpu: n.cpu - s.cpu}
}

var epochOfClock = time.Now()

// countdown is closed when n handlers have ended.
type countdown struct {
	left atomic.Int64
	done chan struct{}
}

func newCountdown(n int) *countdown {
	c := &countdown{done: make(chan struct{})}
	c.left.Store(int64(n))
	return c
}

func (c *countdown) Handle(context.Context, *transport.Delivery) error {
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
	return nil
}

// runTree runs the real thing.
func runTree(tb testing.TB, q *memory.Queue, n int, d actors.Dispatch) cost {
	return runTreeWith(tb, q, n, d, compareCredit)
}

func runTreeWith(tb testing.TB, q *memory.Queue, n int, d actors.Dispatch, credit int) cost {
	c := newCountdown(n)
	props, err := actors.Subscription(q.Source(), c, &actors.Options{Dispatch: d, Credit: credit, Logger: quiet(), DeadLetter: q.Publisher()})
	if err != nil {
		tb.Fatal(err)
	}
	return timeProps(tb, q, c, props)
}

// timeProps says what it costs until c has counted down.
func timeProps(tb testing.TB, q *memory.Queue, c *countdown, props *actor.Props) cost {
	sys := system()
	start := clock.now()
	pid := sys.Root.Spawn(props)
	<-c.done
	took := clock.since(start)
	if err := actors.Drain(context.Background(), sys.Root, pid); err != nil {
		tb.Fatal(err)
	}
	sys.Shutdown()
	if s := q.Stats(); s.Ready != 0 || s.InFlight != 0 {
		tb.Fatalf("left over: %+v", s)
	}
	return took
}

// twinSink gives credit back in steps, like the tree.
type twinSink struct {
	rcv   transport.Receiver
	freed atomic.Int64
}

func (s *twinSink) Settled(*transport.Delivery, transport.Outcome, error) {
	if s.freed.Add(1) >= compareCredit/4 {
		if n := s.freed.Swap(0); n > 0 {
			s.rcv.Grant(int(n))
		}
	}
}

func (s *twinSink) Lost([]*transport.Delivery, error) {}

func openTwin(tb testing.TB, q *memory.Queue) (transport.Receiver, *twinSink) {
	s := &twinSink{}
	rcv, err := q.Source().Open(context.Background(), s)
	if err != nil {
		tb.Fatal(err)
	}
	s.rcv = rcv
	rcv.Grant(compareCredit)
	return rcv, s
}

// runHashTwin hashes each delivery to a lane's channel, 32 at a time.
func runHashTwin(tb testing.TB, q *memory.Queue, n int) cost {
	c := newCountdown(n)
	start := clock.now()
	rcv, _ := openTwin(tb, q)
	var lanes [compareLanes]chan []*transport.Delivery
	var wg sync.WaitGroup
	for i := range lanes {
		lanes[i] = make(chan []*transport.Delivery, compareCredit)
		wg.Go(func() {
			for ds := range lanes[i] {
				for _, d := range ds {
					if c.Handle(context.Background(), d) == nil {
						rcv.Settle(d, transport.Outcome{Kind: transport.Accept})
					}
				}
			}
		})
	}
	go func() {
		left := n
		var parts [compareLanes][]*transport.Delivery
		for left > 0 {
			ds, err := rcv.Receive(context.Background())
			if err != nil {
				panic(err)
			}
			left -= len(ds)
			for _, d := range ds {
				i := xxhash.Sum64String(d.Key) % compareLanes
				parts[i] = append(parts[i], d)
				if len(parts[i]) == plan.MaxRun {
					lanes[i] <- parts[i]
					parts[i] = nil
				}
			}
			for i := range parts {
				if len(parts[i]) > 0 {
					lanes[i] <- parts[i]
					parts[i] = nil
				}
			}
		}
		for i := range lanes {
			close(lanes[i])
		}
	}()
	<-c.done
	took := clock.since(start)
	wg.Wait()
	closeTwin(tb, rcv)
	return took
}

// runPlannerTwin drives the planner with channels in place of actors.
func runPlannerTwin(tb testing.TB, q *memory.Queue, n int) cost {
	c := newCountdown(n)
	start := clock.now()
	rcv, sink := openTwin(tb, q)
	_ = sink
	var lanes [compareLanes]chan *plan.Run
	inbox := make(chan any, 1024)
	var wg sync.WaitGroup
	for i := range lanes {
		lanes[i] = make(chan *plan.Run, 2)
		wg.Go(func() {
			for r := range lanes[i] {
				for {
					at, ok := r.Claim()
					if !ok {
						break
					}
					d := r.Items[at].D
					if c.Handle(context.Background(), d) == nil {
						rcv.Settle(d, transport.Outcome{Kind: transport.Accept})
					}
					r.Finished = at + 1
				}
				inbox <- r
			}
		})
	}
	wg.Go(func() {
		left := n
		for left > 0 {
			ds, err := rcv.Receive(context.Background())
			if err != nil {
				panic(err)
			}
			left -= len(ds)
			items := make([]plan.Item, len(ds))
			for i, d := range ds {
				items[i] = plan.Item{D: d, Key: d.Key}
			}
			inbox <- items
		}
	})
	go func() {
		p := plan.New(plan.Config{Mode: plan.ByKey, Lanes: compareLanes, Traits: q.Source().Traits(), HasTarget: true})
		left, now := n, int64(0)
		for left > 0 {
			var es []plan.Effect
			now++
			switch m := (<-inbox).(type) {
			case []plan.Item:
				es = p.Arrive(now, m)
			case *plan.Run:
				left -= m.Finished
				es = p.Done(now, m)
			}
			for i := range es {
				if es[i].Kind == plan.Lend {
					lanes[es[i].Lane] <- es[i].Run
				}
			}
		}
		for i := range lanes {
			close(lanes[i])
		}
	}()
	<-c.done
	took := clock.since(start)
	wg.Wait()
	closeTwin(tb, rcv)
	return took
}

func closeTwin(tb testing.TB, rcv transport.Receiver) {
	if err := rcv.Close(context.Background()); err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkCompare runs each of them in turn, several times, and reports the
// medians: ns a message, and the tree's ratio to its twins.
func BenchmarkCompare(b *testing.B) {
	const n, rounds = 200_000, 7
	for _, keys := range []int{64, 1000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			for range b.N {
				kinds := []string{"bykey", "perkey", "planner", "hash"}
				took, cpu := map[string][]float64{}, map[string][]float64{}
				for range rounds {
					for _, kind := range kinds {
						q := filled(b, n, keys)
						var d cost
						switch kind {
						case "bykey":
							d = runTree(b, q, n, actors.ByKey(compareLanes))
						case "perkey":
							d = runTree(b, q, n, actors.PerKey(compareLanes))
						case "planner":
							d = runPlannerTwin(b, q, n)
						case "hash":
							d = runHashTwin(b, q, n)
						}
						took[kind] = append(took[kind], float64(d.wall.Nanoseconds())/n)
						cpu[kind] = append(cpu[kind], float64(d.cpu.Nanoseconds())/n)
					}
				}
				median := map[string]float64{}
				for _, kind := range kinds {
					slices.Sort(took[kind])
					slices.Sort(cpu[kind])
					median[kind] = took[kind][rounds/2]
					b.ReportMetric(median[kind], kind+"-ns/msg")
					b.ReportMetric(cpu[kind][rounds/2], kind+"-cpu-ns/msg")
				}
				b.ReportMetric(median["bykey"]/median["planner"], "bykey/planner")
				b.ReportMetric(median["bykey"]/median["hash"], "bykey/hash")
				b.ReportMetric(median["perkey"]/median["bykey"], "perkey/bykey")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// BenchmarkTree is the tree alone, for profiles.
func BenchmarkTree(b *testing.B) {
	q := filled(b, b.N, 64)
	b.ReportAllocs()
	b.ResetTimer()
	runTree(b, q, b.N, actors.ByKey(compareLanes))
}
