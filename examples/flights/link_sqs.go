package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/keylanes/keylanes/transport/sqs"
)

// sqsWait is short, because a stop waits for the receive in flight.
const sqsWait = time.Second

// connectSQS makes both queues where they don't exist: an emulator starts empty.
func connectSQS(ctx context.Context, name string) (*link, error) {
	u, queue, err := queueOf(name)
	if err != nil {
		return nil, err
	}
	if err := answers(ctx, u); err != nil {
		return nil, err
	}
	user, secret := "local", "local" // emulators take anything
	if u.User != nil {
		user = u.User.Username()
		secret, _ = u.User.Password()
	}
	// Connections of its own, so that they end with the run.
	connections := &http.Transport{MaxIdleConnsPerHost: 16}
	cfg := aws.Config{
		Region:      "elasticmq",
		Credentials: credentials.NewStaticCredentialsProvider(user, secret, ""),
		HTTPClient:  &http.Client{Transport: connections},
	}
	client := sqs.FromConfig(cfg, "http://"+u.Host)
	base, fifo := strings.CutSuffix(queue, ".fifo")
	dead := base + "-dead"
	if fifo {
		dead += ".fifo"
	}
	queueURL, err := ensureQueue(ctx, client, queue)
	if err != nil {
		return nil, err
	}
	if _, err := ensureQueue(ctx, client, dead); err != nil {
		return nil, err
	}
	l := &link{name: u.Redacted(), release: connections.CloseIdleConnections}
	if l.source, err = sqs.Queue(client, queue, &sqs.Options{WaitTime: sqsWait}); err != nil {
		return nil, err
	}
	if l.publisher, err = sqs.Publisher(client, queue, nil); err != nil {
		return nil, err
	}
	if l.dead, err = sqs.Publisher(client, dead, nil); err != nil {
		return nil, err
	}
	l.left = func(ctx context.Context) (depth, error) { return sqsDepth(ctx, client, queueURL) }
	return l, nil
}

// ensureQueue gives the url of a queue, made when it isn't there.
func ensureQueue(ctx context.Context, client *awssqs.Client, name string) (string, error) {
	got, err := client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: &name})
	if err == nil {
		return aws.ToString(got.QueueUrl), nil
	}
	var none *types.QueueDoesNotExist
	if !errors.As(err, &none) {
		return "", fmt.Errorf("find queue %q: %w", name, err)
	}
	in := &awssqs.CreateQueueInput{QueueName: &name, Attributes: map[string]string{"VisibilityTimeout": "30"}}
	if strings.HasSuffix(name, ".fifo") {
		in.Attributes["FifoQueue"] = "true"
	}
	made, err := client.CreateQueue(ctx, in)
	if err != nil {
		return "", fmt.Errorf("make queue %q: %w", name, err)
	}
	return aws.ToString(made.QueueUrl), nil
}

// sqsDepth counts what waits and what is invisible.
func sqsDepth(ctx context.Context, client *awssqs.Client, queueURL string) (depth, error) {
	out, err := client.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{
		QueueUrl: &queueURL,
		AttributeNames: []types.QueueAttributeName{
			types.QueueAttributeNameApproximateNumberOfMessages,
			types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
			types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
		},
	})
	if err != nil {
		return depth{}, fmt.Errorf("count the messages of the queue: %w", err)
	}
	var d depth
	for name, v := range out.Attributes {
		n, err := strconv.Atoi(v)
		if err != nil {
			return depth{}, fmt.Errorf("count the messages of the queue: %s is %q", name, v)
		}
		if name == string(types.QueueAttributeNameApproximateNumberOfMessagesNotVisible) {
			d.invisible += n
		} else {
			d.waiting += n
		}
	}
	return d, nil
}
