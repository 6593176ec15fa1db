package sqsfake

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// queue is one queue. Its server's mutex guards it.
type queue struct {
	s       *Server
	name    string
	fifo    bool
	timeout time.Duration
	attrs   map[string]string
	redrive struct {
		target string
		max    int
	}
	gone bool

	store
	sequence int
	changed  chan struct{} // closed and replaced when something may be visible
	attempts map[string]*attempt
	sent     map[string]sentOnce // deduplication ids
}

type message struct {
	e         entry
	id        string
	sequence  int
	sentAt    time.Time
	visibleAt time.Time
	taken     time.Time // of the last receive
	handle    string    // of the last receive; "" before the first
	count     int
	gone      bool   // deleted, or in the dead-letter queue
	attempt   string // id of the receive that took it last
}

type attempt struct {
	until time.Time
	ms    []*message
}

type sentOnce struct {
	until  time.Time
	result result
}

func (q *queue) configure(attrs map[string]string) {
	q.attrs = attrs
	if n, err := strconv.Atoi(attrs["VisibilityTimeout"]); err == nil {
		q.timeout = time.Duration(n) * time.Second
	}
	var p struct {
		Target string      `json:"deadLetterTargetArn"`
		Max    json.Number `json:"maxReceiveCount"`
	}
	if json.Unmarshal([]byte(attrs["RedrivePolicy"]), &p) == nil {
		q.redrive.target = p.Target[strings.LastIndexByte(p.Target, ':')+1:]
		q.redrive.max, _ = strconv.Atoi(p.Max.String()) // none: 0
	}
}

func (s *Server) attributes(q *queue) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{"VisibilityTimeout": fmt.Sprint(int(q.timeout / time.Second)), "ReceiveMessageWaitTimeSeconds": "0"}
	for k, v := range q.attrs {
		out[k] = v
	}
	if q.fifo {
		out["FifoQueue"] = "true"
	}
	visible, invisible, delayed := q.count(s.now())
	out["ApproximateNumberOfMessages"] = fmt.Sprint(visible)
	out["ApproximateNumberOfMessagesNotVisible"] = fmt.Sprint(invisible)
	out["ApproximateNumberOfMessagesDelayed"] = fmt.Sprint(delayed)
	return out
}

func (q *queue) count(now time.Time) (visible, invisible, delayed int) {
	for _, m := range q.ms {
		switch {
		case m.gone:
		case !now.Before(m.visibleAt):
			visible++
		case m.handle == "":
			delayed++
		default:
			invisible++
		}
	}
	return visible, invisible, delayed
}

func (q *queue) notify() {
	close(q.changed)
	q.changed = make(chan struct{})
}

func (q *queue) send(e entry) (result, *failure) {
	now := q.s.now()
	switch {
	case e.MessageBody == nil || *e.MessageBody == "":
		return result{}, failf("MissingParameter", "The request must contain the parameter MessageBody.")
	case q.fifo && e.MessageGroupID == "":
		return result{}, failf("MissingParameter", "The request must contain the parameter MessageGroupId.")
	case q.fifo && e.MessageDeduplicationID == "":
		return result{}, failf("InvalidParameterValue", "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly")
	case q.fifo && e.DelaySeconds != 0:
		return result{}, failf("InvalidParameterValue", "Value %d for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for this queue type.", e.DelaySeconds)
	}
	if once, ok := q.sent[e.MessageDeduplicationID]; q.fifo && ok && now.Before(once.until) {
		return once.result, nil
	}
	q.sequence++
	q.s.ids++
	m := &message{e: e, id: fmt.Sprintf("00000000-0000-0000-0000-%012d", q.s.ids), sequence: q.sequence, sentAt: now,
		visibleAt: now.Add(time.Duration(e.DelaySeconds) * time.Second)}
	q.add(m)
	r := result{MessageID: m.id}
	if q.fifo {
		r.SequenceNumber = fmt.Sprintf("%020d", m.sequence)
		q.sent[e.MessageDeduplicationID] = sentOnce{now.Add(5 * time.Minute), r}
	}
	q.notify()
	return r, nil
}

