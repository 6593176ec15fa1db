package sqs

import (
	"bytes"
	"encoding/base64"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/keylanes/keylanes/transport"
)

// FuzzBody: every body and header that encode takes comes back as it was.
func FuzzBody(f *testing.F) {
	f.Add([]byte("text"), "header", "key")
	f.Add([]byte{}, "\x00", "a b")
	f.Add([]byte{0xff, 0xfe}, "", "")
	f.Add([]byte("\ufffe"), "\uffff", "keylanes.keyless.x")
	f.Fuzz(func(t *testing.T, body []byte, header, key string) {
		in := transport.Message{Key: key, Body: body, Headers: map[string]any{"s": header}}
		o, err := encode(&in, true, false)
		if err != nil {
			return
		}
		if !isText(*o.entry.MessageBody) || *o.entry.MessageBody == "" || o.size > maxBytes {
			t.Fatalf("SQS wouldn't take the body %q of %d bytes", *o.entry.MessageBody, o.size)
		}
		var d transport.Delivery
		fill(&d, &types.Message{Body: o.entry.MessageBody, MessageAttributes: o.entry.MessageAttributes, Attributes: map[string]string{"MessageGroupId": *o.entry.MessageGroupId}})
		if !bytes.Equal(d.Body, body) || d.Headers["s"] != header || d.Key != key {
			t.Fatalf("got body %q, header %q, key %q", d.Body, d.Headers["s"], d.Key)
		}
	})
}

// FuzzReceived: whatever attributes a message has, it is handed out.
func FuzzReceived(f *testing.F) {
	f.Add("Number", "1e999", "3", "x")
	f.Add("String.time", "noon", "-1", base64.StdEncoding.EncodeToString([]byte("x")))
	f.Add("Number.float", "NaN", "99999999999999999999", "")
	f.Fuzz(func(t *testing.T, kind, value, count, body string) {
		m := types.Message{Body: &body, Attributes: map[string]string{"ApproximateReceiveCount": count, "SentTimestamp": count},
			MessageAttributes: map[string]types.MessageAttributeValue{
				"a": {DataType: &kind, StringValue: &value}, "b": {DataType: &kind}, "c": {},
				attrBody: {DataType: &kind, StringValue: &value}, attrContentType: {BinaryValue: []byte(value)},
			}}
		var d transport.Delivery
		d.Count = -1
		fill(&d, &m)
		if d.Count < -1 || d.Headers["a"] == nil && kind[:min(len(kind), 6)] != "Binary" {
			t.Fatalf("count %d, headers %v", d.Count, d.Headers)
		}
	})
}
