package oracle

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// Kind says what a record of a Log is about.
type Kind uint8

// The kinds of record.
const (
	_ Kind = iota
	// Published: the message is about to be published, in the order of calls.
	Published
	// Unconfirmed: publishing it failed; it may have arrived or not.
	Unconfirmed
	// Started: a handler starts.
	Started
	// Succeeded: the handler returned nil.
	Succeeded
	// Failed: the handler returned an error.
	Failed
	// Panicked: the handler panicked, or called runtime.Goexit.
	Panicked
	// DeadLettered: the copy at the dead-letter target is confirmed.
	DeadLettered
	// AcceptedAnyway: accepted although it failed, as the policy said.
	AcceptedAnyway
	// Returned: given back to the broker, as not started or as failed.
	Returned
	// LeaseLost: the broker may hand it to somebody else.
	LeaseLost

	// Two kinds that only the log itself writes.
	heldMost
	closed
)

var kindNames = [...]string{"none", "published", "unconfirmed", "started", "succeeded", "failed", "panicked",
	"dead-lettered", "accepted-anyway", "returned", "lease-lost", "held", "closed"}

// String names the kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// outcome reports whether k may be given to Record.
func (k Kind) outcome() bool {
	return k == Published || k == Unconfirmed || (k >= DeadLettered && k <= LeaseLost)
}

// entry is one record.
type entry struct {
	at      int64  // unix nanoseconds; within a process never going back
	run     uint64 // the same for a start and its end; for heldMost: how many
	id, key string
	attempt int32
	process uint16 // index into Log.processes
	kind    Kind
}

// chunkSize bounds what is moved when a log grows: nothing.
const chunkSize = 4096

// Log records what happened. All methods may be called from many goroutines at
// once. In memory a record takes about 60 bytes; the ids and keys that it names
// are kept as long as the log.
type Log struct {
	// Key finds a message's key. Set it before anything is recorded, to the
	// function that the consumer uses, where that has one. Nil: Message.Key.
	Key func(*transport.Message) string

	base      time.Time // anchors the time stamps
	baseNanos int64
	processes []process // one, but for a loaded log

	mu     sync.Mutex // guards what follows; the order of records is the order of holding it
	chunks [][]entry
	n      uint64   // records made; numbers the runs
	stamps uint64   // identities given by publishers
	held   int      // right now
	most   int      // the most ever held
	file   *os.File // nil: in memory
	line   []byte   // the line being written
	err    error    // the first error of the file
}

// process is what a log knows of the process that wrote it.
type process struct {
	name string
	// ended is false when the log stops without a closing record: the process
	// was killed, and what it ran ended with its last record.
	ended bool
}

// New returns a log in memory.
func New() *Log {
	now := time.Now()
	return &Log{base: now, baseNanos: now.UnixNano(), processes: []process{{name: processName(), ended: true}}}
}

// Run is one run of a handler, from its start to its end.
type Run struct {
	log     *Log
	n       uint64
	id, key string
	attempt int32
}

// Start records that a handler starts on m, before it does; attempt is 1 for
// the first, 0 when unknown. Middleware calls it; call it where you can't use
// that.
func (l *Log) Start(m *transport.Message, attempt int) Run {
	r := Run{log: l, id: Identity(m), key: l.key(m), attempt: int32(attempt)}
	r.n = l.add(entry{kind: Started, id: r.id, key: r.key, attempt: r.attempt})
	return r
}

// End records how the run ended, after it did: Succeeded, Failed or Panicked;
// any other kind is a programmer's error and panics.
func (r Run) End(k Kind) {
	if k < Succeeded || k > Panicked {
		panic(fmt.Sprintf("oracle: Run.End(%s): give Succeeded, Failed or Panicked", k))
	}
	r.log.add(entry{kind: k, run: r.n, id: r.id, key: r.key, attempt: r.attempt})
}

// Record records an outcome that the wrappers can't see: AcceptedAnyway,
// Returned, LeaseLost; or what a publisher of another kind does: Published
// (before it is sent), Unconfirmed, DeadLettered (after it is confirmed). The
// kinds of a run panic: use Start.
func (l *Log) Record(k Kind, m *transport.Message) {
	if !k.outcome() {
		panic(fmt.Sprintf("oracle: Record(%s): use Start and Run.End for a handler's runs", k))
	}
	l.add(entry{kind: k, id: Identity(m), key: l.key(m)})
}

// key finds m's key. A function that panics leaves it keyless, as it does in a
// subscription.
func (l *Log) key(m *transport.Message) (key string) {
	if l.Key == nil {
		return m.Key
	}
	defer func() {
		if recover() != nil {
			key = ""
		}
	}()
	return l.Key(m)
}

// Received counts n more deliveries as held, from when they were handed out.
func (l *Log) Received(n int) { l.hold(n, false) }

// Settled counts n deliveries as no longer held.
func (l *Log) Settled(n int) { l.hold(-n, false) }

// Held records a sample of how many deliveries are held, for callers who can't
// call Received and Settled. Use one way or the other.
func (l *Log) Held(n int) { l.hold(n, true) }

func (l *Log) hold(n int, sample bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sample {
		l.held = n
	} else {
		l.held += n
	}
	if l.held > l.most {
		l.most = l.held
		if l.file != nil {
			l.write(&entry{at: l.now(), kind: heldMost, run: uint64(l.most)})
		}
	}
}

// add appends e, and numbers it when it starts a run.
func (l *Log) add(e entry) uint64 {
	l.mu.Lock()
	// The stamp is taken under the lock, so that stamps and records have the
	// same order.
	e.at = l.now()
	l.n++
	if e.kind == Started {
		e.run = l.n
	}
	if l.file != nil {
		l.write(&e)
	} else {
		l.keep(e)
	}
	l.mu.Unlock()
	return e.run
}

// keep appends e to the memory. l.mu is held.
func (l *Log) keep(e entry) {
	last := len(l.chunks) - 1
	if last < 0 || len(l.chunks[last]) == chunkSize {
		l.chunks = append(l.chunks, make([]entry, 0, chunkSize))
		last++
	}
	l.chunks[last] = append(l.chunks[last], e)
}

func (l *Log) now() int64 { return l.baseNanos + int64(time.Since(l.base)) }

// Len is how many records were made.
func (l *Log) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.n)
}

// snapshot returns the records made so far. Chunks only grow, and what is in
// them never changes.
func (l *Log) snapshot() (chunks [][]entry, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([][]entry(nil), l.chunks...), l.most
}
