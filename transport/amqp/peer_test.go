package amqp

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/transport"
)

func shut(t *testing.T, r transport.Receiver) {
	t.Helper()
	if err := r.Close(soon(t)); err != nil {
		t.Error(err)
	}
}

// A broker that sends more than it was granted: everything is handed out, and
// credit isn't given before the excess is used up.
func TestOverDelivery(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	r, _ := p.attach(nil)
	r.Grant(2)
	if count, credit := p.credit(); count != 0 || credit != 2 {
		t.Fatalf("granted %d after %d", credit, count)
	}
	for id := range uint32(5) {
		p.send(transferOf(id, data("x")))
	}
	gets(t, r, 5)
	r.Grant(2) // -3 open, 2 wait: nothing to give
	r.Grant(1)
	r.Grant(1)
	if count, credit := p.credit(); count != 5 || credit != 1 {
		t.Fatalf("granted %d after %d: the excess isn't used up", credit, count)
	}
	shut(t, r)
}

// Credit is issued at once when little is open, and in steps when plenty is.
func TestCreditSteps(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	r, _ := p.attach(nil)
	r.Grant(256)
	p.credit()
	for range creditStep {
		r.Grant(1)
	}
	if count, credit := p.credit(); count != 0 || credit != 256+creditStep {
		t.Fatalf("granted %d after %d", credit, count)
	}
	shut(t, r)
}

// What waits to be granted must not wait for ever when what is open is used up.
func TestWaitingCreditIsIssued(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	r, _ := p.attach(nil)
	r.Grant(10)
	p.credit()
	r.Grant(4) // less than is open: waits
	for id := range uint32(6) {
		p.send(transferOf(id, data("x")))
	}
	gets(t, r, 6)
	if count, credit := p.credit(); count != 6 || credit != 8 {
		t.Fatalf("granted %d after %d", credit, count)
	}
	shut(t, r)
}

// Accepts leave as ranges, across the wrap of delivery ids and in any order.
func TestRangesWrap(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	r, rec := p.attach(nil)
	r.Grant(5)
	p.credit()
	ids := []uint32{0xfffffffe, 0xffffffff, 0, 1, 3}
	for _, id := range ids {
		p.send(transferOf(id, data("x")))
	}
	ds := gets(t, r, 5)
	s := &r.(*receiver).settle
	s.mu.Lock() // hold the flusher off until all are queued
	for _, i := range []int{3, 0, 4, 2, 1} {
		s.queue = append(s.queue, settlement{ds[i], transport.Outcome{Kind: transport.Accept}, transport.HandleOf(ds[i]).(*held)})
	}
	s.mu.Unlock()
	s.poke()
	for _, want := range [][2]uint32{{0xfffffffe, 1}, {3, 3}} {
		f := p.hear(codeDisposition)
		receiver := f.bool()
		first, last, settled := f.uint(), f.uint(), f.bool()
		ctor, state := f.next()
		if !receiver || !settled || first != want[0] || last != want[1] || ctor != 0 || len(state) > 1 {
			t.Errorf("settled %d to %d (receiver %v, settled %v), want %v", first, last, receiver, settled, want)
		}
	}
	for range ids {
		if o := rec.next(t); o.err != nil {
			t.Error(o.err)
		}
	}
	shut(t, r)
}

// Each outcome is the state that it should be.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	r, rec := p.attach(nil)
	r.Grant(4)
	p.credit()
	for id := range uint32(4) {
		p.send(transferOf(id, data("x")))
	}
	ds := gets(t, r, 4)
	long := strings.Repeat("ü", 300)
	for i, want := range []struct {
		o     transport.Outcome
		state []byte // descriptor code and content
	}{
		{transport.Outcome{Kind: transport.Accept}, []byte{0x24}},
		{transport.Outcome{Kind: transport.Abandon}, []byte{0x27}},
		{transport.Outcome{Kind: transport.Reject, Reason: long, Description: long}, []byte{0x25}},
	} {
		r.Settle(ds[i], want.o)
		f := p.hear(codeDisposition)
		f.skip(1)
		if id := f.uint(); id != uint32(i) {
			t.Errorf("settled %d instead of %d", id, i)
		}
		f.skip(2)
		rest := f.b
		if len(rest) < 3 || rest[0] != 0 || rest[1] != 0x53 || rest[2] != want.state[0] {
			t.Errorf("%v is % x", want.o.Kind, rest)
		}
		if f.skip(1); f.err != nil {
			t.Errorf("%v: %v", want.o.Kind, f.err)
		}
		if len(rest) > 400 {
			t.Errorf("%v takes %d bytes", want.o.Kind, len(rest))
		}
		if o := rec.next(t); o.err != nil {
			t.Error(o.err)
		}
	}
	// A Return says nothing until the end of the link, and its place isn't
	// given away.
	r.Settle(ds[3], transport.Outcome{Kind: transport.Return})
	if o := rec.next(t); o.err != nil {
		t.Error(o.err)
	}
	r.Grant(1)
	r.Grant(3)
	if count, credit := p.credit(); count != 4 || credit != 3 {
		t.Errorf("granted %d after %d", credit, count)
	}
	shut(t, r)
	for len(p.got) > 0 {
		if s := <-p.got; s.code == codeDisposition {
			t.Error("a Return was settled with the link open")
		}
	}
}

