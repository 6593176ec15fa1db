package sqs

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/keylanes/keylanes/transport"
)

// The message attributes that carry a Message's own fields. Everything else is
// a header.
const (
	attrContentType   = "content-type"
	attrCorrelationID = "correlation-id"
	attrReplyTo       = "reply-to"
	attrBody          = "keylanes.body" // how the body is written, when it isn't as it is
)

// How a body is written that SQS, which takes text of at least one character,
// wouldn't take as it is.
const (
	bodyBase64 = "base64"
	bodyEmpty  = "empty"
)

// keylessGroup begins the group of a keyless message on a FIFO queue, where each
// message must have one: a group of its own.
const keylessGroup = "keylanes.keyless."

// fill sets d from m.
func fill(d *transport.Delivery, m *types.Message) {
	d.ID = str(m.MessageId)
	d.Native = *m
	d.Group = m.Attributes["MessageGroupId"]
	if !strings.HasPrefix(d.Group, keylessGroup) {
		d.Key = d.Group
	}
	d.Sequence = m.Attributes["SequenceNumber"]
	if n, err := strconv.Atoi(m.Attributes["ApproximateReceiveCount"]); err == nil && n > 0 {
		d.Count = n - 1
	}
	if ms, err := strconv.ParseInt(m.Attributes["SentTimestamp"], 10, 64); err == nil && ms > 0 {
		d.Enqueued = time.UnixMilli(ms)
	}
	if m.Body != nil {
		d.Body = []byte(*m.Body)
	}
	for name, v := range m.MessageAttributes {
		switch name {
		case attrContentType:
			d.ContentType = str(v.StringValue)
		case attrCorrelationID:
			d.CorrelationID = str(v.StringValue)
		case attrReplyTo:
			d.ReplyTo = str(v.StringValue)
		case attrBody:
			decodeBody(d, str(v.StringValue))
		default:
			if d.Headers == nil {
				d.Headers = make(map[string]any, len(m.MessageAttributes))
			}
			d.Headers[name] = header(v)
		}
	}
}

// decodeBody undoes what encodeBody did. A body that doesn't decode stays as it
// came, and keeps the attribute as a header: the codec will refuse it.
func decodeBody(d *transport.Delivery, how string) {
	switch how {
	case bodyEmpty:
		d.Body = nil
		return
	case bodyBase64:
		if b, err := base64.StdEncoding.DecodeString(string(d.Body)); err == nil {
			d.Body = b
			return
		}
	}
	if d.Headers == nil {
		d.Headers = map[string]any{}
	}
	d.Headers[attrBody] = how
}

// header gives an attribute's value as a Go value: int64 or float64, []byte,
// bool or time.Time (which Publisher marks by a label of the type), or string.
// What doesn't parse stays a string.
func header(v types.MessageAttributeValue) any {
	s := str(v.StringValue)
	kind, label, _ := strings.Cut(str(v.DataType), ".")
	switch {
	case kind == "Binary":
		return v.BinaryValue
	case kind == "Number":
		if n, err := strconv.ParseInt(s, 10, 64); err == nil && label != labelFloat {
			return n
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil {
			return f
		}
	case label == labelBool && (s == "true" || s == "false"):
		return s == "true"
	case label == labelTime:
		if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
			return t
		}
	}
	return s
}

// Labels that Publisher puts on an attribute's type, so that a header comes
// back as it was.
const (
	labelBool  = "bool"
	labelTime  = "time"
	labelFloat = "float"
)
