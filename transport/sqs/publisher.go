package sqs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/keylanes/keylanes/transport"
)

// PublisherOptions of a Publisher. The zero value, and nil, mean the defaults.
type PublisherOptions struct {
	// GroupBatches lets a call to a FIFO queue carry several messages of one
	// group. It is faster when there are few groups, but when SQS refuses one
	// entry of such a call, those behind it overtake it. Without it a call
	// carries at most one message of a group, and a group has one call in
	// flight, so that nothing is overtaken.
	GroupBatches bool
	// ContentDeduplication leaves the deduplication id of a message without an
	// ID to the queue (its ContentBasedDeduplication). Without it such a
	// message gets a random one, the same for each try of one Publish.
	ContentDeduplication bool
	// CallTimeout bounds every call. 100 ms to 1 min; default 5 s.
	CallTimeout time.Duration
	// RetryFor is how long passing faults (throttling, lost replies, 5xx) are
	// retried before Publish gives up, when its context doesn't end earlier.
	// At most 1 h; default 30 s; negative: never retry.
	RetryFor time.Duration
}

func (o *PublisherOptions) check() (PublisherOptions, error) {
	var c PublisherOptions
	if o != nil {
		c = *o
	}
	var err error
	if c.CallTimeout, err = checkCallTimeout("PublisherOptions.CallTimeout", c.CallTimeout); err != nil {
		return c, err
	}
	if c.RetryFor > time.Hour {
		return c, &transport.OptionError{Field: "PublisherOptions.RetryFor", Value: c.RetryFor, Want: "must be at most 1 h, 0 for 30 s, or negative for no retry"}
	}
	if c.RetryFor == 0 {
		c.RetryFor = 30 * time.Second
	}
	return c, nil
}

// publisher sends to one queue.
type publisher struct {
	client Client
	queue  string
	fifo   bool
	opts   PublisherOptions

	mu      sync.Mutex
	url     string // once it is known
	closed  bool
	running int
	idle    chan struct{} // closed when closed and running is 0
}

// Publisher sends messages to one SQS queue, given by its name or its URL. A
// name that ends in .fifo is a FIFO queue: a message's Key is its group (a
// keyless message gets a group of its own) and its ID the deduplication id. On a
// standard queue the Key is the group of a fair queue, and the ID isn't sent.
//
// One Publish makes calls of up to ten messages and 1 MiB, several at a time.
// Messages of one group arrive in order; once one of them fails for good, those
// behind it in the same Publish aren't sent. On a standard queue a retry after a
// lost reply may send a message twice.
func Publisher(client Client, urlOrName string, o *PublisherOptions) (transport.Publisher, error) {
	if err := checkQueue(client, urlOrName); err != nil {
		return nil, err
	}
	opts, err := o.check()
	if err != nil {
		return nil, err
	}
	return &publisher{client: client, queue: urlOrName, fifo: isFIFO(urlOrName), opts: opts, idle: make(chan struct{})}, nil
}

// Publish sends ms and waits for SQS to confirm them.
func (p *publisher) Publish(ctx context.Context, ms ...transport.Message) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return fmt.Errorf("publish to %q: %w", p.queue, transport.ErrClosed)
	}
	p.running++
	p.mu.Unlock()
	defer p.done()

	s := &send{p: p, confirmed: make([]bool, len(ms)), busy: map[string]bool{}, failed: map[string]bool{}}
	for i := range ms {
		o, err := encode(&ms[i], p.fifo, p.opts.ContentDeduplication)
		if err != nil {
			return s.result(fmt.Errorf("message %d, nothing was sent: %w", i, err))
		}
		o.index = i
		s.pending = append(s.pending, o)
	}
	if len(ms) == 0 {
		return nil
	}
	var err error
	if s.url, err = p.find(ctx); err != nil {
		return s.result(err)
	}
	return s.result(s.run(ctx))
}

func (p *publisher) find(ctx context.Context) (string, error) {
	p.mu.Lock()
	url := p.url
	p.mu.Unlock()
	if url != "" {
		return url, nil
	}
	url, err := findQueue(ctx, p.client, p.queue, p.opts.CallTimeout)
	if err == nil {
		p.mu.Lock()
		p.url = url
		p.mu.Unlock()
	}
	return url, err
}

func (p *publisher) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running--; p.closed && p.running == 0 {
		close(p.idle)
	}
}

// Close waits for running Publish calls.
func (p *publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		if p.running == 0 {
			close(p.idle)
		}
	}
	p.mu.Unlock()
	select {
	case <-p.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close: publishing still runs: %w", ctx.Err())
	}
}

// send is one Publish. Only its goroutine touches it; calls report to it.
type send struct {
	p         *publisher
	url       string
	confirmed []bool
	pending   []*outgoing     // in order; what is tried again is first
	busy      map[string]bool // groups with a call in flight
	failed    map[string]bool // groups with a message that failed for good
	flying    int
	failures  int       // calls that failed in a row
	hold      time.Time // no call before
	err       error     // the first that is final
	giveUp    time.Time // when retrying ends; zero: nothing has failed since the last success
}

// sent is the reply to one call.
type sent struct {
	batch []*outgoing
	errs  []error
	err   error
}

// maxSends bounds the calls in flight of one Publish.
const maxSends = 4

