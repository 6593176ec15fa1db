package codec_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/keylanes/keylanes/codec"
	"github.com/keylanes/keylanes/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type order struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

func TestJSONRoundTrip(t *testing.T) {
	t.Parallel()
	want := order{ID: "a\"b\u2028", Cents: 1250}
	m, err := codec.JSON.Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	if m.ContentType != "application/json" {
		t.Errorf("content type %q", m.ContentType)
	}
	var got order
	if err := codec.JSON.Decode(&m, &got); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestJSONRefuses(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"empty":         "",
		"cut":           `{"id":"a"`,
		"two values":    `{"id":"a"}{"id":"b"}`,
		"trailing text": `{"id":"a"} x`,
		"wrong type":    `{"id":7}`,
	} {
		var got order
		if err := codec.JSON.Decode(&transport.Message{Body: []byte(body)}, &got); err == nil {
			t.Errorf("%s: %q decoded to %+v", name, body, got)
		}
	}
	if _, err := codec.JSON.Encode(func() {}); err == nil || !strings.Contains(err.Error(), "codec: JSON") {
		t.Errorf("a function encoded: %v", err)
	}
}

func TestRaw(t *testing.T) {
	t.Parallel()
	for _, v := range []any{[]byte{0, 255, 10}, "plain \u00e9", []byte{}, ""} {
		m, err := codec.Raw.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		into := reflect.New(reflect.TypeOf(v))
		if err := codec.Raw.Decode(&m, into.Interface()); err != nil {
			t.Fatal(err)
		}
		if got := into.Elem().Interface(); !reflect.DeepEqual(got, v) {
			t.Errorf("got %v, want %v", got, v)
		}
	}
	var n int
	if err := codec.Raw.Decode(&transport.Message{Body: []byte("1")}, &n); err == nil {
		t.Error("Raw decoded into an *int")
	}
	if _, err := codec.Raw.Encode(1); err == nil {
		t.Error("Raw encoded an int")
	}
}

// What a handler sees of a body that doesn't decode: a DecodeError, which
// policies know as undecodable.
func TestTypedReportsDecodeError(t *testing.T) {
	t.Parallel()
	h := transport.Typed(codec.JSON, func(context.Context, order, *transport.Delivery) error {
		t.Error("the handler was called")
		return nil
	})
	err := h.Handle(context.Background(), &transport.Delivery{Message: transport.Message{Body: []byte("{")}})
	var de *transport.DecodeError
	if !errors.As(err, &de) {
		t.Fatalf("got %v, want a *transport.DecodeError", err)
	}
}

func FuzzJSONDecode(f *testing.F) {
	f.Add([]byte(`{"id":"a","cents":1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		kept := string(body)
		var v any
		err := codec.JSON.Decode(&transport.Message{Body: body}, &v)
		if string(body) != kept {
			t.Fatal("Decode changed the body")
		}
		if err != nil {
			return
		}
		m, err := codec.JSON.Encode(v)
		if err != nil {
			t.Fatalf("decoded %q, but it doesn't encode: %v", body, err)
		}
		var again any
		if err := codec.JSON.Decode(&m, &again); err != nil || !reflect.DeepEqual(v, again) {
			t.Fatalf("round trip of %q: %v, %v and %v", body, err, v, again)
		}
	})
}
