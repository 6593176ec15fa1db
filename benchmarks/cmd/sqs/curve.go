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
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/sqs"
)

// curve counts the calls for each 1,000 messages when they come more slowly than
// they could be received, by rate and linger.
func curve(ctx context.Context, srv *server, span time.Duration) error {
	lingers := []time.Duration{-1, 5 * time.Millisecond, 10 * time.Millisecond}
	rows := [][]string{{srv.name + ", calls per 1,000 messages (receives + deletes)", "no linger", "linger 5 ms", "linger 10 ms"}}
	for _, rate := range []int{10, 50, 200, 500} {
		row := []string{fmt.Sprintf("%d messages a second", rate)}
		for _, l := range lingers {
			t, n, err := srv.atRate(ctx, rate, span, l)
			if err != nil {
				return err
			}
			e := t.extra(n)
			row = append(row, fmt.Sprintf("%s (%s + %s)", measure.Number(e["calls per 1,000"]), measure.Number(e["receives"]), measure.Number(e["deletes"])))
		}
		rows = append(rows, row)
	}
	measure.Table(os.Stdout, rows)
	return nil
}

func (s *server) atRate(ctx context.Context, rate int, span time.Duration, linger time.Duration) (tally, int, error) {
	n := int(float64(rate) * span.Seconds())
	url, forget, err := s.newQueue(ctx, queueName(""))
	if err != nil {
		return tally{}, n, err
	}
	defer forget()
	src, err := sqs.Queue(s.client, url, &sqs.Options{WaitTime: time.Second, Linger: linger})
	if err != nil {
		return tally{}, n, err
	}
	settled := consume.NewCountdown(n)
	before := s.counts.now()
	sub := consume.Start(consume.OnSettled(src, func(*transport.Delivery) { settled.Count() }),
		keylanes.HandlerFunc(func(context.Context, *keylanes.Delivery) error { return nil }),
		keylanes.Options{Dispatch: keylanes.Workers(8)})
	err = s.trickle(ctx, url, n, time.Second/time.Duration(rate))
	if err == nil {
		err = sub.Until(ctx, settled.Done())
	}
	used := s.counts.now().since(before)
	return used, n, errors.Join(err, sub.Stop())
}
