package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/benchmarks/internal/consume"
	"github.com/keylanes/keylanes/benchmarks/internal/measure"
	"github.com/keylanes/keylanes/transport"
)

const (
	slowKey   = "slow"
	fairLanes = 16
)

// hot is a stream in which every hundredth message is of one slow key.
type hot struct {
	messages, keys int
	slow           time.Duration // what each message of the slow key takes
	after          time.Duration // when the others are counted
}

// ahead is a burst: a few slow messages of one key, then instant ones.
type ahead struct {
	slowOnes, instant, keys int
	slow, soon              time.Duration
}

var (
	hotKey         = hot{messages: 400_000, keys: 1000, slow: 50 * time.Millisecond, after: 2 * time.Second}
	hotKeySmoke    = hot{messages: 4000, keys: 1000, slow: 5 * time.Millisecond, after: 100 * time.Millisecond}
	slowAhead      = ahead{slowOnes: 3, instant: 200, keys: 100, slow: 2 * time.Second, soon: 50 * time.Millisecond}
	slowAheadSmoke = ahead{slowOnes: 3, instant: 200, keys: 100, slow: 20 * time.Millisecond, soon: 5 * time.Millisecond}
)

// ceiling is how many of the others can be done at most, whatever the program:
// the slow key's messages fill the credit, and each that isn't done has 99
// others between itself and the next.
func (s hot) ceiling() int {
	done := int(s.after / s.slow)
	return min((credit+done)*99, s.messages/100*99)
}

func (s hot) stream() []transport.Message {
	ms := messages(s.messages, s.keys-1)
	for i := 0; i < len(ms); i += 100 {
		ms[i].Key = slowKey
	}
	return ms
}

func (s ahead) stream() []transport.Message {
	ms := make([]transport.Message, 0, s.slowOnes+s.instant)
	for range s.slowOnes {
		ms = append(ms, transport.Message{Key: slowKey})
	}
	for i := range s.instant {
		ms = append(ms, transport.Message{Key: fmt.Sprint("key-", i%s.keys)})
	}
	return ms
}

// work is the handler of both: it sleeps for the slow key and counts the others.
// It gives up when stop is closed.
type work struct {
	slow   time.Duration
	once   sync.Once
	first  chan struct{} // closed at the first start
	others atomic.Int64
	all    int64         // others there are
	done   chan struct{} // closed when all others are done
	stop   chan struct{}
}

func newWork(slow time.Duration, all int) *work {
	return &work{slow: slow, all: int64(all), first: make(chan struct{}), done: make(chan struct{}), stop: make(chan struct{})}
}

func (w *work) do(key string) {
	w.once.Do(func() { close(w.first) })
	if key != slowKey {
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

// begin starts a program that does w for all of ms, and gives what ends it.
type begin func(ctx context.Context, w *work, ms []transport.Message) (end func() error, err error)

func beginLanes(d keylanes.Dispatch) begin {
	return func(ctx context.Context, w *work, ms []transport.Message) (func() error, error) {
		q, err := filled(ctx, ms)
		if err != nil {
			return nil, err
		}
		h := keylanes.HandlerFunc(func(_ context.Context, d *keylanes.Delivery) error {
			w.do(d.Key)
			return nil
		})
		return consume.Start(q.Source(), h, keylanes.Options{Dispatch: d, Credit: credit}).Stop, nil
	}
}

// beginPool keeps at most credit messages in the pool, like a client that has
// given its broker that much credit.
func beginPool(_ context.Context, w *work, ms []transport.Message) (func() error, error) {
	ctx, cancel := context.WithCancel(context.Background())
	tokens := make(chan struct{}, credit)
	p := newPool(fairLanes, credit, func(m *transport.Message) {
		w.do(m.Key)
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

func fairness(ctx context.Context, s *measure.Settings, h hot, a ahead) error {
	programs := []struct {
		name string
		begin
	}{
		{"keylanes ByKey(16)", beginLanes(keylanes.ByKey(fairLanes))},
		{"keylanes PerKey(16)", beginLanes(keylanes.PerKey(fairLanes))},
		{"shard pool of 16", beginPool},
	}
	var hots, aheads []measure.Contender
	for _, p := range programs {
		hots = append(hots, measure.Contender{Name: p.name, Setup: h.setup(p.begin)})
		aheads = append(aheads, measure.Contender{Name: p.name, Setup: a.setup(p.begin)})
	}
	r, err := s.Compare(ctx, fmt.Sprintf("%d messages, 1 in 100 of a key of %v", h.messages, h.slow), hots...)
	if err != nil {
		return err
	}
	fmt.Printf("The others done after %v; credit %d, so no program can do more than %s.\n\n", h.after, credit, measure.Number(float64(h.ceiling())))
	r.Table(os.Stdout)
	if r, err = s.Compare(ctx, fmt.Sprintf("%d messages of %v ahead of %d instant ones", a.slowOnes, a.slow, a.instant), aheads...); err != nil {
		return err
	}
	r.Table(os.Stdout)
	return nil
}

// setup lets the program run for a while and counts.
func (s hot) setup(b begin) setup {
	return func(context.Context) (measure.Trial, error) {
		ms := s.stream()
		w := newWork(s.slow, s.messages-s.messages/100)
		end, done := func() error { return nil }, 0.0
		return measure.Trial{
			Messages: len(ms),
			Run: func(ctx context.Context) (err error) {
				if end, err = b(ctx, w, ms); err != nil {
					return err
				}
				select {
				case <-time.After(s.after):
				case <-ctx.Done():
					return ctx.Err()
				}
				done = float64(w.others.Load())
				return nil
			},
			Extra: func() map[string]float64 {
				return map[string]float64{"others done": done, "of the ceiling": done / float64(s.ceiling())}
			},
			Finish: func(context.Context) error {
				close(w.stop)
				return end()
			},
		}, nil
	}
}

// setup waits until the instant ones are done.
func (s ahead) setup(b begin) setup {
	return func(context.Context) (measure.Trial, error) {
		ms := s.stream()
		w := newWork(s.slow, s.instant)
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
					soon = s.instant
				case <-time.After(s.soon):
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
					fmt.Sprintf("instant ones done after %v", s.soon): float64(soon),
					"ms from the first start until all instant ones are done":              float64(all.Microseconds()) / 1000,
				}
			},
			Finish: func(context.Context) error {
				close(w.stop)
				return end()
			},
		}, nil
	}
}
