package main

import (
	"context"
	"fmt"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/benchmarks/internal/consume"
	"github.com/keylanes/keylanes/benchmarks/internal/measure"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

type setup = func(context.Context) (measure.Trial, error)

func byKey(n int) keylanes.Dispatch  { return keylanes.ByKey(n) }
func perKey(n int) keylanes.Dispatch { return keylanes.PerKey(n) }

// messages gives n messages of random keys, the same ones each time.
func messages(n, keys int) []transport.Message {
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprint("key-", i)
	}
	body := make([]byte, 64)
	ms := make([]transport.Message, n)
	x := uint64(88172645463325252)
	for i := range ms {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		ms[i] = transport.Message{Key: names[x%uint64(keys)], Body: body}
	}
	return ms
}

func queue() (*memory.Queue, error) { return memory.New(nil).Queue("bench", nil) }

func filled(ctx context.Context, ms []transport.Message) (*memory.Queue, error) {
	q, err := queue()
	if err != nil {
		return nil, err
	}
	return q, q.Publisher().Publish(ctx, ms...)
}

// lanesTrial consumes q until all n are handled; publish, if there is one, runs
// beside it.
func lanesTrial(q *memory.Queue, d keylanes.Dispatch, n int, publish func(context.Context) error) measure.Trial {
	h := consume.NewCountdown(n)
	var sub *consume.Subscription
	return measure.Trial{
		Messages: n,
		Run: func(ctx context.Context) error {
			sub = consume.Start(q.Source(), h, keylanes.Options{Dispatch: d, Credit: credit})
			if publish != nil {
				if err := publish(ctx); err != nil {
					return err
				}
			}
			return sub.Until(ctx, h.Done())
		},
		Finish: func(context.Context) error {
			if err := sub.Stop(); err != nil {
				return err
			}
			if st := q.Stats(); st.Ready != 0 || st.InFlight != 0 {
				return fmt.Errorf("left over: %+v", st)
			}
			return h.Exactly()
		},
	}
}

func lanesPrefilled(d keylanes.Dispatch, n, keys int) setup {
	return func(ctx context.Context) (measure.Trial, error) {
		q, err := filled(ctx, messages(n, keys))
		return lanesTrial(q, d, n, nil), err
	}
}

// lanesPublishing publishes one message a call, each confirmed.
func lanesPublishing(d keylanes.Dispatch, n, keys int) setup {
	return func(context.Context) (measure.Trial, error) {
		q, err := queue()
		if err != nil {
			return measure.Trial{}, err
		}
		ms := messages(n, keys)
		p := q.Publisher()
		return lanesTrial(q, d, n, func(ctx context.Context) error {
			for i := range ms {
				if err := p.Publish(ctx, ms[i]); err != nil {
					return err
				}
			}
			return nil
		}), nil
	}
}
