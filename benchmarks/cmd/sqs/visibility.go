package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/benchmarks/internal/consume"
	"github.com/keylanes/keylanes/benchmarks/internal/measure"
	"github.com/keylanes/keylanes/transport/sqs"
)

// visibility counts the calls that keep 64 messages invisible, whose handlers
// take far longer than the visibility timeout.
func visibility(ctx context.Context, srv *server, held time.Duration) error {
	const n, timeout = 64, 2 * time.Second
	url, forget, err := srv.newQueue(ctx, queueName(""))
	if err != nil {
		return err
	}
	defer forget()
	if err := srv.fill(ctx, url, n); err != nil {
		return err
	}
	src, err := sqs.Queue(srv.client, url, &sqs.Options{WaitTime: time.Second, VisibilityTimeout: timeout})
	if err != nil {
		return err
	}
	var again atomic.Int64
	started, release := consume.NewCountdown(n), make(chan struct{})
	sub := consume.Start(src, keylanes.HandlerFunc(func(hctx context.Context, d *keylanes.Delivery) error {
		if d.Count > 0 {
			again.Add(1)
		}
		started.Count()
		select {
		case <-release:
		case <-hctx.Done():
			return context.Cause(hctx)
		}
		return nil
	}), keylanes.Options{Dispatch: keylanes.Workers(n)})
	err = sub.Until(ctx, started.Done())
	before := srv.counts.now()
	if err == nil {
		select {
		case <-time.After(held):
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	used := srv.counts.now().since(before)
	close(release)
	if err = errors.Join(err, sub.Stop()); err != nil {
		return err
	}
	// The bound is for 15 s; it scales with the time.
	want, verdict := measure.Judge(float64(used.visibility), 120*held.Seconds()/15, 0)
	measure.Table(os.Stdout, [][]string{
		{fmt.Sprintf("%s, %d messages held for %v, visibility timeout %v", srv.name, n, held, timeout), "visibility calls", "wanted", "result", "handed out again"},
		{"keylanes Workers(64)", strconv.FormatInt(used.visibility, 10), want, verdict, strconv.FormatInt(again.Load(), 10)},
	})
	return nil
}
