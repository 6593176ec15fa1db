package transport

import (
	"errors"
	"fmt"
)

// Causes of a handler's cancelled context, found with context.Cause.
var (
	// ErrStopping: the subscription stops and its time to drain is over, or it
	// was stopped hard.
	ErrStopping = errors.New("the subscription is stopping")
	// ErrLeaseLost: the broker may hand the message to somebody else: the link
	// is gone, the lock is lost, the deadline has passed.
	ErrLeaseLost = errors.New("the delivery's lease is lost")
	// ErrLeaseEnding: the broker keeps a delivery for no longer than so (SQS: 12
	// hours from the receive), and that is nearly over. What the handler returns
	// now is still decided in time: nil accepts, an error goes to the policy.
	ErrLeaseEnding = errors.New("the delivery's lease ends soon and can't be extended")
	// ErrHandlerTimeout: the handler has run for longer than HandlerTimeout.
	ErrHandlerTimeout = errors.New("the handler ran into its timeout")
)

// ErrClosed says that the publisher, source or receiver was closed by its owner.
var ErrClosed = errors.New("closed")

// FatalError is an error of Source.Open or Publisher.Publish that trying again
// can't cure until somebody changes something. At start it fails the
// subscription; later it is retried all the same, visibly.
type FatalError struct {
	Op  string // what was tried: "open queue \"orders\""
	Fix string // what to change
	Err error  // the broker's or client's own error
}

// Error names the operation, the cause and the fix.
func (e *FatalError) Error() string {
	if e.Fix == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s: %v: %s", e.Op, e.Err, e.Fix)
}

// Unwrap gives the cause.
func (e *FatalError) Unwrap() error { return e.Err }

// TemporaryError is an error of Receiver.Receive that leaves the epoch alive.
type TemporaryError struct {
	Op  string
	Err error
}

// Error names the operation and the cause.
func (e *TemporaryError) Error() string { return fmt.Sprintf("%s: %v", e.Op, e.Err) }

// Unwrap gives the cause.
func (e *TemporaryError) Unwrap() error { return e.Err }

// PublishError says which messages of a Publish weren't confirmed. Those that
// aren't listed were.
type PublishError struct {
	// Unconfirmed holds the indexes of the messages that the broker refused,
	// or that may or may not have arrived.
	Unconfirmed []int
	Err         error // the first cause
}

// Error counts them and quotes the cause.
func (e *PublishError) Error() string {
	return fmt.Sprintf("%d message(s) not confirmed (the first at index %d): %v", len(e.Unconfirmed), first(e.Unconfirmed), e.Err)
}

// Unwrap gives the cause.
func (e *PublishError) Unwrap() error { return e.Err }

func first(is []int) int {
	if len(is) == 0 {
		return -1
	}
	return is[0]
}

// OptionError is an option, address or argument that can't be used. Every
// constructor of this module reports bad input with it, before anything starts.
type OptionError struct {
	Field string // "Options.Credit"
	Value any    // what was given
	Want  string // the bound, and the way out: "must be 1 to 100000"
}

// Error names the field, the value, the bound and the way out.
func (e *OptionError) Error() string {
	if s, ok := e.Value.(string); ok {
		return fmt.Sprintf("%s = %q: %s", e.Field, s, e.Want)
	}
	return fmt.Sprintf("%s = %v: %s", e.Field, e.Value, e.Want)
}
