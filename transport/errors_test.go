package transport

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"
)

func TestErrorTexts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"option, a number", &OptionError{"Options.Credit", -1, "must be 1 to 100000; 0 means 256"},
			"Options.Credit = -1: must be 1 to 100000; 0 means 256"},
		{"option, a text is quoted", &OptionError{"url", "amqp:/ host", "must be amqp://host:port"},
			`url = "amqp:/ host": must be amqp://host:port`},
		{"option, an empty text still shows", &OptionError{"name", "", "must not be empty"},
			`name = "": must not be empty`},
		{"option, a duration has its unit", &OptionError{"Options.StopTimeout", -time.Second, "must not be below 0"},
			"Options.StopTimeout = -1s: must not be below 0"},
		{"option, nil", &OptionError{"handler", nil, "must be given"}, "handler = <nil>: must be given"},

		{"fatal, with a fix", &FatalError{`open queue "orders"`, "grant consume", io.EOF}, `open queue "orders": EOF: grant consume`},
		{"fatal, without a fix", &FatalError{Op: `open queue "orders"`, Err: io.EOF}, `open queue "orders": EOF`},
		{"temporary", &TemporaryError{"receive", io.EOF}, "receive: EOF"},

		{"publish", &PublishError{[]int{3, 5}, io.EOF}, "2 message(s) not confirmed (the first at index 3): EOF"},
		{"publish, nothing listed", &PublishError{nil, io.EOF}, "0 message(s) not confirmed (the first at index -1): EOF"},

		{"batch", &BatchError{[]error{nil, io.EOF, nil, io.ErrNoProgress}}, "2 of 4 elements of the batch failed, the first: EOF"},
		{"batch, none failed", &BatchError{make([]error, 2)}, "0 of 2 elements of the batch failed, the first: <nil>"},

		{"decode, with a content type", &DecodeError{"text/csv", io.EOF}, `payload doesn't decode (content type "text/csv"): EOF`},
		{"decode, without", &DecodeError{Err: io.EOF}, "payload doesn't decode: EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := c.err.Error(); got != c.want {
				t.Errorf("text = %s\nwant   %s", got, c.want)
			}
		})
	}
}

// Every typed error leads to its cause, also wrapped once more.
func TestErrorCauses(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		&FatalError{Err: io.EOF}, &TemporaryError{Err: io.EOF}, &PublishError{Err: io.EOF}, &DecodeError{Err: io.EOF},
		// nil elements are the usual case and must not stop the search
		&BatchError{Errs: []error{nil, io.ErrNoProgress, nil, io.EOF}},
	} {
		t.Run(fmt.Sprintf("%T", err), func(t *testing.T) {
			t.Parallel()
			if !errors.Is(fmt.Errorf("outer: %w", err), io.EOF) {
				t.Errorf("the cause of %v isn't found", err)
			}
		})
	}
	var de *DecodeError
	if err := error(&BatchError{Errs: []error{nil, &DecodeError{Err: io.EOF}}}); !errors.As(err, &de) {
		t.Error("errors.As finds no element of a batch")
	}
}

// A handler tells them apart by context.Cause.
func TestCausesAreDistinct(t *testing.T) {
	t.Parallel()
	all := []error{ErrStopping, ErrLeaseLost, ErrHandlerTimeout, ErrClosed}
	for i, a := range all {
		for j, b := range all {
			if errors.Is(a, b) != (i == j) {
				t.Errorf("errors.Is(%v, %v) = %v", a, b, i != j)
			}
		}
	}
}
