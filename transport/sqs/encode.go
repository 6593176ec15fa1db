package sqs

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/keylanes/keylanes/transport"
)

// outgoing is a message on its way to SQS.
type outgoing struct {
	index int    // in the Publish call
	group string // the order to keep; "" on standard queues
	entry types.SendMessageBatchRequestEntry
	size  int

	tries     int
	notBefore time.Time
}

// encode checks m against what SQS takes, so that what doesn't fit is an error
// before anything is sent.
func encode(m *transport.Message, fifo, contentDedup bool) (*outgoing, error) {
	o := &outgoing{}
	if m.TTL != 0 {
		return nil, &transport.OptionError{Field: "Message.TTL", Value: m.TTL, Want: "must be 0: SQS has no TTL for each message, only the queue's MessageRetentionPeriod"}
	}
	if err := o.key(m, fifo, contentDedup); err != nil {
		return nil, err
	}
	switch {
	case m.Delay == 0:
	case fifo:
		return nil, &transport.OptionError{Field: "Message.Delay", Value: m.Delay, Want: "must be 0 on a FIFO queue: set the queue's DelaySeconds, or use a standard queue"}
	case m.Delay < 0 || m.Delay > maxDelay:
		return nil, &transport.OptionError{Field: "Message.Delay", Value: m.Delay, Want: "must be 0 to 15 min"}
	default:
		o.entry.DelaySeconds = int32(roundUp(m.Delay) / time.Second)
	}
	attrs := map[string]types.MessageAttributeValue{}
	o.body(m.Body, attrs)
	for name, v := range map[string]string{attrContentType: m.ContentType, attrCorrelationID: m.CorrelationID, attrReplyTo: m.ReplyTo} {
		if v != "" {
			attrs[name] = text("String", v)
		}
	}
	for name, v := range m.Headers {
		if err := checkName(name); err != nil {
			return nil, err
		}
		a, err := attribute(name, v)
		if err != nil {
			return nil, err
		}
		if a.DataType != nil {
			attrs[name] = a
		}
	}
	if len(attrs) > maxAttributes {
		return nil, &transport.OptionError{Field: "Message.Headers", Value: len(attrs),
			Want: "must be at most 10 attributes, content type, correlation id, reply-to and a binary body's mark included: put the rest into the body"}
	}
	for name, a := range attrs {
		o.size += len(name) + len(str(a.DataType)) + len(str(a.StringValue)) + len(a.BinaryValue)
		if bad := str(a.StringValue); !isText(bad) {
			return nil, &transport.OptionError{Field: "Message.Headers[" + name + "]", Value: bad, Want: "has characters that SQS doesn't take: pass it as []byte"}
		}
	}
	if len(attrs) > 0 {
		o.entry.MessageAttributes = attrs
	}
	if o.size += len(*o.entry.MessageBody); o.size > maxBytes {
		return nil, &transport.OptionError{Field: "Message.Body", Value: o.size,
			Want: "body and attributes must be at most 1048576 bytes (a binary body takes a third more): store the payload elsewhere and send its address"}
	}
	return o, nil
}

// key sets the group and the deduplication id.
func (o *outgoing) key(m *transport.Message, fifo, contentDedup bool) error {
	if m.Key != "" {
		if !isToken(m.Key) || strings.HasPrefix(m.Key, keylessGroup) {
			return &transport.OptionError{Field: "Message.Key", Value: m.Key,
				Want: "must be at most 128 ASCII letters, digits and punctuation, no spaces, to be an SQS message group, and not begin with " + keylessGroup}
		}
		o.entry.MessageGroupId = &m.Key
	}
	if !fifo {
		return nil
	}
	if m.Key == "" {
		group := keylessGroup + rand.Text()
		o.entry.MessageGroupId = &group
	}
	o.group = *o.entry.MessageGroupId
	if id := m.ID; id != "" || !contentDedup {
		switch {
		case id == "":
			id = rand.Text()
		case !isToken(id):
			sum := sha256.Sum256([]byte(id))
			id = hex.EncodeToString(sum[:])
		}
		o.entry.MessageDeduplicationId = &id
	}
	return nil
}

// body writes b as text.
func (o *outgoing) body(b []byte, attrs map[string]types.MessageAttributeValue) {
	s := string(b)
	switch {
	case len(b) == 0:
		s = "-"
		attrs[attrBody] = text("String", bodyEmpty)
	case !isText(s):
		s = base64.StdEncoding.EncodeToString(b)
		attrs[attrBody] = text("String", bodyBase64)
	}
	o.entry.MessageBody = &s
}

// isText reports whether SQS takes s: the characters of XML 1.0.
func isText(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, c := range s {
		if c < 0x20 && c != '\t' && c != '\n' && c != '\r' || c == 0xFFFE || c == 0xFFFF {
			return false
		}
	}
	return true
}

// isToken reports whether SQS takes s as a group or a deduplication id.
func isToken(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

func checkName(name string) error {
	ok := name != "" && len(name) <= 256 && name[0] != '.' && name[len(name)-1] != '.' && !strings.Contains(name, "..")
	for _, c := range name {
		ok = ok && (c == '-' || c == '_' || c == '.' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z')
	}
	lower := strings.ToLower(name)
	ok = ok && !strings.HasPrefix(lower, "aws.") && !strings.HasPrefix(lower, "amazon.")
	switch name {
	case attrContentType, attrCorrelationID, attrReplyTo, attrBody:
		ok = false
	}
	if !ok {
		return &transport.OptionError{Field: "Message.Headers", Value: name,
			Want: "a name must be 1 to 256 letters, digits, -, _ and single dots inside, without the prefixes AWS. and Amazon., and none of content-type, correlation-id, reply-to and keylanes.body"}
	}
	return nil
}

func text(kind, s string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: &kind, StringValue: &s}
}

// attribute gives a header's value as an attribute; a nil value gives none.
func attribute(name string, v any) (types.MessageAttributeValue, error) {
	bad := func(want string) (types.MessageAttributeValue, error) {
		return types.MessageAttributeValue{}, &transport.OptionError{Field: "Message.Headers[" + name + "]", Value: fmt.Sprintf("%T(%v)", v, v), Want: want}
	}
	switch x := v.(type) {
	case nil:
		return types.MessageAttributeValue{}, nil
	case string:
		if x == "" {
			return bad("must not be empty: leave the header out")
		}
		return text("String", x), nil
	case []byte:
		if len(x) == 0 {
			return bad("must not be empty: leave the header out")
		}
		kind := "Binary"
		return types.MessageAttributeValue{DataType: &kind, BinaryValue: x}, nil
	case time.Time:
		return text("String."+labelTime, x.Format(time.RFC3339Nano)), nil
	case bool:
		return text("String."+labelBool, strconv.FormatBool(x)), nil
	}
	switch r := reflect.ValueOf(v); {
	case r.CanInt():
		return text("Number", strconv.FormatInt(r.Int(), 10)), nil
	case r.CanUint():
		return text("Number", strconv.FormatUint(r.Uint(), 10)), nil
	case r.CanFloat() && !math.IsNaN(r.Float()) && !math.IsInf(r.Float(), 0) && (r.Float() == 0 || math.Abs(r.Float()) >= 1e-128 && math.Abs(r.Float()) <= 1e126):
		return text("Number."+labelFloat, strconv.FormatFloat(r.Float(), 'g', -1, 64)), nil
	case r.Kind() == reflect.String && r.Len() > 0:
		return text("String", r.String()), nil
	}
	return bad("must be a string, a number up to 1e126, a bool, a time.Time or []byte")
}
