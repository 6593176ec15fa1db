package keylanes

import (
	"context"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/transport"
)

// The names that most programs need, so that they import one package.
type (
	// Delivery is one hand-out of a message; see transport.Delivery.
	Delivery = transport.Delivery
	// Message is what a broker stores; see transport.Message.
	Message = transport.Message
	// Handler does the work on a delivery; see transport.Handler.
	Handler = transport.Handler
	// HandlerFunc is a function as a Handler.
	HandlerFunc = transport.HandlerFunc
	// BatchHandler does the work on several deliveries; see
	// transport.BatchHandler.
	BatchHandler = transport.BatchHandler
	// BatchHandlerFunc is a function as a BatchHandler.
	BatchHandlerFunc = transport.BatchHandlerFunc
	// BatchError gives each element of a batch its own result.
	BatchError = transport.BatchError
	// Middleware wraps a Handler; see transport.Middleware.
	Middleware = transport.Middleware
	// Options are a subscription's; see actors.Options.
	Options = actors.Options
	// Dispatch says how deliveries are spread over lanes; see actors.Dispatch.
	Dispatch = actors.Dispatch
	// Observer sees each step of each delivery; see actors.Observer.
	Observer = actors.Observer
	// Observation is one step of one delivery; see actors.Observation.
	Observation = actors.Observation
)

// Causes of a handler's cancelled context, found with context.Cause, and the
// error of a stop that had to leave a handler behind.
var (
	ErrStopping       = transport.ErrStopping
	ErrLeaseLost      = transport.ErrLeaseLost
	ErrLeaseEnding    = transport.ErrLeaseEnding
	ErrHandlerTimeout = transport.ErrHandlerTimeout
	ErrHandlerStuck   = actors.ErrHandlerStuck
)

// Sequential runs one handler at a time; see actors.Sequential.
func Sequential() Dispatch { return actors.Sequential() }

// Workers runs up to n handlers at once, without order; see actors.Workers.
func Workers(n int) Dispatch { return actors.Workers(n) }

// ByKey runs n lanes and gives each key to the lane that it hashes to; see
// actors.ByKey.
func ByKey(n int) Dispatch { return actors.ByKey(n) }

// PerKey lends ready keys to any of n lanes; see actors.PerKey.
func PerKey(n int) Dispatch { return actors.PerKey(n) }

// Run reads src with h until ctx ends, then drains, and returns nil after a
// clean drain; see actors.Run.
func Run(ctx context.Context, src transport.Source, h Handler, o *Options) error {
	return actors.Run(ctx, src, h, o)
}

// RunBatch is Run for a handler that works on several deliveries at once; see
// actors.BatchSubscription.
func RunBatch(ctx context.Context, src transport.Source, h BatchHandler, o *Options) error {
	return actors.RunBatch(ctx, src, h, o)
}
