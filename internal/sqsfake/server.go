package sqsfake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Server is an SQS endpoint in memory. All methods may be called from any
// goroutine.
type Server struct {
	// InFlightLimit is how many messages of a queue may be invisible before a
	// receive fails with OverLimit. 0: no limit. Set it before use.
	InFlightLimit int

	mu     sync.Mutex
	queues map[string]*queue
	calls  map[string]int // by operation
	stale  int
	ids    int
	ahead  time.Duration // of the server's clock
	closed chan struct{}
	once   sync.Once
}

// New gives an endpoint without queues.
func New() *Server {
	return &Server{queues: map[string]*queue{}, calls: map[string]int{}, closed: make(chan struct{})}
}

// Close ends every poll, also those whose client is gone.
func (s *Server) Close() { s.once.Do(func() { close(s.closed) }) }

// Calls is how often an operation was called, for example "ReceiveMessage".
func (s *Server) Calls(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[op]
}

// Stale is how many entries named a receipt handle that was no longer good.
func (s *Server) Stale() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stale
}

// Skip lets d pass for the server at once, and for nobody else: as if the
// process that holds messages had stood still, or its clocks had.
func (s *Server) Skip(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
	for _, q := range s.queues {
		q.notify()
	}
}

// now is the time by the server's clock. The caller holds mu.
func (s *Server) now() time.Time { return time.Now().Add(s.ahead) }

// Do answers a request, as an SDK client's HTTPClient. As with AWS, a poll whose
// client has gone away goes on, and takes messages.
func (s *Server) Do(r *http.Request) (*http.Response, error) {
	op := Operation(r)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	done := make(chan *http.Response, 1)
	go func() { done <- s.answer(op, body, r) }()
	select {
	case resp := <-done:
		return resp, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// Operation is the operation that a request asks for.
func Operation(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.")
}

func (s *Server) answer(op string, body []byte, r *http.Request) *http.Response {
	s.mu.Lock()
	s.calls[op]++
	s.mu.Unlock()
	out, fail := s.dispatch(op, body)
	if fail != nil {
		return ErrorReply(r, http.StatusBadRequest, fail.code, fail.message)
	}
	b, err := json.Marshal(out)
	if err != nil {
		return ErrorReply(r, http.StatusInternalServerError, "InternalError", err.Error())
	}
	return reply(r, http.StatusOK, "application/x-amz-json-1.0", b)
}

// failure is an error reply, or the reason of a Failed entry.
type failure struct{ code, message string }

func failf(code, format string, args ...any) *failure {
	return &failure{code, fmt.Sprintf(format, args...)}
}

func reply(r *http.Request, status int, kind string, body []byte) *http.Response {
	return &http.Response{
		StatusCode: status, Status: fmt.Sprint(status, " ", http.StatusText(status)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"Content-Type": {kind}, "X-Amzn-Requestid": {"fake"}},
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)), Request: r,
	}
}

// ErrorReply is an error as AWS sends it.
func ErrorReply(r *http.Request, status int, code, message string) *http.Response {
	body, _ := json.Marshal(map[string]string{"__type": "com.amazonaws.sqs#" + code, "message": message}) // strings always marshal
	resp := reply(r, status, "application/x-amz-json-1.0", body)
	fault := "Sender"
	if status >= 500 {
		fault = "Receiver"
	}
	resp.Header.Set("X-Amzn-Query-Error", "AWS.SimpleQueueService."+code+";"+fault)
	return resp
}

