package main

import (
	"context"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/keylanes/keylanes/benchmarks/internal/consume"
	"github.com/keylanes/keylanes/benchmarks/internal/measure"
	"github.com/keylanes/keylanes/transport"
)

// pool is what one writes by hand: a goroutine and a channel for each shard, and
// a hash of the key that chooses between them. There is no broker, nothing is
// settled, and a handler's error is handled nowhere: it is the floor, not an
// alternative.
type pool struct {
	shards []chan *transport.Message
	wg     sync.WaitGroup
}

func newPool(shards, buffer int, handle func(*transport.Message)) *pool {
	p := &pool{shards: make([]chan *transport.Message, shards)}
	for i := range p.shards {
		ch := make(chan *transport.Message, buffer)
		p.shards[i] = ch
		p.wg.Go(func() {
			for m := range ch {
				handle(m)
			}
		})
	}
	return p
}

// offer waits until the message's shard has room, or ctx ends.
func (p *pool) offer(ctx context.Context, m *transport.Message) error {
	select {
	case p.shards[xxhash.Sum64String(m.Key)%uint64(len(p.shards))] <- m:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pool) close() {
	for _, ch := range p.shards {
		close(ch)
	}
	p.wg.Wait()
}

func poolTrial(n int, feed func(ctx context.Context, p *pool) error) measure.Trial {
	h := consume.NewCountdown(n)
	var p *pool
	return measure.Trial{
		Messages: n,
		Run: func(ctx context.Context) error {
			p = newPool(lanes, credit, func(*transport.Message) { h.Count() })
			if err := feed(ctx, p); err != nil {
				return err
			}
			select {
			case <-h.Done():
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Finish: func(context.Context) error {
			p.close()
			return h.Exactly()
		},
	}
}

// poolPrefilled takes the messages from a slice.
func poolPrefilled(n, keys int) setup {
	return func(context.Context) (measure.Trial, error) {
		ms := messages(n, keys)
		return poolTrial(n, func(ctx context.Context, p *pool) error {
			for i := range ms {
				if err := p.offer(ctx, &ms[i]); err != nil {
					return err
				}
			}
			return nil
		}), nil
	}
}

// poolPublishing takes them from a channel, into which another goroutine puts
// them one by one.
func poolPublishing(n, keys int) setup {
	return func(context.Context) (measure.Trial, error) {
		ms := messages(n, keys)
		return poolTrial(n, func(ctx context.Context, p *pool) error {
			queue := make(chan *transport.Message, credit)
			go func() {
				defer close(queue)
				for i := range ms {
					select {
					case queue <- &ms[i]:
					case <-ctx.Done():
						return
					}
				}
			}()
			for m := range queue {
				if err := p.offer(ctx, m); err != nil {
					return err
				}
			}
			return ctx.Err()
		}), nil
	}
}
