package supervision

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"
)

func TestConstructors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		got, want Directive
	}{
		{"Retry", Retry(time.Second), Directive{Action: ActionRetry, After: time.Second}},
		{"RetryUncounted", RetryUncounted(time.Second), Directive{Action: ActionRetry, After: time.Second, Uncounted: true}},
		{"Abandon", Abandon(time.Second), Directive{Action: ActionAbandon, After: time.Second}},
		{"DeadLetter", DeadLetter("declined", "card 12"), Directive{Action: ActionDeadLetter, Reason: "declined", Description: "card 12"}},
		{"AcceptAnyway", AcceptAnyway(), Directive{Action: ActionAccept}},
		{"StopSubscription", StopSubscription(), Directive{Action: ActionStop}},
		{"Escalate", Escalate(), Directive{Action: ActionEscalate}},
	} {
		if c.got != c.want {
			t.Errorf("%s = %+v, want %+v", c.name, c.got, c.want)
		}
	}
}

// The zero directive orders nothing, so that a policy that forgot to decide is
// never taken for one that accepts.
func TestZeroDirectiveHasNoAction(t *testing.T) {
	t.Parallel()
	a := Directive{}.Action
	for _, b := range []Action{ActionRetry, ActionAbandon, ActionDeadLetter, ActionAccept, ActionStop, ActionEscalate} {
		if a == b {
			t.Errorf("the zero action is %v", b)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		got  fmt.Stringer
		want string
	}{
		{Returned, "returned"}, {Panicked, "panicked"}, {TimedOut, "timed out"}, {Undecodable, "undecodable"}, {Kind(9), "kind(9)"},
		{Action(0), "none"}, {ActionRetry, "retry"}, {ActionAbandon, "abandon"}, {ActionDeadLetter, "dead-letter"},
		{ActionAccept, "accept"}, {ActionStop, "stop"}, {ActionEscalate, "escalate"}, {Action(7), "action(7)"},
	} {
		if got := c.got.String(); got != c.want {
			t.Errorf("name = %q, want %q", got, c.want)
		}
	}
}

func TestAdvice(t *testing.T) {
	t.Parallel()
	plain := errors.New("plain")
	for _, c := range []struct {
		name string
		err  error
		want Directive
		ok   bool
	}{
		{"no error", nil, Directive{}, false},
		{"no advice", plain, Directive{}, false},
		{"advice", With(plain, Abandon(time.Second)), Abandon(time.Second), true},
		{"advice without an error", With(nil, AcceptAnyway()), AcceptAnyway(), true},
		{"wrapped advice", fmt.Errorf("order 7: %w", With(plain, Escalate())), Escalate(), true},
		{"joined advice", errors.Join(plain, With(plain, Escalate())), Escalate(), true},
		{"advice on advice: the outer", With(With(plain, Escalate()), AcceptAnyway()), AcceptAnyway(), true},
		{"advice that orders nothing", With(plain, Directive{Park: true}), Directive{}, false},
		{"advice that was panicked with", &PanicError{Value: With(plain, AcceptAnyway())}, AcceptAnyway(), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, ok := Advice(c.err)
			if got != c.want || ok != c.ok {
				t.Errorf("Advice = %+v, %v, want %+v, %v", got, ok, c.want, c.ok)
			}
		})
	}
}

// Advice must not hide the error that it was attached to.
func TestWithKeepsTheError(t *testing.T) {
	t.Parallel()
	err := With(fmt.Errorf("read order: %w", io.ErrUnexpectedEOF), Retry(time.Second))
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error("errors.Is no longer finds the cause")
	}
	if want := "read order: unexpected EOF"; err.Error() != want {
		t.Errorf("text = %q, want %q", err, want)
	}
	if got, want := With(nil, AcceptAnyway()).Error(), "the handler asked to accept"; got != want {
		t.Errorf("text without an error = %q, want %q", got, want)
	}
}

func TestPanicError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		err   *PanicError
		text  string
		cause error
	}{
		{"a value", &PanicError{Value: "boom", Stack: []byte("goroutine 1")}, "the handler panicked: boom", nil},
		{"an error", &PanicError{Value: io.EOF}, "the handler panicked: EOF", io.EOF},
		{"Goexit", &PanicError{Goexit: true}, "the handler called runtime.Goexit", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := c.err.Error(); got != c.text {
				t.Errorf("text = %q, want %q", got, c.text)
			}
			if got := c.err.Unwrap(); got != c.cause {
				t.Errorf("cause = %v, want %v", got, c.cause)
			}
		})
	}
}