func (s *Server) dispatch(op string, body []byte) (any, *failure) {
	var in request
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, failf("MalformedQueryString", "%v", err)
	}
	switch op {
	case "CreateQueue":
		return s.createQueue(in)
	case "GetQueueUrl":
		return s.queueURL(in)
	}
	s.mu.Lock()
	q := s.queues[in.QueueURL[strings.LastIndexByte(in.QueueURL, '/')+1:]]
	s.mu.Unlock()
	if q == nil {
		return nil, failf("QueueDoesNotExist", "The specified queue does not exist.")
	}
	switch op {
	case "DeleteQueue":
		s.mu.Lock()
		delete(s.queues, q.name)
		q.gone = true
		q.notify()
		s.mu.Unlock()
		return struct{}{}, nil
	case "GetQueueAttributes":
		return map[string]any{"Attributes": s.attributes(q)}, nil
	case "SendMessageBatch":
		return s.each(in.Entries, func(e entry) (result, *failure) { return q.send(e) })
	case "ReceiveMessage":
		return s.receive(q, in)
	case "DeleteMessageBatch":
		return s.each(in.Entries, func(e entry) (result, *failure) { return result{}, q.delete(e) })
	case "ChangeMessageVisibilityBatch":
		return s.each(in.Entries, func(e entry) (result, *failure) { return result{}, q.changeVisibility(e) })
	}
	return nil, failf("InvalidAction", "The action %s is not valid for this endpoint.", op)
}

// request holds the members of all requests.
type request struct {
	QueueName                            string
	QueueURL                             string `json:"QueueUrl"`
	Attributes                           map[string]string
	Entries                              []entry
	MaxNumberOfMessages, WaitTimeSeconds int
	VisibilityTimeout                    *int
	ReceiveRequestAttemptID              string `json:"ReceiveRequestAttemptId"`
}

// entry holds the members of all batch entries.
type entry struct {
	ID                     string `json:"Id"`
	ReceiptHandle          string
	VisibilityTimeout      int
	MessageBody            *string
	MessageGroupID         string `json:"MessageGroupId"`
	MessageDeduplicationID string `json:"MessageDeduplicationId"`
	DelaySeconds           int
	MessageAttributes      map[string]attribute
}

type attribute struct {
	DataType    string
	StringValue *string `json:",omitempty"`
	BinaryValue []byte  `json:",omitempty"`
}

type result struct {
	ID             string `json:"Id"`
	MessageID      string `json:"MessageId,omitempty"`
	SequenceNumber string `json:",omitempty"`
}

type failed struct {
	ID          string `json:"Id"`
	Code        string
	Message     string
	SenderFault bool
}

type batchReply struct {
	Successful []result
	Failed     []failed
}

// each does one entry after the other.
func (s *Server) each(es []entry, do func(entry) (result, *failure)) (any, *failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := map[string]bool{}
	for _, e := range es {
		ids[e.ID] = true
	}
	switch {
	case len(es) == 0:
		return nil, failf("EmptyBatchRequest", "There should be at least one entry.")
	case len(es) > 10:
		return nil, failf("TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10.")
	case len(ids) < len(es):
		return nil, failf("BatchEntryIdsNotDistinct", "Two or more batch entries have the same Id.")
	}
	out := batchReply{Successful: []result{}, Failed: []failed{}}
	for _, e := range es {
		r, f := do(e)
		if f != nil {
			if f.code == "ReceiptHandleIsInvalid" || f.code == "MessageNotInflight" || strings.Contains(f.message, "receipt handle has expired") {
				s.stale++
			}
			out.Failed = append(out.Failed, failed{e.ID, f.code, f.message, true})
			continue
		}
		r.ID = e.ID
		out.Successful = append(out.Successful, r)
	}
	return out, nil
}

func (s *Server) createQueue(in request) (any, *failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[in.QueueName] == nil {
		q := &queue{s: s, name: in.QueueName, fifo: strings.HasSuffix(in.QueueName, ".fifo"), timeout: 30 * time.Second,
			changed: make(chan struct{}), store: newStore(), attempts: map[string]*attempt{}, sent: map[string]sentOnce{}}
		q.configure(in.Attributes)
		s.queues[in.QueueName] = q
	}
	return map[string]string{"QueueUrl": url(in.QueueName)}, nil
}

func (s *Server) queueURL(in request) (any, *failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[in.QueueName] == nil {
		return nil, failf("QueueDoesNotExist", "The specified queue does not exist.")
	}
	return map[string]string{"QueueUrl": url(in.QueueName)}, nil
}

func url(name string) string { return "https://sqs.us-east-1.amazonaws.com/000000000000/" + name }