// run sends until nothing is pending. The error is the first cause.
func (s *send) run(ctx context.Context) error {
	replies := make(chan sent, maxSends)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var wake time.Time
		for ctx.Err() == nil && s.flying < s.limit() {
			var batch []*outgoing
			if batch, wake = s.take(time.Now()); len(batch) == 0 {
				break
			}
			s.flying++
			go s.call(ctx, batch, replies)
		}
		if s.flying == 0 && (len(s.pending) == 0 || ctx.Err() != nil) {
			if s.err == nil && len(s.pending) > 0 {
				s.err = ctx.Err()
			}
			return s.err
		}
		timer.Reset(max(time.Until(wake), 0))
		if wake.IsZero() {
			timer.Stop()
		}
		if s.flying > 0 {
			select {
			case r := <-replies:
				s.reply(r)
			case <-timer.C:
			}
			continue
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

func (s *send) limit() int {
	if s.failures > 0 {
		return 1
	}
	return maxSends
}

// take removes the next call's messages from pending, or says when to look
// again; the zero time: after the next reply.
func (s *send) take(now time.Time) (batch []*outgoing, wake time.Time) {
	if now.Before(s.hold) {
		return nil, s.hold
	}
	size, window := 0, 0
	skipped := map[string]bool{} // groups whose later messages must wait
	for window < min(len(s.pending), scanLimit) && len(batch) < maxBatch {
		o := s.pending[window]
		window++
		switch {
		case o.group != "" && (skipped[o.group] || s.busy[o.group]):
		case now.Before(o.notBefore):
			wake = earlier(wake, o.notBefore)
			skipped[o.group] = true
		case size+o.size > maxBytes:
			skipped[o.group] = true
		default:
			batch = append(batch, o)
			size += o.size
			skipped[o.group] = o.group != "" && !s.p.opts.GroupBatches
			s.pending[window-1] = nil
		}
	}
	// What stays of the window moves up to the rest.
	to := window
	for i := window - 1; i >= 0; i-- {
		if o := s.pending[i]; o != nil {
			to--
			s.pending[i], s.pending[to] = s.pending[to], s.pending[i]
		}
	}
	s.pending = s.pending[to:]
	s.mark(batch)
	return batch, wake
}

func (s *send) mark(batch []*outgoing) {
	for _, o := range batch {
		if o.group != "" {
			s.busy[o.group] = true
		}
	}
}

func (s *send) call(ctx context.Context, batch []*outgoing, replies chan<- sent) {
	ctx, cancel := context.WithTimeout(ctx, s.p.opts.CallTimeout)
	defer cancel()
	in := &awssqs.SendMessageBatchInput{QueueUrl: &s.url, Entries: make([]types.SendMessageBatchRequestEntry, len(batch))}
	for i, o := range batch {
		in.Entries[i] = o.entry
		in.Entries[i].Id = entryID(i)
	}
	out, err := s.p.client.SendMessageBatch(ctx, in, perCall)
	if err != nil {
		replies <- sent{batch: batch, err: err}
		return
	}
	m := newMatcher(len(batch))
	for i := range out.Successful {
		m.done(out.Successful[i].Id)
	}
	m.failed(out.Failed)
	replies <- sent{batch: batch, errs: m.errs}
}

// reply sorts a call's messages into confirmed, to be tried again, and failed.
func (s *send) reply(r sent) {
	s.flying--
	now := time.Now()
	if r.err == nil {
		s.failures, s.hold = 0, time.Time{}
	} else {
		s.failures++
		s.hold = now.Add(sendBackoff(s.failures))
	}
	if r.err == nil && slices.Contains(r.errs, nil) {
		s.giveUp = time.Time{}
	}
	var again []*outgoing
	for i, o := range r.batch {
		delete(s.busy, o.group)
		err := r.err
		if err == nil {
			err = r.errs[i]
		}
		switch c := classOf(err); {
		case err == nil:
			s.confirmed[o.index] = true
		case (c == classPassing || c == classThrottled) && s.mayRetry(now):
			o.tries++
			o.notBefore = now.Add(sendBackoff(o.tries))
			again = append(again, o)
		default:
			s.fail(o, err)
		}
	}
	s.pending = append(again, s.pending...)
	if len(s.failed) > 0 {
		s.pending = slices.DeleteFunc(s.pending, func(o *outgoing) bool { return s.failed[o.group] })
	}
}

// mayRetry reports whether there is time left to try again.
func (s *send) mayRetry(now time.Time) bool {
	if s.giveUp.IsZero() {
		s.giveUp = now.Add(s.p.opts.RetryFor)
	}
	return now.Before(s.giveUp)
}

// fail gives up a message, and with it those behind it in its group.
func (s *send) fail(o *outgoing, err error) {
	if s.err == nil {
		s.err = explain("publish to "+strconv.Quote(queueName(s.url)), err)
	}
	if o.group != "" {
		s.failed[o.group] = true
	}
}

// result lists what isn't confirmed.
func (s *send) result(err error) error {
	if err == nil {
		return nil
	}
	var open []int
	for i, ok := range s.confirmed {
		if !ok {
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		return err
	}
	return &transport.PublishError{Unconfirmed: open, Err: err}
}

// sendBackoff is the delay after n failures in a row.
func sendBackoff(n int) time.Duration {
	d := min(50*time.Millisecond<<min(n-1, 10), 5*time.Second)
	return d/2 + rand.N(d/2+1)
}
