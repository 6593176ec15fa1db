package sqsfake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// HTTPClient is what an SDK client sends its requests with.
type HTTPClient interface {
	Do(*http.Request) (*http.Response, error)
}

// Wire passes requests on to an endpoint, and breaks those that its script says.
type Wire struct {
	next HTTPClient

	mu     sync.Mutex
	script func(Call) Fault
	calls  map[string]int
	times  map[string][]time.Time
}

// Call is one request.
type Call struct {
	Op   string // "ReceiveMessage"
	N    int    // how many of this operation came so far, this one included
	Body []byte // its JSON
}

// Fault breaks a call. A nil Fault leaves it alone.
type Fault func(x *Exchange) (*http.Response, error)

// Exchange is a request on its way.
type Exchange struct {
	Request *http.Request
	Body    []byte // may be changed before Ask
	next    HTTPClient
}

// Ask passes the request on.
func (x *Exchange) Ask() (*http.Response, error) {
	r := x.Request.Clone(x.Request.Context())
	r.Body = io.NopCloser(bytes.NewReader(x.Body))
	r.ContentLength = int64(len(x.Body))
	return x.next.Do(r)
}

// NewWire gives a wire to next that breaks nothing yet.
func NewWire(next HTTPClient) *Wire {
	return &Wire{next: next, calls: map[string]int{}, times: map[string][]time.Time{}}
}

// Script sets what is broken; nil: nothing. It is called for each request, one
// at a time, and must not call the Wire.
func (w *Wire) Script(script func(Call) Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.script = script
}

// Calls is how many requests of an operation came.
func (w *Wire) Calls(op string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[op]
}

// Times is when the requests of an operation came.
func (w *Wire) Times(op string) []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]time.Time(nil), w.times[op]...)
}

// Total is how many requests came.
func (w *Wire) Total() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, c := range w.calls {
		n += c
	}
	return n
}

// Do passes r on, or breaks it.
func (w *Wire) Do(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	op := Operation(r)
	w.mu.Lock()
	w.calls[op]++
	w.times[op] = append(w.times[op], time.Now())
	call := Call{Op: op, N: w.calls[op], Body: body}
	var fault Fault
	if w.script != nil {
		fault = w.script(call)
	}
	w.mu.Unlock()
	x := &Exchange{Request: r, Body: body, next: w.next}
	if fault != nil {
		return fault(x)
	}
	return x.Ask()
}

// Fail answers with an error of AWS's, and doesn't pass the request on.
func Fail(status int, code string) Fault {
	return func(x *Exchange) (*http.Response, error) {
		return ErrorReply(x.Request, status, code, "scripted"), nil
	}
}

// FailText answers as a load balancer does, with text.
func FailText(status int, text string) Fault {
	return func(x *Exchange) (*http.Response, error) {
		return reply(x.Request, status, "text/plain", []byte(text)), nil
	}
}

// ErrLost is what a client sees of a connection that is gone.
var ErrLost = errors.New("sqsfake: connection reset")

// Drop loses the request: it isn't passed on.
func Drop(*Exchange) (*http.Response, error) {
	return nil, ErrLost
}

// LoseReply passes the request on and loses the reply.
func LoseReply(x *Exchange) (*http.Response, error) {
	resp, err := x.Ask()
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close() // it is lost anyway
	return nil, ErrLost
}

// CutReply passes the request on and cuts the reply in the middle of its body.
func CutReply(x *Exchange) (*http.Response, error) {
	resp, err := x.Ask()
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it was read to its end
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(b[:len(b)/2]), failingReader{}))
	return resp, nil
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, ErrLost }

// BlackHole never answers, and doesn't pass the request on.
func BlackHole(x *Exchange) (*http.Response, error) {
	<-x.Request.Context().Done()
	return nil, context.Cause(x.Request.Context())
}

// Delay passes the request on after d.
func Delay(d time.Duration) Fault {
	return func(x *Exchange) (*http.Response, error) {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return x.Ask()
		case <-x.Request.Context().Done():
			return nil, x.Request.Context().Err()
		}
	}
}

// Hold passes the request on and holds the reply back until release is closed.
func Hold(release <-chan struct{}) Fault {
	return func(x *Exchange) (*http.Response, error) {
		resp, err := x.Ask()
		select {
		case <-release:
			return resp, err
		case <-x.Request.Context().Done():
			return nil, x.Request.Context().Err()
		}
	}
}

// EditReply passes the request on and lets edit change the reply's JSON.
func EditReply(edit func(out map[string]any)) Fault {
	return func(x *Exchange) (*http.Response, error) {
		resp, err := x.Ask()
		if err != nil || resp.StatusCode != http.StatusOK {
			return resp, err
		}
		var out map[string]any
		err = json.NewDecoder(resp.Body).Decode(&out)
		_ = resp.Body.Close() // it was read to its end
		if err != nil {
			return nil, err
		}
		edit(out)
		b, err := json.Marshal(out)
		if err != nil {
			return nil, err
		}
		return reply(x.Request, http.StatusOK, resp.Header.Get("Content-Type"), b), nil
	}
}

// FailEntries turns the entries that fails chooses, by position, into Failed
// ones: they aren't passed on, the others are.
func FailEntries(code string, senderFault bool, fails func(i int) bool) Fault {
	return func(x *Exchange) (*http.Response, error) {
		var in map[string]any
		if err := json.Unmarshal(x.Body, &in); err != nil {
			return nil, err
		}
		entries, _ := in["Entries"].([]any) // nil when it isn't a batch
		var pass, lost []any
		for i, e := range entries {
			if !fails(i) {
				pass = append(pass, e)
				continue
			}
			id := e.(map[string]any)["Id"]
			lost = append(lost, map[string]any{"Id": id, "Code": code, "Message": "scripted", "SenderFault": senderFault})
		}
		if len(pass) == 0 {
			b, err := json.Marshal(map[string]any{"Successful": []any{}, "Failed": lost})
			if err != nil {
				return nil, err
			}
			return reply(x.Request, http.StatusOK, "application/x-amz-json-1.0", b), nil
		}
		in["Entries"] = pass
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		x.Body = b
		return EditReply(func(out map[string]any) {
			failed, _ := out["Failed"].([]any) // none: nil
			out["Failed"] = append(failed, lost...)
		})(x)
	}
}
