package amqp

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/transport"
)

func ptr[T any](v T) *T { return &v }

func mapped(m *goamqp.Message) *transport.Delivery {
	var s transport.Slab
	d := s.New(transport.NewLease(), nil)
	fromAMQP(m, d)
	return d
}

// The table of docs/amqp.md, from the broker.
func TestFromAMQP(t *testing.T) {
	t.Parallel()
	created, ingress := time.UnixMilli(1_700_000_000_001), time.UnixMilli(1_700_000_000_002)
	id := goamqp.UUID{1, 2, 3}
	full := &goamqp.Message{
		Header: &goamqp.MessageHeader{DeliveryCount: 3},
		Properties: &goamqp.MessageProperties{
			MessageID: "m", CorrelationID: uint64(7), ReplyTo: ptr("r"), ContentType: ptr("text/plain"), GroupID: ptr("g"), CreationTime: &created,
		},
		Annotations:           goamqp.Annotations{ingressAnnotation: ingress.UnixMilli(), sequenceAnno: int64(42), 5: "odd"},
		ApplicationProperties: map[string]any{"a": int32(1), dupIDProperty: "m"},
		Data:                  [][]byte{[]byte("he"), []byte("llo")},
	}
	d := mapped(full)
	if d.ID != "m" || d.CorrelationID != "7" || d.ReplyTo != "r" || d.ContentType != "text/plain" || d.Key != "g" || d.Group != "g" ||
		d.Count != 3 || !d.Enqueued.Equal(ingress) || d.Sequence != "42" || string(d.Body) != "hello" || d.Native != full ||
		!reflect.DeepEqual(d.Headers, map[string]any{"a": int32(1)}) {
		t.Errorf("%+v", d)
	}
	if full.ApplicationProperties[dupIDProperty] != "m" {
		t.Error("the original was changed")
	}
	if d := mapped(&goamqp.Message{}); d.Count != 0 || d.Body != nil || d.Headers != nil || d.ID != "" || !d.Enqueued.IsZero() {
		t.Errorf("of nothing: %+v", d)
	}
	for want, v := range map[string]any{"m": "m", "7": uint64(7), id.String(): id, "00ff": []byte{0, 255}, "": nil} {
		if d := mapped(&goamqp.Message{Properties: &goamqp.MessageProperties{MessageID: v}}); d.ID != want {
			t.Errorf("message-id %v is %q", v, d.ID)
		}
	}
	for want, m := range map[string]*goamqp.Message{
		"text": {Value: "text"}, "bytes": {Value: []byte("bytes")}, "sym": {Value: goamqp.Symbol("sym")}, "one": {Data: [][]byte{[]byte("one")}},
	} {
		if d := mapped(m); string(d.Body) != want {
			t.Errorf("body %q of %v", d.Body, m)
		}
	}
	for _, m := range []*goamqp.Message{{Value: int64(5)}, {Value: map[any]any{"a": 1}}, {Sequence: [][]any{{1}}}, {Value: goamqp.Null{}}} {
		if d := mapped(m); d.Body != nil || d.Native != m {
			t.Errorf("body %q of %v", d.Body, m)
		}
	}
	props := map[string]any{"a": 1}
	if d := mapped(&goamqp.Message{ApplicationProperties: props, Properties: &goamqp.MessageProperties{CreationTime: &created}}); !d.Enqueued.Equal(created) || len(d.Headers) != 1 {
		t.Errorf("%+v", d)
	}
	if d := mapped(&goamqp.Message{ApplicationProperties: map[string]any{dupIDProperty: "m"}}); d.Headers != nil {
		t.Errorf("headers %v", d.Headers)
	}
}

