package amqp

import "github.com/keylanes/keylanes/transport"

// SystemCalls is how often r's socket was read and written.
func SystemCalls(r transport.Receiver) (reads, writes int64) {
	w := r.(*receiver).link.wire
	return w.reads.Load(), w.writes.Load()
}
