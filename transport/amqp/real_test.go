package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

// The gate on system calls: settled one by one, under load.
func TestSystemCalls(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	const n = 20_000
	publish(t, broker, queue, &amqp.PublisherOptions{NonDurable: true}, make([]transport.Message, n)...)
	r, s := open(t, broker, queue, nil)
	r.Grant(256)
	for left := n; left > 0; {
		ds := receive(t, r, 1)
		for _, d := range ds {
			r.Settle(d, transport.Outcome{Kind: transport.Accept})
			r.Grant(1)
		}
		left -= len(ds)
	}
	for range n {
		if o := s.outcome(t); o.err != nil {
			t.Fatal(o.err)
		}
	}
	reads, writes := amqp.SystemCalls(r)
	t.Logf("%.3f reads and %.3f writes a message", float64(reads)/n, float64(writes)/n)
	if reads > n*3/10 || writes > n/2 {
		t.Errorf("%d reads and %d writes for %d messages", reads, writes, n)
	}
	closeNow(t, r)
}

// A lone settlement isn't held back for company.
func TestLoneSettlementLeavesAtOnce(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	publish(t, broker, queue, nil, numbered(20)...)
	r, s := open(t, broker, queue, nil)
	r.Grant(20)
	var took []time.Duration
	for _, d := range receive(t, r, 20) {
		began := time.Now()
		accept(t, r, s, d)
		took = append(took, time.Since(began))
	}
	closeNow(t, r)
	slices.Sort(took)
	if took[10] > 10*time.Millisecond {
		t.Errorf("half of them took over %v", took[10])
	}
}

