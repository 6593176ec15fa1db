package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/benchmarks/internal/consume"
	"github.com/keylanes/keylanes/benchmarks/internal/measure"
	"github.com/keylanes/keylanes/benchmarks/internal/slowkey"
	"github.com/keylanes/keylanes/transport"
)

const fairLanes = 16

var (
	hotKey         = slowkey.Hot{Messages: 400_000, Keys: 1000, Credit: credit, Slow: 50 * time.Millisecond, After: 2 * time.Second}
	hotKeySmoke    = slowkey.Hot{Messages: 4000, Keys: 1000, Credit: credit, Slow: 5 * time.Millisecond, After: 100 * time.Millisecond}
	slowAhead      = slowkey.Ahead{SlowOnes: 3, Instant: 200, Keys: 100, Slow: 2 * time.Second, Soon: 50 * time.Millisecond}
	slowAheadSmoke = slowkey.Ahead{SlowOnes: 3, Instant: 200, Keys: 100, Slow: 20 * time.Millisecond, Soon: 5 * time.Millisecond}
)

func beginLanes(d keylanes.Dispatch) slowkey.Begin {
	return func(ctx context.Context, w *slowkey.Work, ms []transport.Message) (func() error, error) {
		q, err := filled(ctx, ms)
		if err != nil {
			return nil, err
		}
		h := keylanes.HandlerFunc(func(_ context.Context, d *keylanes.Delivery) error {
			w.Do(d.Key)
			return nil
		})
		return consume.Start(q.Source(), h, keylanes.Options{Dispatch: d, Credit: credit}).Stop, nil
	}
}

// beginPool keeps at most credit messages in the pool, like a client that has
// given its broker that much credit.
func beginPool(_ context.Context, w *slowkey.Work, ms []transport.Message) (func() error, error) {
	ctx, cancel := context.WithCancel(context.Background())
	tokens := make(chan struct{}, credit)
	p := newPool(fairLanes, credit, func(m *transport.Message) {
		w.Do(m.Key)
		<-tokens
	})
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		for i := range ms {
			select {
			case tokens <- struct{}{}:
			case <-ctx.Done():
				return
			}
			if p.offer(ctx, &ms[i]) != nil {
				return
			}
		}
	}()
	return func() error {
		cancel()
		<-fed
		p.close()
		return nil
	}, nil
}

func fairness(ctx context.Context, s *measure.Settings, h slowkey.Hot, a slowkey.Ahead) error {
	programs := []struct {
		name string
		slowkey.Begin
	}{
		{"keylanes ByKey(16)", beginLanes(keylanes.ByKey(fairLanes))},
		{"keylanes PerKey(16)", beginLanes(keylanes.PerKey(fairLanes))},
		{"shard pool of 16", beginPool},
	}
	var hots, aheads []measure.Contender
	for _, p := range programs {
		hots = append(hots, measure.Contender{Name: p.name, Setup: h.Setup(p.Begin)})
		aheads = append(aheads, measure.Contender{Name: p.name, Setup: a.Setup(p.Begin)})
	}
	r, err := s.Compare(ctx, fmt.Sprintf("%d messages, 1 in 100 of a key of %v", h.Messages, h.Slow), hots...)
	if err != nil {
		return err
	}
	fmt.Printf("The others done after %v; credit %d, so no program can do more than %s.\n\n", h.After, credit, measure.Number(float64(h.Ceiling())))
	r.Table(os.Stdout)
	if r, err = s.Compare(ctx, fmt.Sprintf("%d messages of %v ahead of %d instant ones", a.SlowOnes, a.Slow, a.Instant), aheads...); err != nil {
		return err
	}
	r.Table(os.Stdout)
	return nil
}
