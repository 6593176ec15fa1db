package amqp

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/transport"
)

// maxTTL is the longest time that AMQP's header and Artemis' delay can hold.
const maxTTL = math.MaxUint32 * time.Millisecond

// toAMQP makes the broker's message of m, or says with a *transport.OptionError
// why there can't be one.
func (o *PublisherOptions) toAMQP(m *transport.Message, now time.Time) (*goamqp.Message, error) {
	for _, s := range [...]struct{ field, v string }{
		{"Message.ID", m.ID}, {"Message.Key", m.Key}, {"Message.CorrelationID", m.CorrelationID}, {"Message.ReplyTo", m.ReplyTo},
	} {
		if !utf8.ValidString(s.v) {
			return nil, &transport.OptionError{Field: s.field, Value: strings.ToValidUTF8(cutString(s.v, 40), "?"), Want: "must be UTF-8: AMQP carries nothing else in a string"}
		}
	}
	if strings.ContainsFunc(m.ContentType, func(r rune) bool { return r > 126 || r < 32 }) {
		return nil, &transport.OptionError{Field: "Message.ContentType", Value: strings.ToValidUTF8(cutString(m.ContentType, 40), "?"), Want: "must be ASCII: it is an AMQP symbol"}
	}
	if m.TTL < 0 || m.TTL > maxTTL {
		return nil, &transport.OptionError{Field: "Message.TTL", Value: m.TTL, Want: fmt.Sprintf("must be 0 to %v", maxTTL)}
	}
	if m.Delay < 0 || m.Delay > maxTTL {
		return nil, &transport.OptionError{Field: "Message.Delay", Value: m.Delay, Want: fmt.Sprintf("must be 0 to %v", maxTTL)}
	}
	// Header and priority are always sent: without a header a message isn't
	// durable, and a header without a priority that equals the others' would
	// let it overtake them.
	out := &goamqp.Message{
		Header:     &goamqp.MessageHeader{Durable: !o.NonDurable, Priority: 4, TTL: ceilMillis(m.TTL)},
		Properties: &goamqp.MessageProperties{CreationTime: &now},
		Data:       [][]byte{m.Body},
	}
	if o.Priority != nil {
		out.Header.Priority = *o.Priority
	}
	p := out.Properties
	if m.ID != "" {
		p.MessageID = m.ID
	}
	if m.CorrelationID != "" {
		p.CorrelationID = m.CorrelationID
	}
	p.GroupID, p.ReplyTo, p.ContentType = ref(m.Key), ref(m.ReplyTo), ref(m.ContentType)
	if m.Delay > 0 {
		out.Annotations = goamqp.Annotations{delayAnnotation: ceilMillis(m.Delay).Milliseconds()}
	}
	var err error
	out.ApplicationProperties, err = o.properties(m)
	return out, err
}

func ref(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// ceilMillis rounds up, so that a tiny delay or life isn't none, which would
// mean for ever.
func ceilMillis(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

func (o *PublisherOptions) properties(m *transport.Message) (map[string]any, error) {
	dedup := m.ID != "" && !o.NoDeduplication
	if len(m.Headers) == 0 && !dedup {
		return nil, nil
	}
	out := make(map[string]any, len(m.Headers)+1)
	for k, v := range m.Headers {
		if !utf8.ValidString(k) {
			return nil, &transport.OptionError{Field: "Message.Headers", Value: strings.ToValidUTF8(cutString(k, 40), "?"), Want: "names must be UTF-8"}
		}
		if err := checkHeader(k, v); err != nil {
			return nil, err
		}
		out[k] = v
	}
	if dedup {
		out[dupIDProperty] = m.ID
	}
	return out, nil
}

// checkHeader accepts the simple types that AMQP has, which are those that a
// received header can have.
func checkHeader(k string, v any) error {
	switch v := v.(type) {
	case nil, bool, int, int8, int16, int32, int64, uint8, uint16, uint32, uint64, uint,
		float32, float64, []byte, time.Time, goamqp.UUID, goamqp.Symbol:
		return nil
	case string:
		if utf8.ValidString(v) {
			return nil
		}
		return &transport.OptionError{Field: fmt.Sprintf("Message.Headers[%q]", k), Value: "(not UTF-8)", Want: "must be UTF-8: send other bytes as []byte"}
	default:
		return &transport.OptionError{Field: fmt.Sprintf("Message.Headers[%q]", k), Value: fmt.Sprintf("(%T)", v), Want: "must be of a simple type: string, []byte, bool, a number, time.Time"}
	}
}
