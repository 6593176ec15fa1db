// Package slowkey holds two streams with one slow key: what matters is how many
// messages of other keys are done meanwhile.
package slowkey

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keylanes/keylanes/benchmarks/internal/measure"
	"github.com/keylanes/keylanes/transport"
)

// Key is the slow one.
const Key = "slow"

// Hot is a stream in which every hundredth message is of one slow key.
type Hot struct {
	Messages, Keys int
	Credit         int
	Slow           time.Duration // what each message of the slow key takes
	After          time.Duration // when the others are counted
}

// Ahead is a burst: a few slow messages of one key, then instant ones.
type Ahead struct {
	SlowOnes, Instant, Keys int
	Slow, Soon              time.Duration
}

// Ceiling is how many of the others can be done at most, whatever the program:
// the slow key's messages fill the credit, and each that isn't done has 99
// others between itself and the next.
func (s Hot) Ceiling() int {
	done := int(s.After / s.Slow)
	return min((s.Credit+done)*99, s.Messages/100*99)
}

func (s Hot) stream() []transport.Message {
	ms := make([]transport.Message, s.Messages)
	x := uint64(88172645463325252)
	for i := range ms {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		ms[i].Key = fmt.Sprint("key-", x%uint64(s.Keys-1))
		if i%100 == 0 {
			ms[i].Key = Key
		}
	}
	return ms
}

func (s Ahead) stream() []transport.Message {
	ms := make([]transport.Message, 0, s.SlowOnes+s.Instant)
	for range s.SlowOnes {
		ms = append(ms, transport.Message{Key: Key})
	}
	for i := range s.Instant {
		ms = append(ms, transport.Message{Key: fmt.Sprint("key-", i%s.Keys)})
	}
	return ms
}

// Work is the handler of both: it sleeps for the slow key and counts the others.
// It gives up when stop is closed.
type Work struct {
	slow   time.Duration
	once   sync.Once
	first  chan struct{} // closed at the first start
	others atomic.Int64
	all    int64         // others there are
	done   chan struct{} // closed when all others are done
	stop   chan struct{}
}

func newWork(slow time.Duration, all int) *Work {
	return &Work{slow: slow, all: int64(all), first: make(chan struct{}), done: make(chan struct{}), stop: make(chan struct{})}
}

// Do does the work of one message of the given key.
func (w *Work) Do(key string) {
	w.once.Do(func() { close(w.first) })
	if key != Key {
		if w.others.Add(1) == w.all {
			close(w.done)
		}
		return
	}
	t := time.NewTimer(w.slow)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.stop:
	}
}

// Begin starts a program that does w for all of ms, and gives what ends it.
type Begin func(ctx context.Context, w *Work, ms []transport.Message) (end func() error, err error)

// Setup lets the program run for a while and counts.
func (s Hot) Setup(b Begin) func(context.Context) (measure.Trial, error) {
	return func(context.Context) (measure.Trial, error) {
		ms := s.stream()
		w := newWork(s.Slow, s.Messages-s.Messages/100)
		end, done := func() error { return nil }, 0.0
		return measure.Trial{
			Messages: len(ms),
			Run: func(ctx context.Context) (err error) {
				if end, err = b(ctx, w, ms); err != nil {
					return err
				}
				select {
				case <-time.After(s.After):
				case <-ctx.Done():
					return ctx.Err()
				}
				done = float64(w.others.Load())
				return nil
			},
			Extra: func() map[string]float64 {
				return map[string]float64{"others done": done, "of the ceiling": done / float64(s.Ceiling())}
			},
			Finish: func(context.Context) error {
				close(w.stop)
				return end()
			},
		}, nil
	}
}

// Setup waits until the instant ones are done.
func (s Ahead) Setup(b Begin) func(context.Context) (measure.Trial, error) {
	return func(context.Context) (measure.Trial, error) {
		ms := s.stream()
		w := newWork(s.Slow, s.Instant)
		end, soon, all := func() error { return nil }, 0, time.Duration(0)
		return measure.Trial{
			Messages: len(ms),
			Run: func(ctx context.Context) (err error) {
				if end, err = b(ctx, w, ms); err != nil {
					return err
				}
				select {
				case <-w.first:
				case <-ctx.Done():
					return ctx.Err()
				}
				began := time.Now()
				select {
				case <-w.done:
					soon = s.Instant
				case <-time.After(s.Soon):
					soon = int(w.others.Load())
				}
				select {
				case <-w.done:
				case <-ctx.Done():
					return ctx.Err()
				}
				all = time.Since(began)
				return nil
			},
			Extra: func() map[string]float64 {
				return map[string]float64{
					fmt.Sprintf("instant ones done after %v", s.Soon):         float64(soon),
					"ms from the first start until all instant ones are done": float64(all.Microseconds()) / 1000,
				}
			},
			Finish: func(context.Context) error {
				close(w.stop)
				return end()
			},
		}, nil
	}
}
