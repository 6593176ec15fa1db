package amqp_test

import (
	"context"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport/amqp"
	"github.com/keylanes/keylanes/transport/transporttest"
	"github.com/keylanes/keylanes/transport/transporttest/treetest"
)

func TestConformance(t *testing.T) { transporttest.Run(t, harness(t)) }

// TestSubscriptions runs whole subscriptions on the broker.
func TestSubscriptions(t *testing.T) { treetest.Run(t, harness(t)) }

func harness(t *testing.T) transporttest.Harness {
	broker := brokerURL(t)
	return transporttest.Harness{
		New: func(t testing.TB, need transporttest.Need) *transporttest.Queue {
			name := queueName(t)
			proxy, proxied := through(t, broker)
			src, err := amqp.Queue(proxied, name, nil)
			if err != nil {
				t.Fatal(err)
			}
			pub, err := amqp.Publisher(broker, name, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				if err := pub.Close(ctx); err != nil {
					t.Error(err)
				}
			})
			q := &transporttest.Queue{Source: src, Publisher: pub, CutLink: proxy.RST}
			if need.DeadLetter {
				if q.DeadLetters, err = amqp.Queue(broker, "DLA::DLQ."+name, nil); err != nil {
					t.Fatal(err)
				}
			}
			return q
		},
		Quiet: 300 * time.Millisecond,
		Fields: transporttest.Fields{
			ID: true, ContentType: true, CorrelationID: true, ReplyTo: true, Enqueued: true,
		},
		Headers: map[string]any{
			"text": "grün", "bool": true, "bytes": []byte{0, 1, 255},
			"int8": int8(-8), "int16": int16(-16), "int32": int32(-32), "int64": int64(-64),
			"uint8": uint8(8), "uint16": uint16(16), "uint32": uint32(32), "uint64": uint64(64),
			"float32": float32(0.5), "float64": 0.25,
			"time": time.UnixMilli(1_700_000_000_123),
		},
		PublishDelay: true, PublishTTL: true,
	}
}
