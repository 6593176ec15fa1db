package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/benchmarks/internal/consume"
	"github.com/keylanes/keylanes/benchmarks/internal/measure"
	"github.com/keylanes/keylanes/benchmarks/internal/slowkey"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

func (b bench) slowKey(ctx context.Context) error {
	s := slowkey.Ahead{SlowOnes: 3, Instant: 200, Keys: 100, Slow: 2 * time.Second, Soon: 50 * time.Millisecond}
	r, err := b.Compare(ctx, fmt.Sprintf("%d messages of %v ahead of %d instant ones", s.SlowOnes, s.Slow, s.Instant),
		measure.Contender{Name: "keylanes ByKey(16)", Setup: s.Setup(b.beginLanes(keylanes.ByKey(16)))},
		measure.Contender{Name: "keylanes PerKey(16)", Setup: s.Setup(b.beginLanes(keylanes.PerKey(16)))},
	)
	if err != nil {
		return err
	}
	r.Table(os.Stdout)
	return nil
}

func (b bench) beginLanes(d keylanes.Dispatch) slowkey.Begin {
	return func(ctx context.Context, w *slowkey.Work, ms []transport.Message) (func() error, error) {
		queue, forget := b.newQueue()
		if err := b.fill(ctx, queue, false, ms); err != nil {
			return nil, err
		}
		src, err := amqp.Queue(b.url, queue, nil)
		if err != nil {
			return nil, err
		}
		sub := consume.Start(src, keylanes.HandlerFunc(func(_ context.Context, d *keylanes.Delivery) error {
			w.Do(d.Key)
			return nil
		}), keylanes.Options{Dispatch: d})
		return func() error { return errors.Join(sub.Stop(), forget(context.WithoutCancel(ctx))) }, nil
	}
}