func TestDeliveriesInPieces(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	r, _ := p.attach(nil)
	r.Grant(10)
	p.credit()
	body := data(strings.Repeat("0123456789", 20))
	more := func(id any, more, aborted bool, part []byte) []byte {
		return frame(codeTransfer, list{0, id, nil, nil, nil, more, nil, nil, nil, aborted}, part...)
	}
	p.send(
		more(0, true, false, body[:10]), more(nil, true, false, body[10:50]), more(0, false, false, body[50:]),
		more(1, true, false, body[:10]), more(1, true, true, nil), // aborted
		transferOf(2, data("next")),
	)
	ds := gets(t, r, 2)
	if string(ds[0].Body) != strings.Repeat("0123456789", 20) || string(ds[1].Body) != "next" {
		t.Errorf("got %q and %q", ds[0].Body, ds[1].Body)
	}
	shut(t, r)
}

// The same frames, cut anywhere.
func TestFramesInPieces(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	r, _ := p.attach(nil)
	r.Grant(200)
	p.credit()
	var b []byte
	for id := range uint32(100) {
		b = append(b, transferOf(id, data(strings.Repeat("x", int(id)*37)))...)
		b = append(b, 0, 0, 0, 8, 2, 0, 0, 0) // keep-alive
	}
	for n := 1; len(b) > 0; n++ {
		n := min(n, len(b))
		p.send(b[:n])
		b = b[n:]
	}
	for i, d := range gets(t, r, 100) {
		if len(d.Body) != i*37 {
			t.Fatalf("delivery %d has %d bytes", i, len(d.Body))
		}
	}
	shut(t, r)
}

// Ids that a broker uses twice are the broker's business: each hand-out is one.
func TestReusedIDs(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	r, rec := p.attach(nil)
	r.Grant(2)
	p.credit()
	p.send(transferOf(7, data("a")), transferOf(7, data("b")))
	ds := gets(t, r, 2)
	for _, d := range ds {
		r.Settle(d, transport.Outcome{Kind: transport.Accept})
		if o := rec.next(t); o.err != nil || o.d != d {
			t.Errorf("%v: %v", o.d, o.err)
		}
	}
	shut(t, r)
}

// What the broker has settled by itself needs, and gets, no answer.
func TestPreSettled(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	r, rec := p.attach(nil)
	r.Grant(2)
	p.credit()
	p.send(frame(codeTransfer, list{0, 0, []byte{0}, 0, true}, data("x")...), transferOf(1, data("y")))
	for _, d := range gets(t, r, 2) {
		r.Settle(d, transport.Outcome{Kind: transport.Accept})
		if o := rec.next(t); o.err != nil {
			t.Error(o.err)
		}
	}
	f := p.hear(codeDisposition)
	f.skip(1)
	if id := f.uint(); id != 1 {
		t.Errorf("settled %d", id)
	}
	shut(t, r)
}

// A broker that doesn't say it is Artemis isn't asked for settings.
func TestCheckOfAnotherBroker(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	fs, err := Check(soon(t), p.url(), "q", &Options{Connection: Connection{SASL: SASLNone}})
	var e *Error
	if !errors.Is(err, ErrNoCheck) || !errors.As(err, &e) || len(fs) > 0 {
		t.Errorf("%v, %v", fs, err)
	}
}

func TestUndecodableMessage(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	r, _ := p.attach(nil)
	r.Grant(2)
	p.credit()
	p.send(transferOf(0, []byte("rubbish")), transferOf(1, data("good")))
	ds := gets(t, r, 2)
	if ds[0].ContentType != UndecodableType || string(ds[0].Body) != "rubbish" {
		t.Errorf("got %v", ds[0])
	}
	if err, ok := ds[0].Native.(error); !ok || err == nil {
		t.Errorf("native is %v", ds[0].Native)
	}
	if string(ds[1].Body) != "good" {
		t.Errorf("got %v", ds[1])
	}
	shut(t, r)
}

