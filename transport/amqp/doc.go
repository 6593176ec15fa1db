// Package amqp connects a subscription to a queue of an AMQP 1.0 broker. It is
// made for and tested against Apache ActiveMQ Artemis.
//
//	src, err := amqp.Queue("amqps://user:password@broker:5671", "orders", nil)
//	dlq, err := amqp.Publisher("amqps://user:password@broker:5671", "orders.dead", nil)
//
// A receiver has a connection, a session and a link of its own; a publisher has
// one connection. Nothing is dialled before the first Open or Publish.
//
// # What the broker promises, and what it costs
//
// Deliveries come in the queue's order. Accepting is a frame without an answer:
// a connection that breaks loses the accepts that were under way, and those
// messages come again. Close waits until the broker has stored everything, after
// which nothing that was settled comes again (Artemis; others are asked to end
// the session, which is the best that they can say).
//
// Giving deliveries back keeps their order only when it happens by the end of
// the link: the broker then puts everything that isn't settled back to where it
// was, uncounted. So Return means "at the end of the epoch", and Abandon, which
// the broker counts as a failed attempt, is to be followed by Close and Open
// (transport.AbandonReset).
//
// The mapping of messages, the set-up of brokers, and each error with its fix
// are in docs/amqp.md.
package amqp