// find gives the message of a handle, and whether the handle is its last. A
// handle is "queue/message/count".
func (q *queue) find(handle string) (m *message, last bool, f *failure) {
	parts := strings.Split(handle, "|")
	if len(parts) != 3 || parts[0] != q.name {
		return nil, false, failf("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
	}
	if m := q.byID[parts[1]]; m != nil {
		return m, m.handle == handle, nil
	}
	return nil, false, nil // deleted
}

// delete does as AWS says: on a standard queue an old handle succeeds without
// deleting; on a FIFO queue one that expired is refused.
func (q *queue) delete(e entry) *failure {
	m, last, f := q.find(e.ReceiptHandle)
	switch {
	case f != nil:
		return f
	case m == nil:
		return nil // deleting twice succeeds
	case q.fifo && (!last || !q.s.now().Before(m.visibleAt)):
		return failf("InvalidParameterValue", "Value %s for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.", e.ReceiptHandle)
	case !last:
		q.s.stale++
		return nil
	}
	q.remove(m)
	q.settleAttempts(m)
	if q.fifo { // its group may go on
		q.notify()
	}
	return nil
}

func (q *queue) changeVisibility(e entry) *failure {
	now := q.s.now()
	m, last, f := q.find(e.ReceiptHandle)
	d := time.Duration(e.VisibilityTimeout) * time.Second
	switch {
	case f != nil:
		return f
	case m == nil, !last:
		return failf("ReceiptHandleIsInvalid", "Value %s for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change.", e.ReceiptHandle)
	case !now.Before(m.visibleAt):
		return failf("MessageNotInflight", "The specified message isn't in flight.")
	case now.Add(d).Sub(m.taken) > 12*time.Hour:
		return failf("InvalidParameterValue", "Value %d for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds].", e.VisibilityTimeout)
	}
	sooner := now.Add(d).Before(m.visibleAt)
	m.visibleAt = now.Add(d)
	q.settleAttempts(m)
	if sooner { // else no poll has anything to look for before it would look anyway
		q.notify()
	}
	return nil
}

// settleAttempts ends the attempt id of the receive that m came with.
func (q *queue) settleAttempts(m *message) {
	delete(q.attempts, m.attempt)
}

// receive waits for messages like a long poll.
func (s *Server) receive(q *queue, in request) (any, *failure) {
	s.mu.Lock()
	deadline := s.now().Add(time.Duration(in.WaitTimeSeconds) * time.Second)
	s.mu.Unlock()
	for {
		s.mu.Lock()
		now := s.now()
		if q.gone {
			s.mu.Unlock()
			return nil, failf("QueueDoesNotExist", "The specified queue does not exist.")
		}
		if s.InFlightLimit > 0 {
			if _, invisible, _ := q.count(now); invisible >= s.InFlightLimit {
				s.mu.Unlock()
				return nil, failf("OverLimit", "Too many messages in flight")
			}
		}
		got := q.take(in, now)
		next := deadline
		if len(got) == 0 {
			next = q.nextVisible(now, deadline)
		}
		changed := q.changed
		s.mu.Unlock()
		if len(got) > 0 || !now.Before(deadline) {
			return map[string]any{"Messages": got}, nil
		}
		timer := time.NewTimer(next.Sub(now))
		select {
		case <-changed:
		case <-timer.C:
		case <-s.closed:
			deadline = now
		}
		timer.Stop()
	}
}

// nextVisible is when something becomes visible, deadline at the latest. Of a
// FIFO group only the head counts.
func (q *queue) nextVisible(now, deadline time.Time) time.Time {
	sooner := func(m *message) {
		if !m.gone && m.visibleAt.After(now) && m.visibleAt.Before(deadline) {
			deadline = m.visibleAt
		}
	}
	if q.fifo {
		for _, ms := range q.groups {
			sooner(ms[0]) // the first of a group is never gone
		}
		return deadline
	}
	for _, m := range q.ms {
		sooner(m)
	}
	return deadline
}

// take hands out what is visible.
func (q *queue) take(in request, now time.Time) []received {
	timeout := q.timeout
	if in.VisibilityTimeout != nil {
		timeout = time.Duration(*in.VisibilityTimeout) * time.Second
	}
	if a := q.attempts[in.ReceiveRequestAttemptID]; q.fifo && a != nil && now.Before(a.until) {
		var out []received
		for _, m := range a.ms { // the same messages, with the same handles
			m.visibleAt, m.taken = now.Add(timeout), now
			out = append(out, q.describe(m))
		}
		return out
	}
	picked := q.pick(max(in.MaxNumberOfMessages, 1), now)
	var out []received
	for _, m := range picked {
		m.count++
		m.attempt = in.ReceiveRequestAttemptID
		m.handle = fmt.Sprintf("%s|%s|%d", q.name, m.id, m.count)
		m.visibleAt, m.taken = now.Add(timeout), now
		out = append(out, q.describe(m))
	}
	if q.fifo && in.ReceiveRequestAttemptID != "" && len(picked) > 0 {
		q.attempts[in.ReceiveRequestAttemptID] = &attempt{now.Add(5 * time.Minute), picked}
	}
	return out
}

// pick chooses up to n messages: on a FIFO queue as many of one group as there
// are, then others, and of each group nothing behind an invisible message.
func (q *queue) pick(n int, now time.Time) []*message {
	var out []*message
	stopped := map[string]bool{}
	if q.fifo { // a group with anything in flight is blocked, but for its head
		for _, m := range q.ms {
			if m.gone {
				continue
			}
			if now.Before(m.visibleAt) {
				stopped[m.e.MessageGroupID] = true // nothing behind it is handed out
				continue
			}
			if len(stopped) == len(q.groups) {
				break // every group was asked
			}
			if g := m.e.MessageGroupID; !stopped[g] {
				stopped[g] = true
				out = append(out, q.group(g, n-len(out), now)...)
			}
			if len(out) >= n {
				return out
			}
		}
		return out
	}
	for _, m := range q.ms {
		if len(out) == n {
			break
		}
		if !m.gone && !now.Before(m.visibleAt) && !q.redriven(m, now) {
			out = append(out, m)
		}
	}
	return out
}

// group gives up to n messages of a FIFO group, none behind an invisible one.
func (q *queue) group(g string, n int, now time.Time) []*message {
	var out []*message
	for _, m := range q.groups[g] {
		if m.gone {
			continue
		}
		if len(out) == n || now.Before(m.visibleAt) {
			break
		}
		if !q.redriven(m, now) {
			out = append(out, m)
		}
	}
	return out
}

// redriven moves m to the dead-letter queue when it was received too often.
func (q *queue) redriven(m *message, now time.Time) bool {
	target := q.s.queues[q.redrive.target]
	if q.redrive.max == 0 || m.count < q.redrive.max || target == nil {
		return false
	}
	moved := *m
	q.remove(m)
	moved.visibleAt = now
	target.sequence++
	moved.sequence = target.sequence
	target.add(&moved)
	target.notify()
	return true
}

type received struct {
	MessageID         string `json:"MessageId"`
	ReceiptHandle     string
	Body              *string              `json:",omitempty"`
	Attributes        map[string]string    `json:",omitempty"`
	MessageAttributes map[string]attribute `json:",omitempty"`
}

func (q *queue) describe(m *message) received {
	r := received{MessageID: m.id, ReceiptHandle: m.handle, Body: m.e.MessageBody, MessageAttributes: m.e.MessageAttributes,
		Attributes: map[string]string{"ApproximateReceiveCount": fmt.Sprint(m.count), "SentTimestamp": fmt.Sprint(m.sentAt.UnixMilli())}}
	if m.e.MessageGroupID != "" {
		r.Attributes["MessageGroupId"] = m.e.MessageGroupID
	}
	if q.fifo {
		r.Attributes["SequenceNumber"] = fmt.Sprintf("%020d", m.sequence)
		r.Attributes["MessageDeduplicationId"] = m.e.MessageDeduplicationID
	}
	return r
}
