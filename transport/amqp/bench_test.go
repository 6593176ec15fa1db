package amqp_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

// cpu is what this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// preload fills a queue with n messages of 512 B in 64 groups.
func preload(b *testing.B, url, queue string, n int) {
	b.Helper()
	p, err := amqp.Publisher(url, queue, &amqp.PublisherOptions{NonDurable: os.Getenv("DURABLE") == ""})
	if err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 512)
	for n > 0 {
		ms := make([]transport.Message, min(n, 5000))
		for i := range ms {
			ms[i] = transport.Message{Key: fmt.Sprint("g", i%64), Body: body}
		}
		if err := p.Publish(context.Background(), ms...); err != nil {
			b.Fatal(err)
		}
		n -= len(ms)
	}
	if err := p.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}

func report(b *testing.B, began time.Time, used time.Duration) {
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "msg/s")
	b.ReportMetric(float64((cpu()-used).Nanoseconds())/float64(b.N), "cpu-ns/msg")
}

// BenchmarkReceiveRaw is the plain client loop: receive, accept, with credit by
// the client.
func BenchmarkReceiveRaw(b *testing.B) {
	url := brokerURL(b)
	queue := "app.bench.raw." + fmt.Sprint(time.Now().UnixNano())
	forget(b, url, queue)
	preload(b, url, queue, b.N)
	ctx := context.Background()
	c, err := goamqp.Dial(ctx, url, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	s, err := c.NewSession(ctx, nil)
	if err != nil {
		b.Fatal(err)
	}
	r, err := s.NewReceiver(ctx, queue, &goamqp.ReceiverOptions{Credit: 256, SourceCapabilities: []string{"queue"}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	began, used := time.Now(), cpu()
	for range b.N {
		m, err := r.Receive(ctx, nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := r.AcceptMessage(ctx, m); err != nil {
			b.Fatal(err)
		}
	}
	report(b, began, used)
	b.StopTimer()
}

// countSink grants what was settled.
type countSink struct {
	r    transport.Receiver
	left atomic.Int64
	done chan struct{}
	b    *testing.B
}

func (s *countSink) Settled(_ *transport.Delivery, _ transport.Outcome, err error) {
	if err != nil {
		s.b.Error(err)
	}
	s.r.Grant(1)
	if s.left.Add(-1) == 0 {
		close(s.done)
	}
}
func (s *countSink) Lost([]*transport.Delivery, error) {}

// BenchmarkReceive is the same by this transport.
func BenchmarkReceive(b *testing.B) {
	url := brokerURL(b)
	queue := "app.bench.own." + fmt.Sprint(time.Now().UnixNano())
	forget(b, url, queue)
	preload(b, url, queue, b.N)
	src, err := amqp.Queue(url, queue, nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	s := &countSink{done: make(chan struct{}), b: b}
	s.left.Store(int64(b.N))
	if s.r, err = src.Open(ctx, s); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	began, used := time.Now(), cpu()
	s.r.Grant(256)
	for n := 0; n < b.N; {
		ds, err := s.r.Receive(ctx)
		if err != nil {
			b.Fatal(err)
		}
		for _, d := range ds {
			s.r.Settle(d, transport.Outcome{Kind: transport.Accept})
		}
		n += len(ds)
	}
	<-s.done
	report(b, began, used)
	reads, writes := amqp.SystemCalls(s.r)
	b.ReportMetric(float64(reads)/float64(b.N), "reads/msg")
	b.ReportMetric(float64(writes)/float64(b.N), "writes/msg")
	b.StopTimer()
	if err := s.r.Close(ctx); err != nil {
		b.Fatal(err)
	}
}

// forget deletes a benchmark's queue: enough of them fill the broker.
func forget(b *testing.B, url, queue string) {
	b.Cleanup(func() { manage(b, url, "broker", "destroyQueue", fmt.Sprintf(`[%q, true]`, queue)) })
}

const publishBatch = 1000

// BenchmarkPublishRaw is the best loop on the plain client: sends one after the
// other, outcomes awaited beside it.
func BenchmarkPublishRaw(b *testing.B) {
	url := brokerURL(b)
	queue := "app.bench.praw." + fmt.Sprint(time.Now().UnixNano())
	forget(b, url, queue)
	ctx := context.Background()
	c, err := goamqp.Dial(ctx, url, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	s, err := c.NewSession(ctx, nil)
	if err != nil {
		b.Fatal(err)
	}
	out, err := s.NewSender(ctx, queue, &goamqp.SenderOptions{TargetCapabilities: []string{"queue"}})
	if err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 512)
	receipts := make(chan goamqp.SendReceipt, publishBatch)
	done := make(chan struct{})
	b.ReportAllocs()
	b.ResetTimer()
	began, used := time.Now(), cpu()
	go func() {
		defer close(done)
		for r := range receipts {
			if st, err := r.Wait(ctx); err != nil {
				b.Error(err)
			} else if _, ok := st.(*goamqp.StateAccepted); !ok {
				b.Errorf("%T", st)
			}
		}
	}()
	for i := range b.N {
		group := fmt.Sprint("g", i%64)
		r, err := out.SendWithReceipt(ctx, &goamqp.Message{
			Header:     &goamqp.MessageHeader{Durable: os.Getenv("DURABLE") != "", Priority: 4},
			Properties: &goamqp.MessageProperties{GroupID: &group},
			Data:       [][]byte{body},
		}, nil)
		if err != nil {
			b.Fatal(err)
		}
		receipts <- r
	}
	close(receipts)
	<-done
	report(b, began, used)
}

// BenchmarkPublish is the same by this transport, 1000 messages a call.
func BenchmarkPublish(b *testing.B) {
	url := brokerURL(b)
	queue := "app.bench.pown." + fmt.Sprint(time.Now().UnixNano())
	forget(b, url, queue)
	p, err := amqp.Publisher(url, queue, &amqp.PublisherOptions{NonDurable: os.Getenv("DURABLE") == ""})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	body := make([]byte, 512)
	b.ReportAllocs()
	b.ResetTimer()
	began, used := time.Now(), cpu()
	for n := 0; n < b.N; n += publishBatch {
		ms := make([]transport.Message, min(publishBatch, b.N-n))
		for i := range ms {
			ms[i] = transport.Message{Key: fmt.Sprint("g", i%64), Body: body}
		}
		if err := p.Publish(ctx, ms...); err != nil {
			b.Fatal(err)
		}
	}
	report(b, began, used)
	b.StopTimer()
	if err := p.Close(ctx); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkPublishOneByOne waits for each confirmation.
func BenchmarkPublishOneByOne(b *testing.B) {
	url := brokerURL(b)
	queue := "app.bench.pone." + fmt.Sprint(time.Now().UnixNano())
	forget(b, url, queue)
	p, err := amqp.Publisher(url, queue, nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	m := transport.Message{Body: make([]byte, 512)}
	began, used := time.Now(), cpu()
	for b.Loop() {
		if err := p.Publish(ctx, m); err != nil {
			b.Fatal(err)
		}
	}
	report(b, began, used)
	if err := p.Close(ctx); err != nil {
		b.Fatal(err)
	}
}
