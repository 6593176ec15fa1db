package amqp

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/transport"
)

// Names with a meaning to brokers.
const (
	dupIDProperty     = "_AMQ_DUPL_ID"         // Artemis: deduplication
	delayAnnotation   = "x-opt-delivery-delay" // Artemis: milliseconds
	ingressAnnotation = "x-opt-ingress-time"   // Artemis, when told to
	enqueuedAnno      = "x-opt-enqueued-time"  // Service Bus
	sequenceAnno      = "x-opt-sequence-number"
)

// fromAMQP fills in d from m. It never fails: what has no place in a Delivery
// is in Native.
func fromAMQP(m *goamqp.Message, d *transport.Delivery) {
	d.Native = m
	d.Body = bodyOf(m)
	d.Headers = headersOf(m.ApplicationProperties)
	d.Count = 0
	if m.Header != nil {
		d.Count = int(m.Header.DeliveryCount)
	}
	if p := m.Properties; p != nil {
		d.ID = idString(p.MessageID)
		d.CorrelationID = idString(p.CorrelationID)
		d.ContentType = deref(p.ContentType)
		d.ReplyTo = deref(p.ReplyTo)
		d.Group = deref(p.GroupID)
		d.Key = d.Group
		if p.CreationTime != nil {
			d.Enqueued = *p.CreationTime
		}
	}
	for k, v := range m.Annotations {
		switch k {
		case ingressAnnotation, enqueuedAnno:
			if t, ok := timeOf(v); ok {
				d.Enqueued = t
			}
		case sequenceAnno:
			if n, ok := v.(int64); ok {
				d.Sequence = strconv.FormatInt(n, 10)
			}
		}
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// bodyOf gives the payload: data sections in a row, or an amqp-value that is
// text or binary. Other values and sequences have no bytes of their own: nil.
func bodyOf(m *goamqp.Message) []byte {
	switch len(m.Data) {
	case 0:
	case 1:
		return m.Data[0]
	default:
		n := 0
		for _, b := range m.Data {
			n += len(b)
		}
		all := make([]byte, 0, n)
		for _, b := range m.Data {
			all = append(all, b...)
		}
		return all
	}
	switch v := m.Value.(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	case goamqp.Symbol:
		return []byte(v)
	default:
		return nil
	}
}

// headersOf shares the map, unless it holds what the publisher added for the
// broker.
func headersOf(props map[string]any) map[string]any {
	if _, ok := props[dupIDProperty]; !ok {
		if len(props) == 0 {
			return nil
		}
		return props
	}
	if len(props) == 1 {
		return nil
	}
	h := make(map[string]any, len(props)-1)
	for k, v := range props {
		if k != dupIDProperty {
			h[k] = v
		}
	}
	return h
}

// idString gives one of the four types of message id as text.
func idString(id any) string {
	switch v := id.(type) {
	case string:
		return v
	case uint64:
		return strconv.FormatUint(v, 10)
	case goamqp.UUID:
		return v.String()
	case []byte:
		return hex.EncodeToString(v)
	default:
		return ""
	}
}

// timeOf reads an AMQP timestamp, or milliseconds since 1970.
func timeOf(v any) (time.Time, bool) {
	switch v := v.(type) {
	case time.Time:
		return v, true
	case int64:
		return time.UnixMilli(v), true
	case uint64:
		if v > 1<<62 {
			return time.Time{}, false
		}
		return time.UnixMilli(int64(v)), true
	default:
		return time.Time{}, false
	}
}

// UndecodableType is the ContentType of a delivery whose bytes aren't an AMQP
// message: Body then holds all of them, and Native the decoder's error. A broker
// passes on what a broken producer sent.
const UndecodableType = "application/x-amqp-undecodable"

// decode reads a message. go-amqp's decoder is held to be safe, but a panic for
// one message must not be the end of all.
func decode(m *goamqp.Message, payload []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the decoder panicked: %v", p)
		}
	}()
	return m.UnmarshalBinary(payload)
}

func undecodable(d *transport.Delivery, payload []byte, err error) {
	d.ContentType, d.Body, d.Native = UndecodableType, bytes.Clone(payload), err
}
