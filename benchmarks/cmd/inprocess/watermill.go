package main

import (
	"context"
	"strconv"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/keylanes/keylanes/benchmarks/internal/consume"
	"github.com/keylanes/keylanes/benchmarks/internal/measure"
)

const topic = "bench"

// watermillTrial runs a router with one handler, without middleware. Its
// GoChannel hands every message to a goroutine of its own, so there is no order;
// published with BlockPublishUntilSubscriberAck they come in order, one at a
// time.
func watermillTrial(n int, c gochannel.Config, before, beside func(*gochannel.GoChannel) error) (measure.Trial, error) {
	logger := watermill.NopLogger{}
	pubsub := gochannel.NewGoChannel(c, logger)
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return measure.Trial{}, err
	}
	h := consume.NewCountdown(n)
	router.AddConsumerHandler("bench", topic, pubsub, func(*message.Message) error {
		h.Count()
		return nil
	})
	if before != nil {
		if err := before(pubsub); err != nil {
			return measure.Trial{}, err
		}
	}
	ended := make(chan error, 1)
	return measure.Trial{
		Messages: n,
		Run: func(ctx context.Context) error {
			go func() { ended <- router.Run(context.Background()) }()
			if beside != nil {
				<-router.Running() // what is published before a subscriber is there, is lost
				if err := beside(pubsub); err != nil {
					return err
				}
			}
			select {
			case <-h.Done():
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Finish: func(context.Context) error {
			if err := router.Close(); err != nil {
				return err
			}
			if err := <-ended; err != nil {
				return err
			}
			if err := pubsub.Close(); err != nil {
				return err
			}
			return h.Exactly()
		},
	}, nil
}

func watermillMessages(n, keys int) []*message.Message {
	ms := make([]*message.Message, n)
	for i, m := range messages(n, keys) {
		ms[i] = message.NewMessage(strconv.Itoa(i), m.Body)
		ms[i].Metadata.Set("key", m.Key)
	}
	return ms
}

func watermillPrefilled(n, keys int) setup {
	return func(context.Context) (measure.Trial, error) {
		return watermillTrial(n, gochannel.Config{OutputChannelBuffer: credit, Persistent: true}, func(p *gochannel.GoChannel) error {
			return p.Publish(topic, watermillMessages(n, keys)...)
		}, nil)
	}
}

func watermillPublishing(n, keys int, inOrder bool) setup {
	return func(context.Context) (measure.Trial, error) {
		ms := watermillMessages(n, keys)
		c := gochannel.Config{OutputChannelBuffer: credit, BlockPublishUntilSubscriberAck: inOrder}
		return watermillTrial(n, c, nil, func(p *gochannel.GoChannel) error {
			for _, m := range ms {
				if err := p.Publish(topic, m); err != nil {
					return err
				}
			}
			return nil
		})
	}
}
