package sqs

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/keylanes/keylanes/internal/sqsfake"
)

// fake is a scripted endpoint in virtual time.
type fake struct {
	*testing.T
	server *sqsfake.Server
	wire   *sqsfake.Wire
	client *awssqs.Client
}

// virtual runs f in a synctest bubble with a scripted endpoint.
func virtual(t *testing.T, f func(f *fake)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(newFake(t)) })
}

func newFake(t *testing.T) *fake {
	server := sqsfake.New()
	t.Cleanup(server.Close)
	wire := sqsfake.NewWire(server)
	return &fake{T: t, server: server, wire: wire, client: FromConfig(aws.Config{
		Region:      "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		HTTPClient:  wire,
	}, "http://sqs.test")}
}

// script breaks the calls of one operation: fault gets how many of them came
// since, and gives nil for those to leave alone.
func (f *fake) script(op string, fault func(n int) sqsfake.Fault) {
	before := f.wire.Calls(op)
	f.wire.Script(func(c sqsfake.Call) sqsfake.Fault {
		if c.Op != op {
			return nil
		}
		return fault(c.N - before)
	})
}

// once breaks the first call only.
func once(fault sqsfake.Fault) func(n int) sqsfake.Fault {
	return func(n int) sqsfake.Fault {
		if n == 1 {
			return fault
		}
		return nil
	}
}

// atServer fails unless the queue has so many visible and invisible messages.
func (f *fake) atServer(queue, visible, invisible string) {
	f.Helper()
	if v, i := counts(f, f.client, queue); v != visible || i != invisible {
		f.Errorf("%s visible and %s invisible, want %s and %s", v, i, visible, invisible)
	}
}

func until(d time.Duration) time.Time { return time.Now().Add(d) }

func (f *fake) deleteQueue(url string) {
	if _, err := f.client.DeleteQueue(context.Background(), &awssqs.DeleteQueueInput{QueueUrl: &url}); err != nil {
		f.Error(err)
	}
}
