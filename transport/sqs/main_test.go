package sqs

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"go.uber.org/goleak"

	"github.com/keylanes/keylanes/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serverURL gives the endpoint of a real SQS server. Without one the test is
// skipped, except where brokers are required.
func serverURL(t testing.TB) string {
	t.Helper()
	url := os.Getenv("KEYLANES_SQS_URL")
	if url == "" {
		const why = "KEYLANES_SQS_URL isn't set: start a server with scripts/sqs.sh and set it to the URL that is printed"
		if os.Getenv("CI") == "true" || os.Getenv("KEYLANES_REQUIRE_BROKERS") == "1" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	return url
}

// newClient is a client for the server at url, whose connections end with the
// test.
func newClient(t testing.TB, url string) *awssqs.Client {
	tr := &http.Transport{MaxIdleConnsPerHost: 32}
	t.Cleanup(tr.CloseIdleConnections)
	return FromConfig(aws.Config{
		Region:      "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		HTTPClient:  &http.Client{Transport: tr},
	}, url)
}

// closeIdle closes a client's idle connections.
func closeIdle(c *awssqs.Client) {
	c.Options().HTTPClient.(*http.Client).CloseIdleConnections()
}

var queues atomic.Int64

// newQueue creates a queue of the test's own and deletes it afterwards. kind is
// "" or ".fifo".
func newQueue(t testing.TB, c *awssqs.Client, kind string, attrs map[string]string) string {
	t.Helper()
	name := strings.Map(func(r rune) rune {
		if r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '-'
	}, t.Name())
	name = fmt.Sprintf("%.40s-%d-%d%s", name, time.Now().UnixNano()%1e12, queues.Add(1), kind)
	all := map[string]string{}
	if kind == ".fifo" {
		all["FifoQueue"] = "true"
	}
	for k, v := range attrs {
		all[k] = v
	}
	out, err := c.CreateQueue(context.Background(), &awssqs.CreateQueueInput{QueueName: &name, Attributes: all})
	if err != nil {
		t.Fatalf("create queue %s: %v", name, err)
	}
	t.Cleanup(func() {
		_, _ = c.DeleteQueue(context.Background(), &awssqs.DeleteQueueInput{QueueUrl: out.QueueUrl})
	})
	return *out.QueueUrl
}

// put sends bodies to the queue, in order; group is "" on a standard queue.
func put(t testing.TB, c *awssqs.Client, url, group string, bodies ...string) {
	t.Helper()
	for len(bodies) > 0 {
		n := min(len(bodies), 10)
		in := &awssqs.SendMessageBatchInput{QueueUrl: &url}
		for i, b := range bodies[:n] {
			e := types.SendMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), MessageBody: aws.String(b)}
			if isFIFO(url) {
				e.MessageDeduplicationId = aws.String(fmt.Sprintf("%d", queues.Add(1)))
			}
			if group != "" {
				e.MessageGroupId = aws.String(group)
			}
			in.Entries = append(in.Entries, e)
		}
		out, err := c.SendMessageBatch(context.Background(), in)
		if err != nil || len(out.Failed) > 0 {
			t.Fatalf("send: %v %+v", err, out)
		}
		bodies = bodies[n:]
	}
}

// counts gives the queue's visible and invisible messages.
func counts(t testing.TB, c *awssqs.Client, url string) (visible, invisible string) {
	t.Helper()
	out, err := c.GetQueueAttributes(context.Background(), &awssqs.GetQueueAttributesInput{QueueUrl: &url,
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	if err != nil {
		t.Fatal(err)
	}
	return out.Attributes["ApproximateNumberOfMessages"], out.Attributes["ApproximateNumberOfMessagesNotVisible"]
}

// countsAfterStop is counts for what was given back just now. ElasticMQ's clock
// has milliseconds: within the same one a message still counts as invisible. And a
// lease that lapses during the stop isn't given back: by this host's clock it ends
// earlier than by the server's, by the time that its request took, 60 ms at most in
// these tests.
func countsAfterStop(t testing.TB, c *awssqs.Client, url string) (visible, invisible string) {
	t.Helper()
	<-time.After(100 * time.Millisecond)
	return counts(t, c, url)
}

// settlement is one call of Sink.Settled.
type settlement struct {
	d   *transport.Delivery
	o   transport.Outcome
	err error
}

// sink records what a receiver reports.
type sink struct {
	settled chan settlement
	mu      sync.Mutex
	lost    []*transport.Delivery
	lostErr error
	onLost  chan struct{}
}

func newSink() *sink {
	return &sink{settled: make(chan settlement, 100_000), onLost: make(chan struct{}, 100_000)}
}

func (s *sink) Settled(d *transport.Delivery, o transport.Outcome, err error) {
	s.settled <- settlement{d, o, err}
}

func (s *sink) Lost(ds []*transport.Delivery, err error) {
	s.mu.Lock()
	s.lost = append(s.lost, ds...)
	s.lostErr = err
	s.mu.Unlock()
	for range ds {
		s.onLost <- struct{}{}
	}
}

// await waits for n settlements and fails the test on one with an error.
func (s *sink) await(t testing.TB, n int) {
	t.Helper()
	for range n {
		if e := <-s.settled; e.err != nil {
			t.Fatalf("%v of %v: %v", e.o.Kind, e.d, e.err)
		}
	}
}

// open makes a source of the queue and opens it.
func open(t testing.TB, c Client, queue string, o *Options) (transport.Receiver, *sink) {
	t.Helper()
	src, err := Queue(c, queue, o)
	if err != nil {
		t.Fatal(err)
	}
	s := newSink()
	r, err := src.Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return r, s
}

// receive calls Receive until n deliveries have come.
func receive(t testing.TB, r transport.Receiver, n int) []*transport.Delivery {
	t.Helper()
	var ds []*transport.Delivery
	for len(ds) < n {
		got, err := r.Receive(t.Context())
		if err != nil {
			t.Fatalf("receive: %v", err)
		}
		ds = append(ds, got...)
	}
	return ds
}

func bodies(ds []*transport.Delivery) string {
	var b []string
	for _, d := range ds {
		b = append(b, string(d.Body))
	}
	return strings.Join(b, " ")
}

func closeNow(t testing.TB, r transport.Receiver) {
	t.Helper()
	if err := r.Close(context.Background()); err != nil {
		t.Errorf("close: %v", err)
	}
}

var (
	accept  = transport.Outcome{Kind: transport.Accept}
	giveUp  = transport.Outcome{Kind: transport.Return}
	abandon = transport.Outcome{Kind: transport.Abandon}
)

// rounds is n, or what KEYLANES_SOAK says.
func rounds(t testing.TB, n int) int {
	if s := os.Getenv("KEYLANES_SOAK"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatalf("KEYLANES_SOAK = %q: must be a number of rounds", s)
		}
	}
	return n
}
