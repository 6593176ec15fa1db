// Package replicas tests several processes on one queue: they are killed,
// stopped and continued, and replaced one by one, while package oracle watches
// each from inside. It holds tests only.
//
// The test binary runs itself again as a consumer process (see TestMain). Each
// process streams an oracle log to a file of its own, and tells its parent over
// its standard output which messages it has handled. The parent publishes,
// makes the faults, ends everything in good order, and judges the merged logs.
//
// # What is promised across processes
//
// Nothing is ever lost, and two handlers of one process never run for one key
// at once; no window excuses that. Between processes:
//
//   - Killed (SIGKILL): order and overlap hold without exception. What the dead
//     process ran ended with it, and the broker gives its messages to others
//     only afterwards. Duplicates: see the broker's bound.
//   - Replaced (SIGTERM): order and overlap hold without exception, and there
//     are no duplicates: a drain gives back what wasn't started and settles the
//     rest with certainty.
//   - Stood still (SIGSTOP) for longer than its lease: the broker hands its
//     messages to others while its handlers, frozen in the middle, count as
//     running. This is the one fault window: from the SIGSTOP to graceAfter
//     after the SIGCONT, by when the process has noticed that its lease is gone.
//     In it order and overlap between different processes are excused.
package replicas
