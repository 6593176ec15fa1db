package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/keylanes/keylanes/transport"
)

// source is the template for the receivers of one queue.
type source struct {
	client Client
	queue  string // a name or a URL
	fifo   bool
	opts   Options
	epochs atomic.Uint64
}

// Queue is a source of deliveries from one SQS queue, given by its name or its
// URL. A name that ends in .fifo is a FIFO queue. Nothing is sent before Open,
// which checks the queue's settings. A *transport.OptionError names what can't
// be used.
func Queue(client Client, urlOrName string, o *Options) (transport.Source, error) {
	if err := checkQueue(client, urlOrName); err != nil {
		return nil, err
	}
	opts, err := o.check(isFIFO(urlOrName))
	if err != nil {
		return nil, err
	}
	return &source{client: client, queue: urlOrName, fifo: isFIFO(urlOrName), opts: opts}, nil
}

// Traits depend on the kind of queue only.
func (s *source) Traits() transport.Traits {
	t := transport.Traits{
		LeaseExpires: true, CountsOnReturn: true, AbandonDelay: true,
		DeadLetter: transport.DeadLetterNone, MaxReceive: maxBatch,
	}
	if s.fifo {
		t.Ordered, t.GroupsExclusive, t.Abandon = true, true, transport.AbandonGroup
	}
	return t
}

// Open finds the queue, checks its settings and begins an epoch.
func (s *source) Open(ctx context.Context, sink transport.Sink) (transport.Receiver, error) {
	if err := checkCredentials(ctx, s.client, s.opts.CallTimeout); err != nil {
		return nil, err
	}
	url, err := findQueue(ctx, s.client, s.queue, s.opts.CallTimeout)
	if err != nil {
		return nil, err
	}
	op := "open queue " + strconv.Quote(s.queue)
	cctx, cancel := context.WithTimeout(ctx, s.opts.CallTimeout)
	out, err := s.client.GetQueueAttributes(cctx, &awssqs.GetQueueAttributesInput{
		QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	}, perCall)
	cancel()
	if err != nil {
		return nil, explain(op, err)
	}
	r := newReceiver(s.client, url, s.fifo, s.opts, sink)
	if err := r.learn(ctx, out.Attributes); err != nil {
		r.cancel()
		err.Op = op
		return nil, err
	}
	r.epoch = s.epochs.Add(1)
	return r, nil
}

// checkCredentials asks for the credentials by themselves, because the SDK's
// error of a call that has none can't be told from a network's.
func checkCredentials(ctx context.Context, client Client, timeout time.Duration) error {
	c, ok := client.(interface{ Options() awssqs.Options })
	if !ok {
		return nil
	}
	p := c.Options().Credentials
	if p == nil || aws.IsCredentialsProvider(p, (*aws.AnonymousCredentials)(nil)) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := p.Retrieve(ctx); err != nil {
		return &transport.FatalError{Op: "get AWS credentials", Err: err,
			Fix: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, log in again, or give the host or pod a role"}
	}
	return nil
}

// findQueue gives the queue's URL.
func findQueue(ctx context.Context, client Client, urlOrName string, timeout time.Duration) (string, error) {
	if isURL(urlOrName) {
		return urlOrName, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out, err := client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: &urlOrName}, perCall)
	if err != nil {
		return "", explain("find queue "+strconv.Quote(urlOrName), err)
	}
	return str(out.QueueUrl), nil
}

// redrive is the part of a RedrivePolicy that matters here. AWS writes the
// number as a number, other servers as a string.
type redrive struct {
	Target string      `json:"deadLetterTargetArn"`
	Max    json.Number `json:"maxReceiveCount"`
}

// learn checks the queue's settings. Each that would surprise is an error or a
// warning that says what to change.
func (r *receiver) learn(ctx context.Context, attrs map[string]string) *transport.FatalError {
	if fifo := attrs["FifoQueue"] == "true"; fifo != r.fifo {
		return &transport.FatalError{
			Err: fmt.Errorf("the queue says FifoQueue = %v, its name says %v", fifo, r.fifo),
			Fix: "a FIFO queue's name ends in .fifo, and no other's does",
		}
	}
	r.lease = r.opts.VisibilityTimeout
	if r.lease == 0 {
		n, err := strconv.Atoi(attrs["VisibilityTimeout"])
		if err != nil || n < 1 {
			return &transport.FatalError{
				Err: fmt.Errorf("the queue's VisibilityTimeout is %q seconds: each message would be handed out again at once", attrs["VisibilityTimeout"]),
				Fix: "set the queue's VisibilityTimeout (30 is a good value), or Options.VisibilityTimeout",
			}
		}
		r.lease = time.Duration(n) * time.Second
	}
	log := r.opts.Logger.With("queue", queueName(r.url))
	// A lease counts from before its receive was sent: one that is longer than
	// its receive's wait leaves time to extend it.
	if most := max((r.lease * 2 / 3).Truncate(time.Second), time.Second); r.opts.WaitTime > most {
		log.Warn("the visibility timeout is short: receives wait less, so there are more of them. Set it to 30 s or more",
			"visibility_timeout", r.lease, "wait_time", most)
		r.opts.WaitTime = most
	}
	r.limits = transport.Limits{Lease: r.lease, LeaseMax: maxVisibility}
	if p := attrs["RedrivePolicy"]; p != "" {
		return r.learnRedrive(ctx, log.With("redrive_policy", p), p)
	}
	return nil
}

func (r *receiver) learnRedrive(ctx context.Context, log *slog.Logger, policy string) *transport.FatalError {
	var p redrive
	if err := json.Unmarshal([]byte(policy), &p); err != nil {
		log.Warn("the queue's RedrivePolicy can't be read", "error", err)
		return nil
	}
	n, err := strconv.Atoi(p.Max.String())
	if err != nil || n < 1 {
		log.Warn("the queue's RedrivePolicy has no maxReceiveCount")
		return nil
	}
	r.limits.MaxReceives = n
	switch {
	case n == 1 && !r.opts.AllowSingleReceive:
		return &transport.FatalError{
			Err: errors.New("the queue's RedrivePolicy has maxReceiveCount 1: whatever a stop or a crash gives back is dead-lettered untried"),
			Fix: "set maxReceiveCount to 5 or more, or Options.AllowSingleReceive",
		}
	case n < 5:
		log.Warn("the queue's maxReceiveCount is low: stops and crashes count as receives, so messages that nobody has tried may be dead-lettered. Set it to 5 or more")
	}
	name := p.Target[strings.LastIndexByte(p.Target, ':')+1:]
	if _, err := findQueue(ctx, r.client, name, r.opts.CallTimeout); err != nil && classify(err) == classNoQueue {
		log.Warn("the RedrivePolicy's dead-letter queue isn't there: messages that reach maxReceiveCount stay, or are lost. Create it, or change the policy", "dead_letter_queue", name)
	}
	return nil
}

// Depth asks how many messages wait on the queue: visible and delayed ones, not
// those that somebody holds. SQS counts approximately.
func (r *receiver) Depth(ctx context.Context) (int64, error) {
	names := []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesDelayed}
	ctx, cancel := context.WithTimeout(ctx, r.opts.CallTimeout)
	defer cancel()
	out, err := r.client.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: &r.url, AttributeNames: names}, perCall)
	op := "count the messages of " + strconv.Quote(queueName(r.url))
	if err != nil {
		return 0, explain(op, err)
	}
	var n int64
	for _, name := range names {
		i, err := strconv.ParseInt(out.Attributes[string(name)], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", op, err)
		}
		n += i
	}
	return n, nil
}
