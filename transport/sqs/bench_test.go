package sqs

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/transport"
)

// BenchmarkAgainstLoops consumes a queue with loops of the bare SDK and with a
// receiver, in turn, in one process: one pass of each is one operation. Metrics
// are medians; "x-" ones are medians of the ratios of a pass to the loop of the
// same operation. It needs a server (KEYLANES_SQS_URL); fauxqs has no FIFO
// queues worth the name, so run FIFO on ElasticMQ only.
//
//	go test -run '^$' -bench AgainstLoops/standard -benchtime 9x ./transport/sqs
//
// KEYLANES_BENCH_MESSAGES sets the messages of a pass (default 1,000).
func BenchmarkAgainstLoops(b *testing.B) {
	url := os.Getenv("KEYLANES_SQS_URL")
	if url == "" {
		b.Skip("KEYLANES_SQS_URL isn't set: start a server with scripts/sqs.sh")
	}
	n := 1000
	if s := os.Getenv("KEYLANES_BENCH_MESSAGES"); s != "" {
		if _, err := fmt.Sscan(s, &n); err != nil {
			b.Fatal(err)
		}
	}
	for name, kind := range map[string]string{"standard": "", "fifo": ".fifo"} {
		b.Run(name, func(b *testing.B) {
			plain := newClient(b, url)
			wire := sqsfake.NewWire(plain.Options().HTTPClient)
			c := awssqs.New(plain.Options(), func(o *awssqs.Options) { o.HTTPClient = wire })
			q := newQueue(b, c, kind, nil)
			var single, batched, ours []pass
			for b.Loop() {
				single = append(single, measure(b, wire, c, q, n, loopSingle))
				batched = append(batched, measure(b, wire, c, q, n, loopBatched))
				ours = append(ours, measure(b, wire, c, q, n, loopReceiver))
			}
			b.ReportMetric(median(single, rate), "single-msg/s")
			b.ReportMetric(median(batched, rate), "batched-msg/s")
			b.ReportMetric(median(ours, rate), "msg/s")
			b.ReportMetric(ratios(ours, single, rate), "x-single")
			b.ReportMetric(ratios(ours, batched, rate), "x-batched")
			b.ReportMetric(median(ours, cpu), "cpu-µs/msg")
			b.ReportMetric(ratios(ours, batched, cpu), "x-batched-cpu")
			b.ReportMetric(median(ours, calls), "calls/1000")
		})
	}
}

// pass is one consumption of n messages.
type pass struct {
	n         int
	took, cpu time.Duration
	calls     int
}

func rate(p pass) float64  { return float64(p.n) / p.took.Seconds() }
func cpu(p pass) float64   { return float64(p.cpu.Microseconds()) / float64(p.n) }
func calls(p pass) float64 { return float64(p.calls) * 1000 / float64(p.n) }

func median(ps []pass, of func(pass) float64) float64 {
	vs := make([]float64, len(ps))
	for i, p := range ps {
		vs[i] = of(p)
	}
	slices.Sort(vs)
	return vs[len(vs)/2]
}

func ratios(a, b []pass, of func(pass) float64) float64 {
	vs := make([]float64, len(a))
	for i := range a {
		vs[i] = of(a[i]) / of(b[i])
	}
	slices.SortFunc(vs, cmp.Compare[float64])
	return vs[len(vs)/2]
}

// measure fills the queue and times loop.
func measure(b *testing.B, wire *sqsfake.Wire, c *awssqs.Client, q string, n int, loop func(*testing.B, *awssqs.Client, string, int)) pass {
	b.StopTimer()
	defer b.StartTimer()
	p, err := Publisher(c, q, &PublisherOptions{GroupBatches: true})
	if err != nil {
		b.Fatal(err)
	}
	body := []byte(strings.Repeat("x", 512))
	ms := make([]transport.Message, n)
	for i := range ms {
		ms[i].Body = body
		if isFIFO(q) {
			ms[i].Key = fmt.Sprint("g", i%100)
		}
	}
	if err := p.Publish(context.Background(), ms...); err != nil {
		b.Fatal(err)
	}
	before, used, began := wire.Total(), cpuTime(b), time.Now()
	loop(b, c, q, n)
	return pass{n: n, took: time.Since(began), cpu: cpuTime(b) - used, calls: wire.Total() - before}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func loopSingle(b *testing.B, c *awssqs.Client, q string, n int) {
	for done := 0; done < n; {
		out, err := c.ReceiveMessage(context.Background(), &awssqs.ReceiveMessageInput{QueueUrl: &q, MaxNumberOfMessages: 10, WaitTimeSeconds: 1})
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range out.Messages {
			if _, err := c.DeleteMessage(context.Background(), &awssqs.DeleteMessageInput{QueueUrl: &q, ReceiptHandle: m.ReceiptHandle}); err != nil {
				b.Fatal(err)
			}
			done++
		}
	}
}

func loopBatched(b *testing.B, c *awssqs.Client, q string, n int) {
	for done := 0; done < n; {
		out, err := c.ReceiveMessage(context.Background(), &awssqs.ReceiveMessageInput{QueueUrl: &q, MaxNumberOfMessages: 10, WaitTimeSeconds: 1})
		if err != nil {
			b.Fatal(err)
		}
		if len(out.Messages) == 0 {
			continue
		}
		in := &awssqs.DeleteMessageBatchInput{QueueUrl: &q}
		for i, m := range out.Messages {
			in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: m.ReceiptHandle})
		}
		if del, err := c.DeleteMessageBatch(context.Background(), in); err != nil || len(del.Failed) > 0 {
			b.Fatal(err, del)
		}
		done += len(out.Messages)
	}
}

// granter gives credit back as a pump does.
type granter struct {
	r    atomic.Pointer[receiver]
	done atomic.Int64
	want int64
	all  chan struct{}
	b    *testing.B
}

func (g *granter) Settled(_ *transport.Delivery, _ transport.Outcome, err error) {
	if err != nil {
		g.b.Error(err)
	}
	g.r.Load().Grant(1)
	if g.done.Add(1) == g.want {
		close(g.all)
	}
}

func (g *granter) Lost(_ []*transport.Delivery, err error) { g.b.Error(err) }

func loopReceiver(b *testing.B, c *awssqs.Client, q string, n int) {
	src, err := Queue(c, q, &Options{WaitTime: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	g := &granter{want: int64(n), all: make(chan struct{}), b: b}
	r, err := src.Open(context.Background(), g)
	if err != nil {
		b.Fatal(err)
	}
	g.r.Store(r.(*receiver))
	r.Grant(256)
	for got := 0; got < n; {
		ds, err := r.Receive(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		for _, d := range ds {
			r.Settle(d, accept)
		}
		got += len(ds)
	}
	<-g.all
	if err := r.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}
