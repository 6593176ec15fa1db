package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/benchmarks/internal/consume"
	"github.com/keylanes/keylanes/benchmarks/internal/measure"
	"github.com/keylanes/keylanes/benchmarks/internal/rawamqp"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

// drainQueue consumes n messages of a queue and accepts each. It includes the
// connection's start and end: every accept is with the broker when it returns.
type drainQueue func(ctx context.Context, queue string, n int) error

func (b bench) receiveBoth(ctx context.Context, n int, durable string) error {
	switch durable {
	case "true", "false":
		return b.receive(ctx, n, durable == "true")
	case "both":
		return errors.Join(b.receive(ctx, n, false), b.receive(ctx, n, true))
	default:
		return fmt.Errorf("-durable %q: must be true, false or both", durable)
	}
}

func (b bench) receive(ctx context.Context, n int, durable bool) error {
	kind := "non-durable"
	if durable {
		kind = "durable"
	}
	const (
		raw256, raw1000         = "go-amqp, credit 256", "go-amqp, credit 1000"
		buffered256, buffered1k = "go-amqp buffered, credit 256", "go-amqp buffered, credit 1000"
		bare256, bare1000       = "bare transport, credit 256", "bare transport, credit 1000"
		lanes256, lanes1000     = "keylanes ByKey(8), credit 256", "keylanes ByKey(8), credit 1000"
	)
	contender := func(name string, f drainQueue) measure.Contender {
		return measure.Contender{Name: name, Setup: b.preloaded(n, durable, f)}
	}
	r, err := b.Compare(ctx, fmt.Sprintf("receive, %d %s", n, kind),
		contender(raw256, b.raw(rawamqp.Dial, 256, 0)),
		contender(lanes256, b.lanes(256)),
		contender(buffered256, b.raw(rawamqp.DialBuffered, 256, 64)),
		contender(bare256, b.bare(256)),
		contender(raw1000, b.raw(rawamqp.Dial, 1000, 0)),
		contender(lanes1000, b.lanes(1000)),
		contender(buffered1k, b.raw(rawamqp.DialBuffered, 1000, 128)),
		contender(bare1000, b.bare(1000)),
	)
	if err != nil {
		return err
	}
	r.Table(os.Stdout, measure.Rate, measure.Cost)
	bestLanes, bestRaw := r.Fastest(lanes256, lanes1000), r.Fastest(raw256, raw1000)
	r.Ratios(os.Stdout,
		measure.Ratio{A: lanes256, B: raw256, Of: measure.Cost, AtMost: 0.75},
		measure.Ratio{A: lanes256, B: raw256, Of: measure.Rate, AtLeast: 1.3},
		measure.Ratio{A: lanes1000, B: raw1000, Of: measure.Cost, AtMost: 0.75},
		measure.Ratio{A: lanes1000, B: raw1000, Of: measure.Rate, AtLeast: 1.3},
		measure.Ratio{A: bestLanes, B: bestRaw, Of: measure.Cost, AtMost: 0.75, Note: "each side's fastest"},
		measure.Ratio{A: bestLanes, B: bestRaw, Of: measure.Rate, AtLeast: 1.3, Note: "each side's fastest"},
		measure.Ratio{A: lanes256, B: buffered256, Of: measure.Cost, AtMost: 1.15},
		measure.Ratio{A: lanes1000, B: buffered1k, Of: measure.Cost, AtMost: 1.15},
		measure.Ratio{A: lanes256, B: bare256, Of: measure.Cost, AtMost: 1.15},
		measure.Ratio{A: lanes1000, B: bare1000, Of: measure.Cost, AtMost: 1.15},
	)
	return nil
}

// preloaded fills a queue of its own before the clock starts.
func (b bench) preloaded(n int, durable bool, f drainQueue) func(context.Context) (measure.Trial, error) {
	ms := messages(n)
	return func(ctx context.Context) (measure.Trial, error) {
		queue, forget := b.newQueue()
		return measure.Trial{
			Messages: n,
			Run:      func(ctx context.Context) error { return f(ctx, queue, n) },
			Finish:   forget,
		}, b.fill(ctx, queue, durable, ms)
	}
}

func (b bench) raw(dial rawamqp.Dialer, credit, step int) drainQueue {
	return func(ctx context.Context, queue string, n int) error {
		return rawamqp.Receive(ctx, dial, b.url, queue, n, credit, step)
	}
}

func (b bench) lanes(credit int) drainQueue {
	return func(ctx context.Context, queue string, n int) error {
		src, err := amqp.Queue(b.url, queue, nil)
		if err != nil {
			return err
		}
		h := consume.NewCountdown(n)
		sub := consume.Start(src, h, keylanes.Options{Dispatch: keylanes.ByKey(8), Credit: credit})
		err = sub.Until(ctx, h.Done())
		return errors.Join(err, sub.Stop(), h.Exactly())
	}
}

// bare is the loop on the transport's receiver alone: the same socket and the
// same settlements, without keys, lanes and supervision.
func (b bench) bare(credit int) drainQueue {
	return func(ctx context.Context, queue string, n int) error {
		src, err := amqp.Queue(b.url, queue, nil)
		if err != nil {
			return err
		}
		s := &bareSink{step: int64(credit / 4), done: consume.NewCountdown(n)}
		r, err := src.Open(ctx, s)
		if err != nil {
			return err
		}
		s.receiver = r
		r.Grant(credit)
		for got := 0; got < n; {
			ds, err := r.Receive(ctx)
			if err != nil {
				return errors.Join(err, r.Close(ctx))
			}
			for _, d := range ds {
				r.Settle(d, transport.Outcome{Kind: transport.Accept})
			}
			got += len(ds)
		}
		select {
		case <-s.done.Done():
		case <-ctx.Done():
		}
		return errors.Join(ctx.Err(), r.Close(ctx), s.done.Exactly())
	}
}

// bareSink gives credit back in steps, and counts what has gone well.
type bareSink struct {
	receiver transport.Receiver
	step     int64
	freed    atomic.Int64
	done     *consume.Countdown
}

func (s *bareSink) Settled(_ *transport.Delivery, _ transport.Outcome, err error) {
	if s.freed.Add(1) >= s.step {
		if n := s.freed.Swap(0); n > 0 {
			s.receiver.Grant(int(n))
		}
	}
	if err == nil {
		s.done.Count()
	}
}

func (s *bareSink) Lost([]*transport.Delivery, error) {}
