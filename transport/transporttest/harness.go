package transporttest

import (
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// Harness is what a transport supplies to be tested. Only New is required.
type Harness struct {
	// New makes an empty queue of its own for one scenario. It may call
	// t.Fatal, and removes the queue with t.Cleanup. Parallel scenarios call it
	// at the same time.
	New func(t testing.TB, need Need) *Queue

	// Bubble runs each scenario in a testing/synctest bubble, for transports
	// that live in the process: no wait takes real time.
	Bubble bool
	// Serial runs one scenario after the other.
	Serial bool
	// Timeout bounds each wait for something that has to happen. Default 10 s.
	Timeout time.Duration
	// Quiet is how long is waited for what must not happen. Default 200 ms. With
	// a broker far away it has to be longer than a message takes.
	Quiet time.Duration

	// Lease is how long a lease of a Need.ShortLease queue lasts, where
	// Traits.LeaseExpires: long enough for a few round trips, short enough to
	// wait for. Zero skips what waits for a lease to lapse.
	Lease time.Duration
	// Delay is the delay of a message that is abandoned or published with one:
	// the shortest that the broker is exact about. Default 1 s.
	Delay time.Duration

	// Fields are what a message carries from Publisher to Delivery, besides Key
	// and Body.
	Fields Fields
	// Headers are what a message's headers may hold, with values that come back
	// deeply equal. Nil skips the scenario.
	Headers map[string]any
	// Bodies are the payloads to try. Default: empty, short, every byte, 64 KiB.
	Bodies [][]byte
	// NoKeyless says that the queue takes no message without a key.
	NoKeyless bool
	// PublishDelay and PublishTTL say that the Publisher takes Message.Delay and
	// Message.TTL. Where they are false it has to refuse them.
	PublishDelay, PublishTTL bool

	// Reason reads the reason and description of a dead letter, where
	// Traits.DeadLetter is DeadLetterWithReason.
	Reason func(d *transport.Delivery) (reason, description string)

	// CloseIdle closes what is kept for reuse beyond a receiver's life, such as
	// idle HTTP connections, before the suite looks for goroutines left over.
	CloseIdle func()

	// Skip names scenarios ("topic/name") that don't run, and why. A name that
	// the suite doesn't have fails the test.
	Skip map[string]string
}

// Fields says which fields of a message arrive as they were published.
type Fields struct {
	ID, ContentType, CorrelationID, ReplyTo bool
	// Enqueued: the time at which the broker took the message, within a minute
	// of this machine's clock.
	Enqueued bool
}

// Need is what a scenario asks of its queue.
type Need struct {
	// ShortLease asks for leases of Harness.Lease. Otherwise they have to
	// outlast the scenario: half a minute at least.
	ShortLease bool
	// DeadLetter asks for a dead-letter path, if the broker has one.
	DeadLetter bool
}

// Queue is a queue made for one scenario.
type Queue struct {
	Source    transport.Source
	Publisher transport.Publisher
	// DeadLetters receives what was rejected, where Need.DeadLetter.
	DeadLetters transport.Source
	// CutLink breaks the links of every receiver of Source without telling
	// either side. Nil skips the scenarios on lost links.
	CutLink func()
	// Held asks the broker how many messages are out, where it can be asked
	// exactly.
	Held func() int
}

// WithDefaults gives a copy with the defaults filled in.
func (h Harness) WithDefaults() *Harness {
	if h.Timeout == 0 {
		h.Timeout = 10 * time.Second
	}
	if h.Quiet == 0 {
		h.Quiet = 200 * time.Millisecond
	}
	if h.Delay == 0 {
		h.Delay = time.Second
	}
	if h.Bodies == nil {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		large := make([]byte, 64<<10)
		for i := range large {
			large[i] = byte(i * 7)
		}
		h.Bodies = [][]byte{{}, []byte("x"), every, large}
	}
	return &h
}