func TestToAMQP(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	o := PublisherOptions{}
	m, err := o.toAMQP(&transport.Message{
		ID: "m", Key: "g", ContentType: "text/plain", CorrelationID: "c", ReplyTo: "r", Body: []byte("b"),
		Headers: map[string]any{"a": 1}, Delay: time.Nanosecond, TTL: 1500 * time.Microsecond,
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	p := m.Properties
	if p.MessageID != "m" || *p.GroupID != "g" || *p.ContentType != "text/plain" || p.CorrelationID != "c" || *p.ReplyTo != "r" || !p.CreationTime.Equal(now) ||
		string(m.Data[0]) != "b" || m.ApplicationProperties["a"] != 1 || m.ApplicationProperties[dupIDProperty] != "m" ||
		m.Annotations[delayAnnotation] != int64(1) || m.Header.TTL != 2*time.Millisecond || !m.Header.Durable || m.Header.Priority != 4 {
		t.Errorf("%+v %+v", m, p)
	}
	if m, err = o.toAMQP(&transport.Message{}, now); err != nil || m.Properties.GroupID != nil || m.Properties.MessageID != nil ||
		m.ApplicationProperties != nil || m.Annotations != nil || m.Header.TTL != 0 || len(m.Data) != 1 {
		t.Errorf("%+v", m)
	}
	for _, d := range []time.Duration{maxTTL, maxTTL - 1} {
		if _, err := o.toAMQP(&transport.Message{TTL: d, Delay: d}, now); err != nil {
			t.Error(err)
		}
	}
	if _, err := o.toAMQP(&transport.Message{TTL: maxTTL + 1}, now); err == nil {
		t.Error("a TTL that doesn't fit was taken")
	}
}

// Whatever a broker passes on as a message becomes a delivery, or is said not to
// be one, and leaves as it came where AMQP can say it.
func FuzzMessage(f *testing.F) {
	for _, m := range []*goamqp.Message{
		{}, {Value: "x"}, {Data: [][]byte{{1}, {2}}}, {Sequence: [][]any{{"a", int64(1)}}},
		{Properties: &goamqp.MessageProperties{MessageID: uint64(1), GroupID: ptr("g")}, Annotations: goamqp.Annotations{"a": "b", 1: 2}},
		{Header: &goamqp.MessageHeader{Durable: true, DeliveryCount: 9}, ApplicationProperties: map[string]any{"k": []byte{1}}},
	} {
		b, err := m.MarshalBinary()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("rubbish"))
	f.Add([]byte{0, 0x53, 0x73, 0xd0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m goamqp.Message
		if err := decode(&m, b); err != nil {
			return
		}
		d := mapped(&m)
		if d.Count < 0 || d.Native != &m {
			t.Fatalf("%+v", d)
		}
		o := PublisherOptions{NoDeduplication: true}
		out, err := o.toAMQP(&transport.Message{ID: d.ID, Key: d.Key, Headers: d.Headers, Body: d.Body}, time.UnixMilli(0))
		if err != nil {
			return // strings that aren't UTF-8
		}
		back, err := out.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var again goamqp.Message
		if err := decode(&again, back); err != nil {
			t.Fatal(err)
		}
		e := mapped(&again)
		if e.ID != d.ID || e.Key != d.Key || !bytes.Equal(e.Body, d.Body) || len(e.Headers) != len(d.Headers) {
			t.Fatalf("%+v came back as %+v", d, e)
		}
	})
}

// noPeer takes note of nothing; it fails the stream where the receiver would.
type noPeer struct{ transfers, bytes int }

func (p *noPeer) began(uint32)                              {}
func (p *noPeer) attached(uint32, uint32, bool)             {}
func (p *noPeer) flowed(flow)                               {}
func (p *noPeer) detached(uint32)                           {}
func (p *noPeer) disposed(uint32, uint32, byte, []byte)     {}
func (p *noPeer) barrierAttached(string, uint32, bool) bool { return false }
func (p *noPeer) barrierDetached(uint32) bool               { return false }
func (p *noPeer) ended()                                    {}
func (p *noPeer) heard()                                    {}
func (p *noPeer) transferred(t transfer) error {
	p.transfers++
	p.bytes += len(t.payload)
	return nil
}

// However the stream is cut, the demux sees the same frames and passes the same
// bytes on, or the same failure.
func FuzzDemux(f *testing.F) {
	f.Add([]byte("AMQP\x00\x01\x00\x00"), uint8(3))
	all := []byte("AMQP\x00\x01\x00\x00")
	all = append(all, frame(codeAttach, list{"n", 0, false, nil, nil, desc{0x28, list{"q"}}, nil, nil, nil, 7})...)
	all = append(all, transferOf(1, data("x"))...)
	all = append(all, frame(codeFlow, list{0, 1, 2, 3, 4, 5, 6, 7, false, true})...)
	all = append(all, 0, 0, 0, 8, 2, 0, 0, 0)
	all = append(all, frame(codeDetach, list{0, true, amqpError("a", "b")})...)
	f.Add(all, uint8(1))
	f.Add(all, uint8(100))
	f.Add([]byte{0, 0, 0, 12, 2, 0, 0, 0, 0, 0x53, 0x14, 0xc0}, uint8(5))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		run := func(step int) (p noPeer, pass string, err error) {
			d := demux{peer: &p}
			for rest := b; len(rest) > 0 && err == nil; {
				n := copy(d.space(), rest[:min(step, len(rest))])
				rest = rest[n:]
				err = d.fed(n)
			}
			return p, string(d.pass), err
		}
		p1, pass1, err1 := run(int(step) + 1)
		p2, pass2, err2 := run(1 << 30)
		if p1 != p2 || pass1 != pass2 || (err1 == nil) != (err2 == nil) {
			t.Fatalf("%+v %d %v, %+v %d %v", p1, len(pass1), err1, p2, len(pass2), err2)
		}
	})
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"amqp://h", "amqps://u:p@h:5671?hostname=v", "amqp://u:p%zz@h", "x", "://@", "amqp://[::1]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := parseURL("url", s)
		if err != nil {
			if i := strings.Index(s, "://"); i >= 0 {
				if user, _, ok := strings.Cut(s[i+3:], "@"); ok && len(user) > 12 && strings.Contains(err.Error(), user) {
					t.Fatalf("%v shows what is before the @", err)
				}
			}
			return
		}
		if e.host == "" || e.address == "" || !utf8.ValidString(e.user) && utf8.ValidString(s) && !strings.Contains(s, "%") {
			t.Fatalf("%+v", e)
		}
	})
}

func TestRing(t *testing.T) {
	t.Parallel()
	var q ring[int]
	next, want := 0, 0
	for round := range 500 {
		for range round % 9 {
			q.push(next)
			next++
		}
		for range round % 8 {
			if v, ok := q.pop(); ok {
				if v != want {
					t.Fatalf("%d instead of %d", v, want)
				}
				want++
			}
		}
	}
	for {
		v, ok := q.pop()
		if !ok {
			break
		}
		if v != want {
			t.Fatalf("%d instead of %d", v, want)
		}
		want++
	}
	if want != next || q.len() != 0 {
		t.Errorf("%d of %d came out", want, next)
	}
}
