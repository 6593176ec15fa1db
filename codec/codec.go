// Package codec turns payloads into Go values and back, for transport.Typed and
// for publishing. It imports the standard library only; a codec for another
// format is a type with the two methods of transport.Codec.
package codec

import (
	"encoding/json"
	"fmt"

	"github.com/keylanes/keylanes/transport"
)

// The content types that Encode sets.
const (
	ContentTypeJSON = "application/json"
	ContentTypeText = "text/plain; charset=utf-8"
	ContentTypeRaw  = "application/octet-stream"
)

// JSON reads and writes payloads with encoding/json. It decodes whatever the
// message's content type says, because many producers set none. A body that
// goes on after its first value doesn't decode: it is cut or glued together.
var JSON transport.Codec = jsonCodec{}

// Raw passes payloads through as they are, in []byte or string. A decoded
// []byte shares the message's memory: read it only. Every other type is an
// error.
var Raw transport.Codec = rawCodec{}

type jsonCodec struct{}

// Decode implements transport.Codec.
func (jsonCodec) Decode(m *transport.Message, into any) error {
	// Unmarshal checks the whole body before it touches into, and refuses
	// anything after the first value.
	return json.Unmarshal(m.Body, into)
}

// Encode implements transport.Codec.
func (jsonCodec) Encode(v any) (transport.Message, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return transport.Message{}, fmt.Errorf("codec: JSON: %w", err)
	}
	return transport.Message{Body: body, ContentType: ContentTypeJSON}, nil
}

type rawCodec struct{}

// Decode implements transport.Codec.
func (rawCodec) Decode(m *transport.Message, into any) error {
	switch p := into.(type) {
	case *[]byte:
		*p = m.Body
	case *string:
		*p = string(m.Body)
	default:
		return fmt.Errorf("codec: Raw decodes into *[]byte or *string, not %T", into)
	}
	return nil
}

// Encode implements transport.Codec.
func (rawCodec) Encode(v any) (transport.Message, error) {
	switch b := v.(type) {
	case []byte:
		return transport.Message{Body: b, ContentType: ContentTypeRaw}, nil
	case string:
		return transport.Message{Body: []byte(b), ContentType: ContentTypeText}, nil
	default:
		return transport.Message{}, fmt.Errorf("codec: Raw encodes []byte or string, not %T", v)
	}
}