// A group id that isn't UTF-8 is a key like any other.
func TestKeyThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	r, rec := p.attach(nil)
	r.Grant(2)
	p.credit()
	const placeholder, key = "KEY!", "\xff\xfe\x00\x80"
	group := placeholder
	b, err := (&goamqp.Message{Properties: &goamqp.MessageProperties{GroupID: &group}, Data: [][]byte{[]byte("x")}}).MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.Replace(b, []byte(placeholder), []byte(key), 1)
	p.send(transferOf(0, b), transferOf(1, b))
	for _, d := range gets(t, r, 2) {
		if d.Key != key || d.Group != key || string(d.Body) != "x" {
			t.Errorf("key %q, group %q, body %q", d.Key, d.Group, d.Body)
		}
		r.Settle(d, transport.Outcome{Kind: transport.Accept})
		if o := rec.next(t); o.err != nil {
			t.Error(o.err)
		}
	}
	shut(t, r)
}

// An echo is answered, and the broker hears of transfers before its session
// window is used up.
func TestFlowsAreAnswered(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	r, _ := p.attach(nil)
	r.Grant(5000)
	p.credit()
	p.send(frame(codeFlow, list{0, 5000, 0, 5000, nil, nil, nil, nil, nil, true}))
	if count, credit := p.credit(); count != 0 || credit != 5000 {
		t.Errorf("answered %d after %d", credit, count)
	}
	for id := range uint32(sessionWindow / 2) {
		p.send(transferOf(id, data("x")))
	}
	f := p.hear(codeFlow)
	next, window := f.uint(), f.uint()
	if next < sessionWindow/2-1 || window != sessionWindow {
		t.Errorf("next %d, window %d", next, window)
	}
	gets(t, r, sessionWindow/2)
	shut(t, r)
}

// Every way in which a peer ends an epoch gives an error of the right scope,
// with the broker's own word for it.
func TestEndings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send      []byte
		scope     Scope
		condition goamqp.ErrCond
		text      string
		fatal     bool
	}{
		"detach":                 {send: frame(codeDetach, list{0, true}), scope: ScopeLink},
		"detach with an error":   {send: frame(codeDetach, list{0, true, amqpError("amqp:resource-deleted", "gone")}), scope: ScopeLink, condition: "amqp:resource-deleted"},
		"detach without closed":  {send: frame(codeDetach, list{0, false}), scope: ScopeLink},
		"forbidden from now on":  {send: frame(codeDetach, list{0, true, amqpError("amqp:unauthorized-access", "no")}), fatal: true, condition: "amqp:unauthorized-access"},
		"end":                    {send: frame(codeEnd, list{}), scope: ScopeSession},
		"end with an error":      {send: frame(codeEnd, list{amqpError("amqp:session:window-violation", "w")}), scope: ScopeSession, condition: "amqp:session:window-violation"},
		"close":                  {send: frame(codeClose, list{}), scope: ScopeConnection},
		"close with an error":    {send: frame(codeClose, list{amqpError("amqp:connection:forced", "bye")}), scope: ScopeConnection, condition: "amqp:connection:forced"},
		"garbage":                {send: []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), scope: ScopeConnection, text: "AMQP frames"},
		"an oversized frame":     {send: []byte{0, 2, 0, 0, 2, 0, 0, 0}, scope: ScopeConnection, text: "AMQP frames"},
		"a frame too short":      {send: []byte{0, 0, 0, 7, 2, 0, 0, 0}, scope: ScopeConnection, text: "AMQP frames"},
		"a transfer without id":  {send: frame(codeTransfer, list{0}), scope: ScopeConnection, text: "without an id"},
		"an unknown handle":      {send: frame(codeTransfer, list{9, 0, []byte{1}, 0}), scope: ScopeConnection, text: "handle 9"},
		"deliveries interleaved": {send: append(frame(codeTransfer, list{0, 0, []byte{1}, 0, false, true}, 1), transferOf(1, nil)...), scope: ScopeConnection, text: "before 0 has ended"},
		"a broken transfer":      {send: frame(codeTransfer, list{raw{0xb0, 0, 0, 0, 200}}), scope: ScopeConnection, text: "cut short"},
		"an unknown performative": {send: append(append([]byte{}, 0, 0, 0, 12, 2, 0, 0, 0), 0, 0x53, 0x7f, 0x45),
			scope: ScopeConnection},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, nil)
			r, _ := p.attach(nil)
			r.Grant(10)
			p.credit()
			p.send(transferOf(5, data("x")))
			d := gets(t, r, 1)[0]
			p.send(c.send)
			err := ends(t, r)
			if !transport.LeaseOf(d).Lost() {
				t.Error("the lease lives")
			}
			var e *Error
			if errors.As(err, &e) == c.fatal || isFatal(err) != c.fatal {
				t.Errorf("got %T: %v", err, err)
			}
			if e != nil && e.Scope != c.scope {
				t.Errorf("the scope of %v is %v", err, e.Scope)
			}
			var remote *goamqp.Error
			if errors.As(err, &remote) != (c.condition != "") || remote != nil && remote.Condition != c.condition {
				t.Errorf("the condition isn't %q: %v", c.condition, err)
			}
			if !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v doesn't say %q", err, c.text)
			}
		})
	}
}

