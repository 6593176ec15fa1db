//go:build unix

package replicas

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
	"github.com/keylanes/keylanes/transport/sqs"
)

// broker is what differs between brokers.
type broker struct {
	// source gives a consumer process its source.
	source func(replicaConfig) (transport.Source, error)
	// open makes the queue where need be, and gives a publisher and a way to ask
	// how many messages the queue still has; everything ends with the test.
	open func(t *testing.T, url, queue string) (transport.Publisher, func(context.Context) (int64, error))
	// url is the variable that has the broker's url, start how to get one.
	url, start string
	// suffix ends the names of its queues.
	suffix string
	// freeze is how long a process has to stand still for the broker to have
	// given its messages to others.
	freeze time.Duration
	// lostCredits is how many credits of duplicates one lost process may cause.
	lostCredits int
	// reopens says that a process that stood still opens another receiver.
	reopens  bool
	messages int // of each half of a scenario
}

var brokers = map[string]broker{
	"amqp": {
		source: amqpSource, open: amqpOpen,
		url: "KEYLANES_AMQP_URL", start: "scripts/artemis.sh start; scripts/artemis.sh env",
		// The test broker gives up a silent client after 4 s.
		freeze: 5500 * time.Millisecond,
		// What was held; and what was accepted, and was in the sockets.
		lostCredits: 3,
		reopens:     true,
		messages:    3000,
	},
	"sqs": {
		source: sqsSource, open: sqsOpen,
		url: "KEYLANES_SQS_URL", start: "scripts/sqs.sh start",
		suffix: ".fifo",
		freeze: sqsVisibility + 1500*time.Millisecond,
		// A delete gives its place back only when it is confirmed.
		lostCredits: 1,
		messages:    1200,
	},
}

// brokerURL is the broker's url, or the end of the test: a run that requires
// brokers must not pass without one.
func (b broker) brokerURL(t *testing.T) string {
	t.Helper()
	v := os.Getenv(b.url)
	if v != "" {
		return v
	}
	if os.Getenv("CI") == "true" || os.Getenv("KEYLANES_REQUIRE_BROKERS") == "1" {
		t.Fatalf("%s isn't set: needs a broker (%s)", b.url, b.start)
	}
	t.Skipf("%s isn't set: needs a broker (%s)", b.url, b.start)
	return ""
}

// amqpOptions notice a lost broker well before the test broker, whose idle
// timeout is 4 s, gives up a client.
var amqpOptions = amqp.Options{Connection: amqp.Connection{IdleTimeout: 1500 * time.Millisecond}}

func amqpSource(c replicaConfig) (transport.Source, error) {
	return amqp.Queue(c.URL, c.Queue, &amqpOptions)
}

func amqpOpen(t *testing.T, url, queue string) (transport.Publisher, func(context.Context) (int64, error)) {
	p, err := amqp.Publisher(url, queue, nil)
	if err != nil {
		t.Fatal(err)
	}
	src, err := amqp.Queue(url, queue, &amqpOptions)
	if err != nil {
		t.Fatal(err)
	}
	// A receiver without credit gets nothing and no groups.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := src.Open(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(p.Close(ctx), r.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	return p, r.(transport.Depther).Depth
}

const sqsVisibility = 3 * time.Second

func sqsClient(url string) (*awssqs.Client, func()) {
	connections := &http.Transport{MaxIdleConnsPerHost: 16}
	return sqs.FromConfig(aws.Config{
		Region:      "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		HTTPClient:  &http.Client{Transport: connections},
	}, url), connections.CloseIdleConnections
}

func sqsSource(c replicaConfig) (transport.Source, error) {
	client, _ := sqsClient(c.URL)
	return sqs.Queue(client, c.Queue, &sqs.Options{VisibilityTimeout: sqsVisibility, WaitTime: time.Second})
}

func sqsOpen(t *testing.T, url, queue string) (transport.Publisher, func(context.Context) (int64, error)) {
	client, release := sqsClient(url)
	t.Cleanup(release)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	made, err := client.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: &queue, Attributes: map[string]string{
		"FifoQueue": "true", "VisibilityTimeout": fmt.Sprint(sqsVisibility.Seconds())}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := sqs.Publisher(client, queue, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, derr := client.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: made.QueueUrl})
		if err := errors.Join(p.Close(ctx), derr); err != nil {
			t.Error(err)
		}
	})
	return p, func(ctx context.Context) (int64, error) {
		out, err := client.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: made.QueueUrl,
			AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
		if err != nil {
			return 0, err
		}
		var sum int64
		for _, name := range []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages,
			types.QueueAttributeNameApproximateNumberOfMessagesNotVisible} {
			n, err := strconv.ParseInt(out.Attributes[string(name)], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			sum += n
		}
		return sum, nil
	}
}
