// Package keylanes consumes a queue with one lane for each key: messages of one
// key are handled in order, never two at a time, different keys side by side,
// and nothing is lost.
//
// Run is all that most programs need:
//
//	err := keylanes.Run(ctx, source, handler, &keylanes.Options{
//		Dispatch:   keylanes.ByKey(16),
//		DeadLetter: publisher,
//	})
//
// A source comes from a transport: transport/memory, transport/amqp,
// transport/sqs. A handler is a function that returns an error, or nil to accept
// the message; what follows an error is package supervision's. Programs that run
// an actor system of their own spawn a subscription as an actor: package actors.
package keylanes
