package sqs

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/keylanes/keylanes/transport"
)

// Client is the part of the SDK's *sqs.Client that this package calls. Make one
// with the SDK's sqs.New or sqs.NewFromConfig, or with FromConfig.
//
// Each call is made with options of this package's own: the request body is
// copied (see doc.go) and the SDK doesn't retry, because what may be retried,
// and how, differs between a receive, a delete and an extension. Everything
// else of the client (endpoint, credentials, region, HTTP client, middleware)
// is used as it is.
type Client interface {
	GetQueueUrl(ctx context.Context, in *awssqs.GetQueueUrlInput, optFns ...func(*awssqs.Options)) (*awssqs.GetQueueUrlOutput, error)
	GetQueueAttributes(ctx context.Context, in *awssqs.GetQueueAttributesInput, optFns ...func(*awssqs.Options)) (*awssqs.GetQueueAttributesOutput, error)
	ReceiveMessage(ctx context.Context, in *awssqs.ReceiveMessageInput, optFns ...func(*awssqs.Options)) (*awssqs.ReceiveMessageOutput, error)
	DeleteMessageBatch(ctx context.Context, in *awssqs.DeleteMessageBatchInput, optFns ...func(*awssqs.Options)) (*awssqs.DeleteMessageBatchOutput, error)
	ChangeMessageVisibilityBatch(ctx context.Context, in *awssqs.ChangeMessageVisibilityBatchInput, optFns ...func(*awssqs.Options)) (*awssqs.ChangeMessageVisibilityBatchOutput, error)
	SendMessageBatch(ctx context.Context, in *awssqs.SendMessageBatchInput, optFns ...func(*awssqs.Options)) (*awssqs.SendMessageBatchOutput, error)
}

// FromConfig makes a client of a loaded AWS configuration. endpoint is empty
// for AWS; "http://127.0.0.1:9324" is a local ElasticMQ.
func FromConfig(cfg aws.Config, endpoint string) *awssqs.Client {
	return awssqs.NewFromConfig(cfg, func(o *awssqs.Options) {
		if endpoint != "" {
			o.BaseEndpoint = aws.String(endpoint)
		}
	})
}

// perCall is what each call of this package changes in the client's options.
func perCall(o *awssqs.Options) {
	o.Retryer = aws.NopRetryer{}
	o.HTTPClient = bodyCopy{o.HTTPClient}
}

// bodyCopy sends a copy of each request's body. The SDK's own body is closed
// when the SDK rewinds or finishes a request, and net/http then may close the
// connection while the reply is still being read: "use of closed network
// connection" in the middle of a reply with status 200, and up to ten messages
// that nobody got are invisible. A larger read buffer only makes that rarer.
type bodyCopy struct{ next awssqs.HTTPClient }

// Do sends r with its body replaced by a copy.
func (c bodyCopy) Do(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return c.next.Do(r)
	}
	b, err := io.ReadAll(r.Body)
	_ = r.Body.Close() // it was read to its end: nothing can be lost
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(b))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	r.ContentLength = int64(len(b))
	return c.next.Do(r)
}

// queueName gives the last part of a queue's URL, or the name itself.
func queueName(urlOrName string) string {
	return urlOrName[strings.LastIndexByte(urlOrName, '/')+1:]
}

// isFIFO tells the two kinds of queue apart: AWS reserves the suffix.
func isFIFO(urlOrName string) bool { return strings.HasSuffix(urlOrName, ".fifo") }

func isURL(urlOrName string) bool { return strings.Contains(urlOrName, "://") }

// checkQueue refuses what can't be a queue before anything is sent.
func checkQueue(client Client, urlOrName string) error {
	if client == nil {
		return &transport.OptionError{Field: "client", Value: "nil", Want: "must be an SQS client, for example sqs.FromConfig(cfg, \"\")"}
	}
	name := queueName(urlOrName)
	base := strings.TrimSuffix(name, ".fifo")
	ok := base != "" && len(name) <= 80 && (isURL(urlOrName) || name == urlOrName)
	for _, c := range base {
		ok = ok && (c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z')
	}
	if !ok {
		return &transport.OptionError{Field: "queue", Value: urlOrName,
			Want: "must be a queue's name (1 to 80 letters, digits, - and _, FIFO queues end in .fifo) or its URL"}
	}
	return checkRegion(client, urlOrName)
}

// checkRegion refuses a URL of another region: the SDK doesn't use the URL's
// host, and AWS would only answer that there is no such queue.
func checkRegion(client Client, url string) error {
	c, ok := client.(interface{ Options() awssqs.Options })
	if !ok || !isURL(url) {
		return nil
	}
	o := c.Options()
	host, _, _ := strings.Cut(url[strings.Index(url, "://")+3:], "/")
	parts := strings.Split(host, ".")
	if o.BaseEndpoint != nil || len(parts) < 4 || parts[0] != "sqs" || parts[2] != "amazonaws" || parts[1] == o.Region {
		return nil
	}
	return &transport.OptionError{Field: "queue", Value: url,
		Want: "is in region " + parts[1] + " but the client is for region \"" + o.Region + "\": load the configuration with config.WithRegion(\"" + parts[1] + "\")"}
}