// rawSend sends a message as it is, by the client alone.
func rawSend(t *testing.T, broker, queue string, ms ...*goamqp.Message) {
	t.Helper()
	ctx := testCtx(t)
	c, err := goamqp.Dial(ctx, broker, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ses, err := c.NewSession(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := ses.NewSender(ctx, queue, &goamqp.SenderOptions{TargetCapabilities: []string{"queue"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		if err := out.Send(ctx, m, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// Messages of every shape arrive, are settled, and leave the order alone.
func TestOddMessages(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	empty, long := "", strings.Repeat("g", 10<<10)
	large := make([]byte, 5<<20)
	for i := range large {
		large[i] = byte(i * 31)
	}
	props := map[string]any{
		"nil": nil, "bool": true, "i8": int8(1), "i16": int16(1), "i32": int32(1), "i64": int64(1), "u8": uint8(1), "u16": uint16(1),
		"u32": uint32(1), "u64": uint64(1), "f32": float32(1), "f64": 1.5, "s": "s", "b": []byte{1},
		"uuid": goamqp.UUID{9}, "t": time.UnixMilli(5),
	}
	ms := []*goamqp.Message{
		{Data: [][]byte{[]byte("no header, no properties")}},
		{Properties: &goamqp.MessageProperties{GroupID: &empty}, Data: [][]byte{{}}},
		{Properties: &goamqp.MessageProperties{GroupID: &long}, Value: "text"},
		{Header: &goamqp.MessageHeader{Durable: true, Priority: 4}, Data: [][]byte{large}},
		{Value: map[string]any{"a": int64(1)}},
		{Value: int64(7)},
		{Value: goamqp.Null{}},
		{Sequence: [][]any{{int64(1), "two"}}},
		{Data: [][]byte{[]byte("a"), []byte("b")}},
		{Properties: &goamqp.MessageProperties{MessageID: goamqp.UUID{1}, CorrelationID: []byte{2}}, ApplicationProperties: props, Value: []byte("bin")},
	}
	rawSend(t, broker, queue, ms...)
	r, s := open(t, broker, queue, nil)
	r.Grant(len(ms))
	ds := receive(t, r, len(ms))
	want := []string{"no header, no properties", "", "text", string(large), "", "", "", "", "ab", "bin"}
	for i, d := range ds {
		if string(d.Body) != want[i] {
			t.Errorf("message %d has %d bytes: %.40q", i, len(d.Body), d.Body)
		}
		if _, ok := d.Native.(*goamqp.Message); !ok || d.Count != 0 {
			t.Errorf("message %d: native %T, count %d", i, d.Native, d.Count)
		}
	}
	if ds[1].Key != "" || ds[2].Key != long {
		t.Error("the group ids changed")
	}
	if ds[9].ID != (goamqp.UUID{1}).String() || ds[9].CorrelationID != "02" {
		t.Errorf("ids %q and %q", ds[9].ID, ds[9].CorrelationID)
	}
	for k, v := range props {
		if got, ok := ds[9].Headers[k]; !ok || !reflect.DeepEqual(got, v) {
			t.Errorf("property %q is %#v, not %#v", k, got, v)
		}
	}
	accept(t, r, s, ds...)
	closeNow(t, r)
}

// Two replicas on one queue: the broker pins each group to one of them, and what
// the one that closes held goes to the other, in order.
func TestGroupsAcrossReceivers(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	a, sa := open(t, broker, queue, nil)
	b, sb := open(t, broker, queue, nil)
	a.Grant(1000)
	b.Grant(1000)
	const each = 40
	publish(t, broker, queue, nil, numbered(7*each)...) // 7 groups
	inA, inB := drain(t, a), drain(t, b)
	owners := map[string]int{}
	for _, d := range inA {
		owners[d.Key] |= 1
	}
	for _, d := range inB {
		owners[d.Key] |= 2
	}
	if len(inA)+len(inB) != 7*each || len(inA) == 0 || len(inB) == 0 {
		t.Fatalf("%d and %d deliveries", len(inA), len(inB))
	}
	for k, o := range owners {
		if o == 3 {
			t.Errorf("group %s is with both", k)
		}
	}
	accept(t, a, sa, inA[:len(inA)/2]...)
	closeNow(t, a)
	moved := receive(t, b, len(inA)-len(inA)/2)
	if got, want := bodies(moved), bodies(inA[len(inA)/2:]); !slices.Equal(got, want) {
		t.Errorf("took over %v instead of %v", got, want)
	}
	accept(t, b, sb, append(inB, moved...)...)
	closeNow(t, b)
	empty(t, broker, queue)
}

// drain takes what comes until nothing does for a while.
func drain(t *testing.T, r transport.Receiver) []*transport.Delivery {
	t.Helper()
	var all []*transport.Delivery
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		ds, err := r.Receive(ctx)
		cancel()
		all = append(all, ds...)
		if errors.Is(err, context.DeadlineExceeded) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A link that idles longer than every idle timeout lives, and flows at once.
func TestIdleLinkLives(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	r, s := open(t, broker, queue, &amqp.Options{Connection: amqp.Connection{IdleTimeout: 500 * time.Millisecond}})
	r.Grant(1)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if ds, err := r.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, %v", ds, err)
	}
	publish(t, broker, queue, nil, numbered(1)...)
	accept(t, r, s, receive(t, r, 1)...)
	closeNow(t, r)
}

// However an epoch ends, nothing of it stays: not its receiver, which would be
// found by the sink that it holds, no goroutine, no memory. Not parallel: the
// memory and the goroutines of other tests would count.
//
// A few of the last epochs may be reachable for a while, from timers that were
// stopped and that the runtime hasn't swept yet.
func TestReattachLeaksNothing(t *testing.T) {
	broker, queue := brokerURL(t), queueName(t)
	publish(t, broker, queue, nil, numbered(50)...)
	proxy, proxied := through(t, broker)
	src, err := amqp.Queue(proxied, queue, nil)
	if err != nil {
		t.Fatal(err)
	}
	var sinks []weak.Pointer[reattachSink]
	cycle := func(i int) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		s := new(reattachSink)
		sinks = append(sinks, weak.Make(s))
		r, err := src.Open(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		r.Grant(20)
		receive(t, r, 1)
		switch i % 3 {
		case 0:
			proxy.RST()
			_ = endOf(t, r, 5*time.Second)
		case 1:
			proxy.FIN()
		}
		_ = r.Close(ctx)
	}
	measure := func() (goroutines int, heap uint64, live int) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		for _, s := range sinks {
			if s.Value() != nil {
				live++
			}
		}
		return runtime.NumGoroutine(), m.HeapAlloc, live
	}
	for i := range 20 {
		cycle(i)
	}
	g0, h0, l0 := measure()
	n := rounds(t, 60)
	for i := range n {
		cycle(i)
	}
	g1, h1, l1 := measure()
	t.Logf("%d reattaches: goroutines %d to %d, heap %d to %d KiB, receivers alive %d to %d", n, g0, g1, h0>>10, h1>>10, l0, l1)
	if g1 > g0+10 || h1 > h0+4<<20 || l1 > 20 {
		t.Error("an epoch that is over stays in memory")
	}
}

// reattachSink is small, and its own: what holds the receiver holds it.
type reattachSink struct{ settled atomic.Int64 }

func (s *reattachSink) Settled(*transport.Delivery, transport.Outcome, error) { s.settled.Add(1) }
func (s *reattachSink) Lost([]*transport.Delivery, error)                     {}

// Many at once, started and stopped.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	broker := brokerURL(t)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			src, err := amqp.Queue(broker, fmt.Sprintf("%s.%d", queueName(t), i%10), nil)
			if err != nil {
				t.Error(err)
				return
			}
			r, err := src.Open(testCtx(t), newSink())
			if err != nil {
				t.Error(err)
				return
			}
			r.Grant(10)
			if err := r.Close(testCtx(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
