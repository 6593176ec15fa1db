package sqs

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/transport/transporttest"
	"github.com/keylanes/keylanes/transport/transporttest/treetest"
)

// conformance is a harness for queues of one kind; client is called once for
// each scenario.
func conformance(kind string, client func(testing.TB) *awssqs.Client) transporttest.Harness {
	const lease = 3 * time.Second
	return transporttest.Harness{
		New: func(t testing.TB, need transporttest.Need) *transporttest.Queue {
			c := client(t)
			o := &Options{WaitTime: time.Second}
			if need.ShortLease {
				o.VisibilityTimeout = lease
			}
			url := newQueue(t, c, kind, nil)
			src, err := Queue(c, url, o)
			if err != nil {
				t.Fatal(err)
			}
			pub, err := Publisher(c, queueName(url), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := pub.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
			return &transporttest.Queue{Source: src, Publisher: pub, Held: func() int {
				_, held := counts(t, c, url)
				n, err := strconv.Atoi(held)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}}
		},
		Lease: lease,
		// A receive that has begun is waited for, so a look for nothing takes as
		// long as a poll.
		Quiet:   300 * time.Millisecond,
		Timeout: 20 * time.Second,
		Fields:  transporttest.Fields{ContentType: true, CorrelationID: true, ReplyTo: true, Enqueued: true},
		Headers: map[string]any{
			"text": "grün", "bool": true, "bytes": []byte{0, 1, 255}, "int64": int64(-64), "float64": 0.25,
			"time": time.Date(2026, 5, 6, 7, 8, 9, 10, time.UTC),
		},
		PublishDelay: kind == "",
	}
}

func TestConformanceOnServer(t *testing.T) {
	url := serverURL(t)
	for _, kind := range []string{"", ".fifo"} {
		t.Run("queue"+kind, func(t *testing.T) {
			c := newClient(t, url)
			h := conformance(kind, func(testing.TB) *awssqs.Client { return c })
			h.CloseIdle = func() { closeIdle(c) }
			transporttest.Run(t, h)
		})
	}
}

// TestSubscriptionsOnServer runs whole subscriptions on ElasticMQ.
func TestSubscriptionsOnServer(t *testing.T) {
	url := serverURL(t)
	for _, kind := range []string{"", ".fifo"} {
		t.Run("queue"+kind, func(t *testing.T) {
			c := newClient(t, url)
			treetest.Run(t, conformance(kind, func(testing.TB) *awssqs.Client { return c }))
		})
	}
}

// The scripted endpoint does what AWS documents where ElasticMQ doesn't, and it
// does it in virtual time.
func TestConformanceOnFake(t *testing.T) {
	for _, kind := range []string{"", ".fifo"} {
		t.Run("queue"+kind, func(t *testing.T) {
			h := conformance(kind, func(t testing.TB) *awssqs.Client {
				server := sqsfake.New()
				t.Cleanup(server.Close)
				return FromConfig(aws.Config{
					Region:      "us-east-1",
					Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
					HTTPClient:  server,
				}, "http://sqs.test")
			})
			h.Bubble = true
			transporttest.Run(t, h)
			t.Run("subscriptions", func(t *testing.T) { treetest.Run(t, h) })
		})
	}
}
