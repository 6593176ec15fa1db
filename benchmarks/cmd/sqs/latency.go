package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/benchmarks/internal/consume"
	"github.com/keylanes/keylanes/benchmarks/internal/measure"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/sqs"
)

const linger = 10 * time.Millisecond

// stopwatch times deliveries from the handler's end to the confirmed delete.
type stopwatch struct {
	mu    sync.Mutex
	ended map[*transport.Delivery]time.Time
	took  []float64 // ms
	*consume.Countdown
}

func newStopwatch(n int) *stopwatch {
	return &stopwatch{ended: map[*transport.Delivery]time.Time{}, Countdown: consume.NewCountdown(n)}
}

// Handle implements keylanes.Handler.
func (w *stopwatch) Handle(_ context.Context, d *keylanes.Delivery) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended[d] = time.Now()
	return nil
}

func (w *stopwatch) settled(d *transport.Delivery) {
	w.mu.Lock()
	w.took = append(w.took, float64(time.Since(w.ended[d]).Nanoseconds())/1e6)
	delete(w.ended, d)
	w.mu.Unlock()
	w.Count()
}

// trickle publishes n messages of 512 bytes, one every so often, from as many
// goroutines as that takes: a slow publisher must not slow the rate.
func (s *server) trickle(ctx context.Context, url string, n int, every time.Duration) error {
	p, err := sqs.Publisher(s.outside, url, nil)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make(chan error, n)
	tick := time.NewTicker(every)
	defer tick.Stop()
	body := make([]byte, 512)
	for i := range body {
		body[i] = 'x'
	}
	for range n {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		wg.Go(func() {
			if err := p.Publish(ctx, transport.Message{Body: body}); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	return errors.Join(<-errs, p.Close(ctx))
}

// latency says how long a settlement takes when few messages come: the linger,
// and one call.
func latency(ctx context.Context, srv *server, span time.Duration) error {
	url, forget, err := srv.newQueue(ctx, queueName(""))
	if err != nil {
		return err
	}
	defer forget()
	const every = 50 * time.Millisecond
	n := int(span / every)
	call, err := srv.oneCall(ctx, url, n, every)
	if err != nil {
		return err
	}
	src, err := sqs.Queue(srv.client, url, &sqs.Options{WaitTime: time.Second})
	if err != nil {
		return err
	}
	w := newStopwatch(n)
	sub := consume.Start(consume.OnSettled(src, w.settled), w, keylanes.Options{Dispatch: keylanes.ByKey(8)})
	err = srv.trickle(ctx, url, n, every)
	if err == nil {
		err = sub.Until(ctx, w.Done())
	}
	if err = errors.Join(err, sub.Stop()); err != nil {
		return err
	}
	ms := func(vs []float64, q float64) string { return measure.Number(measure.Quantile(vs, q)) }
	want, verdict := measure.Judge(measure.Quantile(w.took, 0.99), float64(linger.Milliseconds())+measure.Quantile(call, 0.99), 0)
	measure.Table(os.Stdout, [][]string{
		{fmt.Sprintf("%s, %d messages, 20 a second", srv.name, n), "p50 ms", "p99 ms", "wanted", "result"},
		{"one delete, by the bare SDK", ms(call, 0.5), ms(call, 0.99), "", ""},
		{"keylanes, handler's end to confirmed delete", ms(w.took, 0.5), ms(w.took, 0.99), want + ": the linger and one call", verdict},
	})
	return nil
}

// oneCall times n deletes by the bare SDK at the same rate.
func (s *server) oneCall(ctx context.Context, url string, n int, every time.Duration) ([]float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	published := make(chan error, 1)
	go func() { published <- s.trickle(ctx, url, n, every) }()
	var took []float64
	for len(took) < n {
		ms, err := s.receive(ctx, url, nil)
		if err != nil {
			return nil, err
		}
		for i := range ms {
			began := time.Now()
			if err := s.deleteBatch(ctx, url, ms[i:i+1]); err != nil {
				return nil, err
			}
			took = append(took, float64(time.Since(began).Nanoseconds())/1e6)
		}
	}
	return took, <-published
}
