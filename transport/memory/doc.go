// Package memory is a broker in the process: the default for programs that need
// no other, and a faithful double of one for tests.
//
// A queue is like AMQP's, ordered and with leases that live as long as their
// link, unless its options say otherwise:
//
//	b := memory.New(nil)
//	q, err := b.Queue("orders", nil)                                                   // AMQP-like
//	q, err := b.Queue("orders.fifo", &memory.QueueOptions{FIFO: true, Lease: 30 * time.Second, CountsOnReturn: true}) // SQS FIFO-like
//	q, err := b.Queue("jobs", &memory.QueueOptions{Shuffle: true, Lease: 30 * time.Second, CountsOnReturn: true})     // SQS-like
//	err = q.Publisher().Publish(ctx, transport.Message{Key: "a", Body: body})
//	src := q.Source()
//
// # Order
//
// A message that comes back goes to its original place, whatever the order in
// which messages were given back, as in Artemis. In a FIFO queue each key is a
// group, and a group is handed out up to its first message that is out or held
// back; so nothing of a group is handed out behind a held delivery. A Shuffle
// queue picks at random, from its seed.
//
// # Counts
//
// Delivery.Count is one higher after an Abandon and after a lease that lapsed,
// and after a lost link where CountsOnLoss; a Return or a Close adds nothing.
// With CountsOnReturn every hand-out counts, as SQS does.
//
// # Time
//
// The broker reads package time and so lives inside a testing/synctest bubble.
// With BrokerOptions.Now the caller drives it: time passes for leases, delays
// and TTLs at each operation and in Broker.Tick.
//
// # Faults
//
// QueueOptions.Fault, or Queue.SetFault, is a function from an operation to the
// broker's reply: errors, lost replies, slow ones, lost links, more deliveries
// than were granted, duplicates.
//
// The package starts no goroutine of its own; timers run short callbacks.
package memory
