package sqs

import (
	"context"
	"fmt"
	"strconv"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/keylanes/keylanes/transport"
)

// Settle hands over how d ended: an accept is a delete, an abandon and a return
// are a change of visibility.
func (r *receiver) Settle(d *transport.Delivery, o transport.Outcome) {
	rc, ok := transport.HandleOf(d).(*receipt)
	if !ok || rc.owner != r {
		r.sink.Settled(d, o, fmt.Errorf("settling a delivery of another epoch: %w", transport.ErrLeaseLost))
		return
	}
	r.mu.Lock()
	defer r.unlock()
	var err error
	switch {
	case r.closing:
		err = fmt.Errorf("settling after the receiver was closed: %w: %w", transport.ErrClosed, transport.ErrLeaseLost)
	case rc.state != stateHeld:
		err = fmt.Errorf("settling a delivery that is settled or lost: %w", transport.ErrLeaseLost)
	case o.Kind != transport.Accept && o.Kind != transport.Abandon && o.Kind != transport.Return:
		// It stays invisible until its lease lapses: giving it back at once
		// would only bring it round again.
		r.over(rc)
		err = fmt.Errorf("outcome %v: SQS has no such thing (its redrive policy counts receives): accept, abandon or return", o.Kind)
	case !rc.lease.Live(time.Now()):
		r.over(rc)
		err = errLapsed("settling")
	default:
		rc.state, rc.outcome = stateSettled, o
		if rc.extension != extFlying { // else its reply submits it
			rc.extension = extNone
			r.submit(rc)
		}
		return
	}
	r.reports = append(r.reports, report{d: d, o: o, err: err})
}

func errLapsed(op string) error {
	return fmt.Errorf("%s: the visibility timeout has passed: %w", op, transport.ErrLeaseLost)
}

// submit queues a settlement.
func (r *receiver) submit(rc *receipt) {
	if rc.outcome.Kind == transport.Accept {
		r.deletes.add(rc, time.Time{})
	} else {
		r.changes.add(rc, time.Time{})
	}
}

// settled ends a settlement.
func (r *receiver) settled(rc *receipt, err error) {
	r.over(rc)
	if r.closing && err != nil {
		r.unconfirmed++
	}
	r.reports = append(r.reports, report{d: rc.d, o: rc.outcome, err: err})
}

// settler is what both kinds of settlement share.
type settler struct{ r *receiver }

func (s settler) taken([]*receipt)        {}
func (s settler) wanted(rc *receipt) bool { return rc.state == stateSettled }

func (s settler) lapsed(rc *receipt) {
	if s.r.dead {
		s.r.settled(rc, fmt.Errorf("closed before SQS confirmed it: %w", transport.ErrLeaseLost))
		return
	}
	s.r.settled(rc, errLapsed(rc.outcome.Kind.String()))
}

// finish decides what a reply means for one settlement.
func (s settler) finish(rc *receipt, err error) (again bool) {
	if err == nil {
		s.r.settled(rc, nil)
		return false
	}
	switch classOf(err) {
	case classGone:
		if rc.unsure {
			// An earlier call for it got no answer, and this one finds the
			// receipt used up: that call was carried out.
			s.r.settled(rc, nil)
			return false
		}
	case classRefused, classNoQueue:
	case classDenied:
		if !s.r.closing {
			return true
		}
	default:
		return true
	}
	rc.lease.Lose()
	s.r.settled(rc, fmt.Errorf("%s: %w: %w", rc.outcome.Kind, err, transport.ErrLeaseLost))
	return false
}

// deleter accepts.
type deleter struct{ settler }

func (k deleter) call(ctx context.Context, batch []*receipt) ([]error, error) {
	in := &awssqs.DeleteMessageBatchInput{QueueUrl: &k.r.url, Entries: make([]types.DeleteMessageBatchRequestEntry, len(batch))}
	for i, rc := range batch {
		in.Entries[i] = types.DeleteMessageBatchRequestEntry{Id: entryID(i), ReceiptHandle: &rc.handle}
	}
	out, err := k.r.client.DeleteMessageBatch(ctx, in, perCall)
	if err != nil {
		return nil, err
	}
	m := newMatcher(len(batch))
	for i := range out.Successful {
		m.done(out.Successful[i].Id)
	}
	m.failed(out.Failed)
	return m.errs, nil
}

// changer abandons and returns.
type changer struct{ settler }

func (k changer) call(ctx context.Context, batch []*receipt) ([]error, error) {
	now := time.Now()
	return k.r.changeVisibility(ctx, batch, func(rc *receipt) int32 {
		if rc.outcome.Kind == transport.Return {
			return 0
		}
		return int32(max(min(roundUp(rc.outcome.Delay), k.r.room(rc, now)), 0) / time.Second)
	})
}

// changeVisibility makes one call; seconds says how long each entry is to stay
// invisible.
func (r *receiver) changeVisibility(ctx context.Context, batch []*receipt, seconds func(*receipt) int32) ([]error, error) {
	in := &awssqs.ChangeMessageVisibilityBatchInput{QueueUrl: &r.url, Entries: make([]types.ChangeMessageVisibilityBatchRequestEntry, len(batch))}
	for i, rc := range batch {
		in.Entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{Id: entryID(i), ReceiptHandle: &rc.handle, VisibilityTimeout: seconds(rc)}
	}
	out, err := r.client.ChangeMessageVisibilityBatch(ctx, in, perCall)
	if err != nil {
		return nil, err
	}
	m := newMatcher(len(batch))
	for i := range out.Successful {
		m.done(out.Successful[i].Id)
	}
	m.failed(out.Failed)
	return m.errs, nil
}

// roundUp gives whole seconds, which is all that SQS knows.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// entryIDs name the entries of a call by their position in it: ids of messages
// may come twice.
var entryIDs = [maxBatch]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}

func entryID(i int) *string { return &entryIDs[i] }

// matcher brings the entries of a reply, which come in any order, back to the
// positions of the request. An entry that isn't mentioned counts as unanswered.
type matcher struct{ errs []error }

func newMatcher(n int) matcher {
	m := matcher{make([]error, n)}
	for i := range m.errs {
		m.errs[i] = errNotAnswered
	}
	return m
}

func (m matcher) done(id *string) {
	if i := m.index(id); i >= 0 {
		m.errs[i] = nil
	}
}

func (m matcher) failed(fs []types.BatchResultErrorEntry) {
	for _, f := range fs {
		if i := m.index(f.Id); i >= 0 {
			m.errs[i] = newEntryError(f)
		}
	}
}

func (m matcher) index(id *string) int {
	i, err := strconv.Atoi(str(id))
	if err != nil || i < 0 || i >= len(m.errs) {
		return -1
	}
	return i
}
