package transport

import (
	"fmt"
	"log/slog"
	"time"
)

// Message is what a broker stores. A transport fills it in for a Delivery, a
// Publisher takes it. Fields that a broker lacks are empty.
type Message struct {
	// ID is the message's own id: the AMQP message-id, the SQS MessageId.
	// Empty when the broker or the producer gave none. A Publisher sends it
	// where producers choose the id, and uses it for deduplication where the
	// broker offers that.
	ID string
	// Key says which messages keep their order among each other. Empty means
	// keyless: no order. It is the AMQP group-id, the SQS MessageGroupId.
	Key string
	// ContentType is the MIME type of Body, where the broker carries one.
	ContentType string
	// CorrelationID ties a reply to its request.
	CorrelationID string
	// ReplyTo is the address for a reply.
	ReplyTo string
	// Body is the payload. A handler must not change it: a retry sees the same
	// bytes.
	Body []byte
	// Headers are the application's own properties. Nil when there are none.
	Headers map[string]any
	// Enqueued is when the broker took the message. Zero when unknown.
	Enqueued time.Time
	// Delay holds a published message back at the broker. Only for publishing;
	// zero means at once. A publisher whose broker can't delay refuses it.
	Delay time.Duration
	// TTL is how long a published message may live. Only for publishing; zero
	// means for ever. A publisher whose broker has no TTL refuses it.
	TTL time.Duration
	// Native is the broker client's own message (*amqp.Message,
	// types.Message), for what the fields above can't carry. Read it only.
	Native any
}

// LogValue keeps payloads and headers out of logs.
func (m Message) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", m.ID), slog.String("key", m.Key), slog.Int("bytes", len(m.Body)))
}

// String is what fmt prints: ids, never the payload.
func (m Message) String() string {
	return fmt.Sprintf("message id=%q key=%q (%d bytes)", m.ID, m.Key, len(m.Body))
}

// Headers of a dead-letter copy. All are strings but HeaderAttempts, an int64.
const (
	HeaderReason      = "keylanes-reason"      // a short, stable word
	HeaderDescription = "keylanes-description" // for people
	HeaderAttempts    = "keylanes-attempts"    // failed attempts seen
	HeaderKey         = "keylanes-key"         // the original's key
	HeaderSource      = "keylanes-source"      // the subscription's name
)
