package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/keylanes/keylanes/transport/sqs"
)

// counts are API calls, by kind.
type counts struct {
	receive, remove, visibility, other atomic.Int64
}

// tally is counts at one moment.
type tally struct{ receive, remove, visibility, other int64 }

func (c *counts) now() tally {
	return tally{c.receive.Load(), c.remove.Load(), c.visibility.Load(), c.other.Load()}
}

func (t tally) since(b tally) tally {
	return tally{t.receive - b.receive, t.remove - b.remove, t.visibility - b.visibility, t.other - b.other}
}

func (t tally) all() int64 { return t.receive + t.remove + t.visibility + t.other }

// extra gives the calls for each 1,000 messages.
func (t tally) extra(messages int) map[string]float64 {
	per := func(n int64) float64 { return float64(n) * 1000 / float64(messages) }
	return map[string]float64{
		"calls per 1,000": per(t.all()), "receives": per(t.receive), "deletes": per(t.remove), "others": per(t.visibility + t.other),
	}
}

// counting counts each call before it is sent. It also copies the bodies of
// requests that nobody has copied: without that the SDK loses replies now and
// then, a bare loop then waits for the visibility timeout, and the comparison is
// one of luck. transport/sqs copies them itself.
type counting struct {
	next *http.Client
	*counts
}

func (c counting) Do(r *http.Request) (*http.Response, error) {
	switch op := r.Header.Get("X-Amz-Target"); {
	case strings.HasSuffix(op, ".ReceiveMessage"):
		c.receive.Add(1)
	case strings.Contains(op, ".DeleteMessage"):
		c.remove.Add(1)
	case strings.Contains(op, ".ChangeMessageVisibility"):
		c.visibility.Add(1)
	default:
		c.other.Add(1)
	}
	if r.Body != nil && r.GetBody == nil {
		b, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(b))
	}
	return c.next.Do(r)
}

// server is one SQS server, with a client whose calls are counted and one whose
// calls aren't, for filling and for looking.
type server struct {
	name    string
	client  *awssqs.Client
	counts  *counts
	outside *awssqs.Client
}

func connect(name, endpoint string) *server {
	s := &server{name: name, counts: &counts{}}
	cfg := aws.Config{
		Region:      "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""), // emulators take anything
		HTTPClient:  counting{&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, s.counts},
	}
	s.client = sqs.FromConfig(cfg, endpoint)
	cfg.HTTPClient = counting{&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, &counts{}}
	s.outside = sqs.FromConfig(cfg, endpoint)
	return s
}

// newQueue makes a queue and gives what deletes it.
func (s *server) newQueue(ctx context.Context, name string) (url string, forget func(), err error) {
	in := &awssqs.CreateQueueInput{QueueName: &name, Attributes: map[string]string{"VisibilityTimeout": "30"}}
	if strings.HasSuffix(name, ".fifo") {
		in.Attributes["FifoQueue"] = "true"
	}
	out, err := s.outside.CreateQueue(ctx, in)
	if err != nil {
		return "", nil, err
	}
	return *out.QueueUrl, func() {
		// A server that is about to be stopped; there is nothing to do about a failure.
		_, _ = s.outside.DeleteQueue(context.WithoutCancel(ctx), &awssqs.DeleteQueueInput{QueueUrl: out.QueueUrl})
	}, nil
}
