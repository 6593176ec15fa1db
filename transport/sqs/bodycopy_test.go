package sqs

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// Replies of 200 KB, thousands of times, on a real socket: none is cut. Without
// the copy of the request body one in a hundred is.
func TestServerLargeRepliesAreNeverCut(t *testing.T) {
	t.Parallel()
	c := newClient(t, serverURL(t))
	q := newQueue(t, c, "", nil)
	body := strings.Repeat("x", 20_000)
	put(t, c, q, "", body, body, body, body, body, body, body, body, body, body)
	ctx := context.Background()
	for i := range 1500 {
		out, err := c.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{QueueUrl: &q, MaxNumberOfMessages: 10, WaitTimeSeconds: 1}, perCall)
		if err != nil {
			t.Fatalf("receive %d: %v", i, err)
		}
		if len(out.Messages) != 10 {
			t.Fatalf("receive %d: %d messages", i, len(out.Messages))
		}
		in := &awssqs.ChangeMessageVisibilityBatchInput{QueueUrl: &q}
		for i := range out.Messages {
			in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: out.Messages[i].ReceiptHandle})
		}
		if back, err := c.ChangeMessageVisibilityBatch(ctx, in, perCall); err != nil || len(back.Failed) > 0 {
			t.Fatalf("give back %d: %v %v", i, err, back)
		}
	}
}
