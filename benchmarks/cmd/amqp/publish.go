package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/keylanes/keylanes/benchmarks/internal/measure"
	"github.com/keylanes/keylanes/benchmarks/internal/rawamqp"
	"github.com/keylanes/keylanes/transport/amqp"
)

// publish sends durable messages; every one is confirmed.
func (b bench) publish(ctx context.Context, n, one int, datasync bool) error {
	const (
		raw, buffered      = "go-amqp pipelined, window 1000", "go-amqp pipelined, buffered"
		lanes, lanesAll    = "keylanes, 1,000 a call", "keylanes, all in one call"
		lanesTwo           = "keylanes, 1,000 a call, two goroutines"
		rawOne, lanesByOne = "go-amqp, one after the other", "keylanes, one after the other"
	)
	contender := func(name string, n int, f func(ctx context.Context, queue string) error) measure.Contender {
		return measure.Contender{Name: name, Setup: func(context.Context) (measure.Trial, error) {
			queue, forget := b.newQueue()
			return measure.Trial{Messages: n, Run: func(ctx context.Context) error { return f(ctx, queue) }, Finish: forget}, nil
		}}
	}
	title := fmt.Sprintf("publish, %d durable", n)
	if datasync {
		title += ", journal-datasync"
	}
	r, err := b.Compare(ctx, title,
		contender(raw, n, func(ctx context.Context, q string) error {
			return rawamqp.Pipelined(ctx, rawamqp.Dial, b.url, q, n, 1000, true)
		}),
		contender(buffered, n, func(ctx context.Context, q string) error {
			return rawamqp.Pipelined(ctx, rawamqp.DialBuffered, b.url, q, n, 1000, true)
		}),
		contender(lanes, n, func(ctx context.Context, q string) error { return b.send(ctx, q, n, 1000, 1) }),
		contender(lanesTwo, n, func(ctx context.Context, q string) error { return b.send(ctx, q, n, 1000, 2) }),
		contender(lanesAll, n, func(ctx context.Context, q string) error { return b.send(ctx, q, n, n, 1) }),
		contender(rawOne, one, func(ctx context.Context, q string) error {
			return rawamqp.Sequential(ctx, rawamqp.Dial, b.url, q, one, true)
		}),
		contender(lanesByOne, one, func(ctx context.Context, q string) error { return b.send(ctx, q, one, 1, 1) }),
	)
	if err != nil {
		return err
	}
	r.Table(os.Stdout, measure.Rate, measure.Cost)
	bestRaw, bestLanes := r.Fastest(raw, buffered), r.Fastest(lanesTwo, lanesAll)
	twenty := 0.0
	if datasync {
		twenty = 20
	}
	r.Ratios(os.Stdout,
		// Each call waits for its last confirmation, which the raw loop never does.
		measure.Ratio{A: lanes, B: bestRaw, Of: measure.Rate},
		measure.Ratio{A: lanesTwo, B: bestRaw, Of: measure.Rate, AtLeast: 0.9},
		measure.Ratio{A: lanesAll, B: bestRaw, Of: measure.Rate, AtLeast: 0.9},
		measure.Ratio{A: bestLanes, B: rawOne, Of: measure.Rate, AtLeast: twenty},
		measure.Ratio{A: lanesByOne, B: rawOne, Of: measure.Rate},
	)
	return nil
}

// send publishes n messages, so many a call, from so many goroutines.
func (b bench) send(ctx context.Context, queue string, n, call, from int) error {
	p, err := amqp.Publisher(b.url, queue, nil)
	if err != nil {
		return err
	}
	errs := make(chan error, from)
	for range from {
		go func() {
			var err error
			ms := messages(n / from)
			for len(ms) > 0 && err == nil {
				k := min(call, len(ms))
				err = p.Publish(ctx, ms[:k]...)
				ms = ms[k:]
			}
			errs <- err
		}()
	}
	for range from {
		err = errors.Join(err, <-errs)
	}
	return errors.Join(err, p.Close(ctx))
}
