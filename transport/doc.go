// Package transport holds the contracts between a broker and the actor tree:
// what a message and a delivery are, what a source of deliveries must do, and
// what a handler is. It imports the standard library only, so that handlers,
// middleware, codecs and telemetry need no broker client and no actor library.
//
// # Words
//
// A Message is what the broker stores; a Delivery is one hand-out of it. A
// delivery lives by its Lease: a link, a session's lock, or a receipt's
// visibility timeout; several deliveries may share one. To settle a delivery is
// to accept, abandon, return or reject it. Its Key decides which deliveries
// keep their order; an empty key is keyless. Its Group is the broker's own unit
// of order. A delivery that was received and isn't settled yet is held. An
// epoch is the life of one Receiver: a reattach begins the next.
//
// # For a transport's author
//
// A Source is an immutable template. The pump of a subscription calls Open once
// for each epoch, gives credit with Grant, takes deliveries with Receive and
// hands each one's outcome to Settle. What happened to a settlement, and leases
// that are gone, come back through the Sink. Package transporttest has the
// conformance suite that a new transport has to pass.
package transport