// A peer that never answers the detach, or the end of the session, costs Close
// no more than its context.
func TestCloseUnanswered(t *testing.T) {
	t.Parallel()
	silence := func(fields) []byte { return nil }
	for name, code := range map[string]byte{"detach": codeDetach, "end": codeEnd} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, map[byte]func(fields) []byte{code: silence})
			r, rec := p.attach(nil)
			r.Grant(1)
			p.credit()
			p.send(transferOf(0, data("x")))
			r.Settle(gets(t, r, 1)[0], transport.Outcome{Kind: transport.Accept})
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			began := time.Now()
			if err := r.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("close: %v", err)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
			rec.next(t)
		})
	}
}

// A peer that stops anywhere while opening costs no more than OpenTimeout, and
// one that refuses is quoted.
func TestOpening(t *testing.T) {
	t.Parallel()
	silence := func(fields) []byte { return nil }
	say := func(b []byte) func(fields) []byte { return func(fields) []byte { return b } }
	refuse := func(f fields) []byte {
		_, name := f.next()
		return append(frame(codeAttach, list{string(name), 0, false}),
			frame(codeDetach, list{0, true, amqpError("amqp:not-found", "no such queue")})...)
	}
	for name, c := range map[string]struct {
		code  byte
		on    func(fields) []byte
		fatal bool
		text  string
	}{
		"silent from the start": {0, silence, false, "within OpenTimeout"},
		"silent at open":        {codeOpen, silence, false, "within OpenTimeout"},
		"silent at begin":       {codeBegin, silence, false, "within OpenTimeout"},
		"silent at attach":      {codeAttach, silence, false, "within OpenTimeout"},
		"SASL wanted":           {0, say([]byte{'A', 'M', 'Q', 'P', 3, 1, 0, 0}), true, "SASLNone"},
		"AMQP 0.9.1":            {0, say([]byte{'A', 'M', 'Q', 'P', 0, 0, 9, 1}), true, "AMQP 1.0 protocol"},
		"not AMQP":              {0, say([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")), true, "AMQP 1.0 protocol"},
		"closed at open":        {codeOpen, say(frame(codeClose, list{amqpError("amqp:connection:forced", "not now")})), false, ""},
		"attach refused":        {codeAttach, refuse, true, "create the queue"},
		"session ended":         {codeAttach, say(frame(codeEnd, list{amqpError("amqp:internal-error", "oops")})), false, "oops"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, map[byte]func(fields) []byte{c.code: c.on})
			src, err := Queue(p.url(), "q", &Options{Connection: Connection{SASL: SASLNone, OpenTimeout: 500 * time.Millisecond}})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			r, err := src.Open(soon(t), make(recorder, 1))
			if err == nil {
				shut(t, r)
				t.Fatal("it opened")
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
			var e *Error
			if isFatal(err) != c.fatal || errors.As(err, &e) == c.fatal || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %T: %v", err, err)
			}
		})
	}
}

// What the broker answers to a published message decides whether it counts as
// confirmed: only accepted does.
func TestPublishOutcomes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state any
		text  string // "" confirmed
	}{
		"accepted":          {desc{0x24, list{}}, ""},
		"rejected":          {desc{0x25, list{amqpError("amqp:resource-limit-exceeded", "full")}}, "full"},
		"rejected silently": {desc{0x25, list{}}, "no reason"},
		"released":          {desc{0x26, list{}}, "gave it back"},
		"modified":          {desc{0x27, list{true, true}}, "gave it back"},
		"unknown":           {desc{0x99, list{}}, "unexpected type"},
		"none":              {nil, "<nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, map[byte]func(fields) []byte{codeTransfer: func(f fields) []byte {
				f.skip(1)
				return frame(codeDisposition, list{true, f.uint(), nil, true, c.state})
			}})
			pub, err := Publisher(p.url(), "q", &PublisherOptions{Connection: Connection{SASL: SASLNone}, RetryFor: -1})
			if err != nil {
				t.Fatal(err)
			}
			err = pub.Publish(soon(t), transport.Message{Body: []byte("x")}, transport.Message{Body: []byte("y")})
			if cerr := pub.Close(soon(t)); cerr != nil {
				t.Error(cerr)
			}
			if c.text == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var pe *transport.PublishError
			if !errors.As(err, &pe) || len(pe.Unconfirmed) != 2 || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v", err)
			}
		})
	}
}
