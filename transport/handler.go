package transport

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Handler does a user's work on one delivery.
type Handler interface {
	// Handle works on d.
	//   - Called by a lane, on that lane's runner goroutine; different lanes
	//     call it at the same time, one key never does.
	//   - nil accepts; an error goes to the subscription's policy, and so do
	//     a panic and runtime.Goexit.
	//   - ctx ends with cause ErrStopping, ErrLeaseLost, ErrLeaseEnding or
	//     ErrHandlerTimeout (context.Cause), and after Handle has returned. Nothing of the same
	//     key starts before it returns: watch ctx in everything that waits.
	//   - It must not change d, and need not copy it.
	Handle(ctx context.Context, d *Delivery) error
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, d *Delivery) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, d *Delivery) error { return f(ctx, d) }

// BatchHandler does a user's work on several deliveries of one lane at once.
type BatchHandler interface {
	// HandleBatch works on ds, which are in order for each key.
	//   - Called like Handler.Handle; ds is the callee's for this call only,
	//     the deliveries in it may be kept.
	//   - nil accepts all. A *BatchError gives each element its own result;
	//     any other error fails the whole batch, which is then retried one by
	//     one, so that a poisonous message doesn't burn its neighbours'
	//     attempts.
	//   - Once an element of a key isn't accepted, no later element of that
	//     key in the batch is, whatever its result says.
	HandleBatch(ctx context.Context, ds []*Delivery) error
}

// BatchHandlerFunc is a function as a BatchHandler.
type BatchHandlerFunc func(ctx context.Context, ds []*Delivery) error

// HandleBatch calls f.
func (f BatchHandlerFunc) HandleBatch(ctx context.Context, ds []*Delivery) error { return f(ctx, ds) }

// BatchError gives each element of a batch its own result.
type BatchError struct {
	// Errs is as long as the batch: nil where the element is done. A slice of
	// another length fails the whole batch.
	Errs []error
}

// Error counts the failed elements and quotes the first.
func (e *BatchError) Error() string {
	n, first := 0, error(nil)
	for _, err := range e.Errs {
		if err != nil {
			if n++; first == nil {
				first = err
			}
		}
	}
	return fmt.Sprintf("%d of %d elements of the batch failed, the first: %v", n, len(e.Errs), first)
}

// Unwrap gives the elements' errors to errors.Is and errors.As.
func (e *BatchError) Unwrap() []error { return e.Errs }

// Middleware wraps a Handler: logging, tracing, metrics. It runs once for each
// attempt, inside the lane's recover, on the lane's runner goroutine.
type Middleware func(Handler) Handler

// Chain wraps h in ms, the first listed outermost. Nil entries are skipped.
func Chain(h Handler, ms ...Middleware) Handler {
	for i := len(ms) - 1; i >= 0; i-- {
		if ms[i] != nil {
			h = ms[i](h)
		}
	}
	return h
}

// Codec turns payloads into values and back. Implementations are in package
// codec. Both methods may be called from many goroutines at once.
type Codec interface {
	// Decode reads m.Body into the value that into points to. It must not
	// keep or change m.
	Decode(m *Message, into any) error
	// Encode gives a message whose Body and ContentType hold v.
	Encode(v any) (Message, error)
}

// Typed makes a Handler of a function that takes a decoded value. A payload
// that doesn't decode, a codec that panics included, fails with a *DecodeError,
// and the function isn't called.
func Typed[T any](c Codec, fn func(ctx context.Context, v T, d *Delivery) error) Handler {
	if c == nil || fn == nil {
		panic("transport: Typed: codec and function must both be given")
	}
	return HandlerFunc(func(ctx context.Context, d *Delivery) error {
		var v T
		if err := decode(c, &d.Message, &v); err != nil {
			return err
		}
		return fn(ctx, v, d)
	})
}

func decode(c Codec, m *Message, into any) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &DecodeError{ContentType: m.ContentType, Err: fmt.Errorf("codec %T panicked: %v", c, r)}
		}
	}()
	if e := c.Decode(m, into); e != nil {
		var de *DecodeError
		if errors.As(e, &de) {
			return e
		}
		return &DecodeError{ContentType: m.ContentType, Err: e}
	}
	return nil
}

// DecodeError is the failure of a payload that doesn't decode. A policy sees it
// as supervision.Undecodable: trying again can't help.
type DecodeError struct {
	ContentType string // as the message said
	Err         error  // the codec's own error
}

// Error says what didn't decode.
func (e *DecodeError) Error() string {
	var b strings.Builder
	b.WriteString("payload doesn't decode")
	if e.ContentType != "" {
		fmt.Fprintf(&b, " (content type %q)", e.ContentType)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return b.String()
}

// Unwrap gives the codec's own error.
func (e *DecodeError) Unwrap() error { return e.Err }

type attemptKey struct{}

// AttemptKey is the key under which a handler's context holds the attempt; see
// Attempt. It is exported to the tree only by value.
func AttemptKey() any { return attemptKey{} }

// Attempt says which attempt of the delivery this is: 1 for the first in this
// subscription. 0 when ctx isn't a handler's context.
func Attempt(ctx context.Context) int {
	n, _ := ctx.Value(attemptKey{}).(int)
	return n
}
