package sqs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/keylanes/keylanes/transport"
)

// attempt is the id of a FIFO receive whose reply was lost. SQS answers a
// receive with the same id with the same messages; without it they, and their
// groups, would be stuck until the visibility timeout.
type attempt struct {
	id    string
	since time.Time
}

// attemptLife is how long an attempt id is used again. SQS keeps one for five
// minutes. Nothing of such a receive can have been settled: nobody has seen it.
const attemptLife = 4 * time.Minute

// pollResult is what one poll brought.
type pollResult struct {
	got      []*receipt
	reserved int
	err      error
}

// Receive makes one long poll, or several when there are Pollers, and gives
// what the first of them brings.
func (r *receiver) Receive(ctx context.Context) ([]*transport.Delivery, error) {
	var patience *time.Timer // runs while too little is granted for a poll
	var spent <-chan time.Time
	for {
		r.mu.Lock()
		if r.closing {
			r.mu.Unlock()
			return nil, fmt.Errorf("receive: %w", transport.ErrClosed)
		}
		if ctx.Err() == nil {
			r.startPolls(false)
		}
		polls := r.polls
		if polls == 0 && r.avail > 0 && patience == nil {
			patience = time.NewTimer(creditPatience)
			defer patience.Stop()
			spent = patience.C
		}
		r.mu.Unlock()

		done := ctx.Done()
		if ctx.Err() != nil {
			if polls == 0 {
				return nil, ctx.Err()
			}
			// A poll that is cancelled may take messages with it: they would
			// be invisible, and nobody's, until their timeout. So wait.
			done = nil
		}
		select {
		case res := <-r.results:
			return r.handOut(res)
		case <-r.granted:
		case <-spent:
			patience, spent = nil, nil
			r.mu.Lock()
			r.startPolls(true)
			r.mu.Unlock()
		case <-done:
		}
	}
}

// creditPatience is how long Receive waits for credit that is good for a full
// poll before it makes do with less.
const creditPatience = time.Second

// startPolls starts as many polls as the credit is good for. A receive of less
// than ten costs as much as one of ten, so it waits until ten are free, or half
// of a small credit; but not for ever, since what is held may be parked for long.
func (r *receiver) startPolls(impatient bool) {
	need := min(max(r.credit/2, 1), maxBatch)
	if impatient && r.polls == 0 && !r.closing {
		need = 1
	}
	for r.polls < r.opts.Pollers && r.avail >= need {
		n := min(r.avail, maxBatch)
		r.avail -= n
		r.reserved += n
		r.polls++
		a := r.nextAttempt()
		r.run(func() { r.poll(n, a, r.opts.WaitTime) })
	}
}

// nextAttempt gives the id of the next receive, a fresh one unless the last
// reply was lost.
func (r *receiver) nextAttempt() attempt {
	if !r.fifo {
		return attempt{}
	}
	a := r.repeat
	r.repeat = attempt{}
	if a.id == "" || time.Since(a.since) > attemptLife {
		a = attempt{id: rand.Text(), since: time.Now()}
	}
	return a
}

var (
	standardAttributes = []types.MessageSystemAttributeName{
		types.MessageSystemAttributeNameApproximateReceiveCount, types.MessageSystemAttributeNameSentTimestamp,
		types.MessageSystemAttributeNameMessageGroupId, types.MessageSystemAttributeNameAWSTraceHeader,
	}
	fifoAttributes = append(standardAttributes[:len(standardAttributes):len(standardAttributes)],
		types.MessageSystemAttributeNameSequenceNumber, types.MessageSystemAttributeNameMessageDeduplicationId)
	allAttributes = []string{"All"}
)

// poll makes one receive. It ends by its wait time; only a Close that gives up
// cancels it.
func (r *receiver) poll(n int, a attempt, wait time.Duration) {
	in := &awssqs.ReceiveMessageInput{
		QueueUrl: &r.url, MaxNumberOfMessages: int32(n),
		WaitTimeSeconds: int32(wait / time.Second), VisibilityTimeout: int32(r.lease / time.Second),
		MessageAttributeNames: allAttributes, MessageSystemAttributeNames: standardAttributes,
	}
	if r.fifo {
		in.ReceiveRequestAttemptId, in.MessageSystemAttributeNames = &a.id, fifoAttributes
	}
	ctx, cancel := context.WithTimeout(r.ctx, wait+r.opts.CallTimeout)
	sent := time.Now() // the leases count from before the request
	out, err := r.client.ReceiveMessage(ctx, in, perCall)
	cancel()

	res := pollResult{reserved: n}
	r.mu.Lock()
	if err != nil {
		if r.fifo && classify(err) == classPassing {
			r.repeat = a
		}
		res.err = r.receiveError(err)
	} else {
		res.got = r.take(out.Messages, sent)
	}
	r.mu.Unlock()
	r.results <- res
	r.changed()
}

func (r *receiver) take(ms []types.Message, sent time.Time) []*receipt {
	rcs := make([]receipt, len(ms))
	got := make([]*receipt, len(ms))
	for i := range ms {
		rc := &rcs[i]
		rc.owner, rc.handle, rc.taken, rc.lease = r, str(ms[i].ReceiptHandle), sent, transport.NewLeaseUntil(sent.Add(r.lease))
		rc.d = r.slab.New(rc.lease, rc)
		fill(rc.d, &ms[i])
		rc.d.Epoch = r.epoch
		if r.fifo {
			rc.group = rc.d.Group
		}
		r.held.add(rc)
		got[i] = rc
	}
	return got
}

// handOut gives a poll's result to the tree.
func (r *receiver) handOut(res pollResult) ([]*transport.Delivery, error) {
	r.mu.Lock()
	defer r.unlock()
	r.polls--
	r.reserved -= res.reserved
	if res.err != nil {
		r.avail += res.reserved
		return nil, res.err
	}
	ds := make([]*transport.Delivery, 0, len(res.got))
	now := time.Now()
	for _, rc := range res.got {
		if !rc.lease.Live(now) { // the process slept, or the result did
			r.over(rc)
			continue
		}
		rc.state = stateHeld
		ds = append(ds, rc.d)
	}
	r.avail += max(res.reserved-len(ds), 0)
	return ds, nil
}

// receiveError says what a failed receive means for the epoch: without its
// queue it is over, everything else may pass.
func (r *receiver) receiveError(err error) error {
	op := "receive from " + strconv.Quote(queueName(r.url))
	e := explain(op, err)
	if classify(err) == classNoQueue {
		return e
	}
	var fatal *transport.FatalError
	if errors.As(e, &fatal) {
		return &transport.TemporaryError{Op: op, Err: fatal}
	}
	return &transport.TemporaryError{Op: op, Err: err}
}
