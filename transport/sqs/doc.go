// Package sqs reads and writes Amazon SQS queues, standard and FIFO, with the
// AWS SDK for Go v2.
//
//	cfg, err := config.LoadDefaultConfig(ctx)
//	client := sqs.FromConfig(cfg, "") // or the SDK's own sqs.NewFromConfig
//	src, err := sqs.Queue(client, "orders.fifo", nil)
//	err = keylanes.Run(ctx, src, handler, nil)
//
// # FIFO and standard
//
// On a FIFO queue a message's group is its key: SQS hands out more of a group
// only when all of it that is out is settled, at most ten at a time, so its
// order holds across replicas. On a standard queue a group (fair queues) is a
// key too: two messages of it never run at once in this process, but SQS
// promises no order, and other processes get messages of the same group.
//
// # Leases
//
// A received message stays invisible for the visibility timeout, counted here
// from before the request was sent. The tree extends everything that it holds,
// to at most 12 hours. When a lease lapses the message may be somebody else's:
// its handler's context is cancelled, and its result is refused.
//
// # Calls
//
// Deletes, returns and extensions go out in batches of ten, waiting at most 10 ms
// to fill one: about 200 calls for 1,000 messages. Every entry is retried by
// itself while its lease lives. The SDK's own retries are off, because a
// repeated call means something else for each operation:
//
//   - A receive whose reply was lost has taken its messages. On a FIFO queue it
//     is repeated with the same attempt id, which brings the same messages; on a
//     standard queue they come again after the visibility timeout.
//   - A delete that is repeated may find its receipt used up: it was carried out.
//   - A receive is never cancelled, because SQS would hand messages to a
//     connection that nobody reads. A stop waits for it, at most the wait time.
//
// Each request's body is copied before it is sent. Without that the SDK and
// net/http together lose about one reply in a hundred of 200 KB ("use of closed
// network connection"), and with each reply its ten messages until their
// timeout.
//
// See docs/sqs.md for permissions, queue settings, cost, limits and errors.
package sqs
