package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// codec decodes with a function; it never encodes.
type codec func(m *Message, into any) error

func (c codec) Decode(m *Message, into any) error { return c(m, into) }
func (c codec) Encode(any) (Message, error)       { return Message{}, errors.ErrUnsupported }

func deliver(body string) *Delivery {
	d := new(Slab).New(NewLease(), nil)
	d.Body, d.ContentType = []byte(body), "text/plain"
	return d
}

func TestTyped(t *testing.T) {
	t.Parallel()
	ok := codec(func(m *Message, into any) error { *into.(*string) = string(m.Body); return nil })
	errHandler := errors.New("handler")
	want := deliver("hello")
	ctx := context.WithValue(t.Context(), AttemptKey(), 3)
	h := Typed(ok, func(ctx context.Context, v string, d *Delivery) error {
		if v != "hello" || d != want || Attempt(ctx) != 3 {
			t.Errorf("called with %q, %v, attempt %d", v, d, Attempt(ctx))
		}
		return errHandler
	})
	if err := h.Handle(ctx, want); err != errHandler {
		t.Errorf("error = %v, want the function's own", err)
	}
}

// Each call decodes into a fresh value: nothing of one delivery shows in the
// next.
func TestTypedStartsFromZero(t *testing.T) {
	t.Parallel()
	once := true
	c := codec(func(_ *Message, into any) error {
		if once {
			once = false
			(*into.(*map[string]int)) = map[string]int{"first": 1}
		}
		return nil
	})
	var got []int
	h := Typed(c, func(_ context.Context, v map[string]int, _ *Delivery) error {
		got = append(got, len(v))
		return nil
	})
	for range 2 {
		if err := h.Handle(t.Context(), deliver("")); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, []int{1, 0}) {
		t.Errorf("values held %v entries, want 1, then 0", got)
	}
}

func TestTypedThatDoesNotDecode(t *testing.T) {
	t.Parallel()
	own := &DecodeError{ContentType: "x/y", Err: io.EOF}
	for _, c := range []struct {
		name  string
		codec codec
		text  string
		cause error
	}{
		{"an error", func(*Message, any) error { return io.ErrUnexpectedEOF },
			`payload doesn't decode (content type "text/plain"): unexpected EOF`, io.ErrUnexpectedEOF},
		{"the codec's own DecodeError", func(*Message, any) error { return own },
			`payload doesn't decode (content type "x/y"): EOF`, own},
		{"a wrapped DecodeError", func(*Message, any) error { return fmt.Errorf("v2: %w", own) },
			`v2: payload doesn't decode (content type "x/y"): EOF`, own},
		{"a panic", func(*Message, any) error { panic("boom") },
			`payload doesn't decode (content type "text/plain"): codec transport.codec panicked: boom`, nil},
		{"a panic with nil", func(*Message, any) error { panic(nil) }, "panic called with nil argument", nil},
		{"a runtime error", func(m *Message, _ any) error { _ = m.Body[99]; return nil }, "index out of range [99]", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := Typed(c.codec, func(context.Context, int, *Delivery) error {
				t.Error("the function was called")
				return nil
			})
			err := h.Handle(t.Context(), deliver("hello"))
			var de *DecodeError
			if !errors.As(err, &de) {
				t.Fatalf("error = %v (%T), want a *DecodeError", err, err)
			}
			if !strings.Contains(err.Error(), c.text) {
				t.Errorf("text = %s, want %s", err, c.text)
			}
			if c.cause != nil && !errors.Is(err, c.cause) {
				t.Errorf("the cause %v is gone", c.cause)
			}
		})
	}
}

// Only the codec's panics are its own: the function's go through, to the lane.
func TestTypedLetsTheFunctionPanic(t *testing.T) {
	t.Parallel()
	defer func() {
		if r := recover(); r != "mine" {
			t.Errorf("recovered %v, want the function's panic", r)
		}
	}()
	ok := codec(func(*Message, any) error { return nil })
	_ = Typed(ok, func(context.Context, int, *Delivery) error { panic("mine") }).Handle(t.Context(), deliver(""))
}

func TestTypedRefusesNil(t *testing.T) {
	t.Parallel()
	ok := codec(func(*Message, any) error { return nil })
	fn := func(context.Context, int, *Delivery) error { return nil }
	for name, build := range map[string]func(){
		"codec":    func() { Typed(nil, fn) },
		"function": func() { Typed[int](ok, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "transport: Typed: ") {
					t.Errorf("panic = %q, want one that names Typed", text)
				}
			}()
			build()
		})
	}
}

func TestChainOrder(t *testing.T) {
	t.Parallel()
	var calls []string
	note := func(name string) Middleware {
		return func(next Handler) Handler {
			return HandlerFunc(func(ctx context.Context, d *Delivery) error {
				calls = append(calls, "enter "+name)
				defer func() { calls = append(calls, "leave "+name) }()
				return next.Handle(ctx, d)
			})
		}
	}
	errHandler := errors.New("handler")
	h := Chain(HandlerFunc(func(context.Context, *Delivery) error {
		calls = append(calls, "handle")
		return errHandler
	}), nil, note("first"), nil, note("second"), nil)
	if err := h.Handle(t.Context(), deliver("")); err != errHandler {
		t.Errorf("error = %v, want the handler's", err)
	}
	want := []string{"enter first", "enter second", "handle", "leave second", "leave first"}
	if !slices.Equal(calls, want) {
		t.Errorf("calls = %v, want %v", calls, want)
	}
}

func TestChainOfNothing(t *testing.T) {
	t.Parallel()
	called := false
	h := Chain(HandlerFunc(func(context.Context, *Delivery) error { called = true; return nil }))
	if err := h.Handle(t.Context(), deliver("")); err != nil || !called {
		t.Errorf("error = %v, called = %v", err, called)
	}
}

func TestBatchHandlerFunc(t *testing.T) {
	t.Parallel()
	want := []*Delivery{deliver("a"), deliver("b")}
	var h BatchHandler = BatchHandlerFunc(func(_ context.Context, ds []*Delivery) error {
		if !slices.Equal(ds, want) {
			t.Errorf("called with %v", ds)
		}
		return io.EOF
	})
	if err := h.HandleBatch(t.Context(), want); err != io.EOF {
		t.Errorf("error = %v, want EOF", err)
	}
}

func TestAttempt(t *testing.T) {
	t.Parallel()
	if got := Attempt(t.Context()); got != 0 {
		t.Errorf("outside a handler Attempt = %d, want 0", got)
	}
	if got := Attempt(context.WithValue(t.Context(), AttemptKey(), "3")); got != 0 {
		t.Errorf("of another type Attempt = %d, want 0", got)
	}
	if got := Attempt(context.WithValue(t.Context(), AttemptKey(), 3)); got != 3 {
		t.Errorf("Attempt = %d, want 3", got)
	}
}
