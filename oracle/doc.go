// Package oracle judges what a run really did. A Log records the order in which
// messages were published, every start and end of a handler, and every outcome;
// Check holds the log against the promises of ordered, keyed processing and
// says which were broken, by which messages, and when.
//
//	log := oracle.New()
//	src = log.Source(src)                      // counts what is held
//	pub := log.Publisher(publisher)            // records the published order
//	opts.DeadLetter = log.DeadLetter(deadPub)  // records confirmed copies
//	opts.Middleware = append(opts.Middleware, log.Middleware()) // last: innermost
//	... publish and run ...
//	verdict := log.Check(oracle.Rules{Credit: 256})
//	if err := verdict.Err(); err != nil { ... }
//
// # What is judged
//
//   - Overlap: handlers of one key never run at the same time; nor do two runs
//     of one keyless message.
//   - Order: a handler starts only when each message of its key that was
//     published earlier is decided: its handler succeeded, its dead-letter copy
//     is confirmed, or it was accepted anyway. A run of a decided message is a
//     duplicate and isn't judged for order; a retry of an undecided one is fine.
//   - Loss: every confirmed message is decided in the end; what the queue still
//     holds is the caller's to say (Rules.Remaining).
//   - Duplicates: at most as many as the caller allows; none by default.
//   - Unseen: nothing is dead-lettered, or accepted anyway, that the same
//     process hasn't seen fail.
//   - Credit: never more deliveries held than were allowed.
//   - Left: no handler is still running, and none of the figures that the
//     caller gives (goroutines, actors, invisible messages) is above zero.
//   - Identity: a message without an identity, or that nobody published.
//
// # Which message is which
//
// Identity is the header named Header where a message has it, else its ID. The
// wrapping publisher sets that header on everything it sends (from the ID, or
// from a counter where there is none), because some brokers replace ids: the
// SQS MessageId is the broker's own. A message is published once under one
// identity; publishing it again because it wasn't confirmed is fine, but then
// its place in the order is uncertain and it isn't judged for order.
//
// One goroutine at a time may publish one key: with two, nobody can say which
// message came first.
//
// # Several processes
//
// Create streams a log to a file, Load reads any number of them and merges
// them by time. Within a process, time stamps never go back (the wall clock
// when the log was made plus the monotonic clock since), and records stay in
// the order in which they were made. Between processes the wall clocks must
// agree: on one machine they do, unless the clock is set during the run;
// between machines give Rules.Skew a bound of their difference. Each record of
// a file is written before the recorded thing goes on, so that a killed process
// loses none: about two microseconds each.
package oracle
