package amqp

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// A scripted AMQP peer: it says yes to everything that opens and closes, and
// the rest is the test's.

// Values for frames. nil is null, uint32 and bool are themselves.
type (
	sym  string // symbol
	raw  []byte // encoded already
	list []any
	desc struct { // described list
		code byte
		list list
	}
)

func encode(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, 0x40)
	case bool:
		if v {
			return append(b, 0x41)
		}
		return append(b, 0x42)
	case uint32:
		return binary.BigEndian.AppendUint32(append(b, 0x70), v)
	case int:
		return encode(b, uint32(v))
	case string:
		b = binary.BigEndian.AppendUint32(append(b, 0xb1), uint32(len(v)))
		return append(b, v...)
	case sym:
		b = binary.BigEndian.AppendUint32(append(b, 0xb3), uint32(len(v)))
		return append(b, v...)
	case []byte:
		b = binary.BigEndian.AppendUint32(append(b, 0xb0), uint32(len(v)))
		return append(b, v...)
	case raw:
		return append(b, v...)
	case desc:
		return encode(append(b, 0x00, 0x53, v.code), v.list)
	case list:
		var in []byte
		for _, e := range v {
			in = encode(in, e)
		}
		b = append(b, 0xd0)
		b = binary.BigEndian.AppendUint32(b, uint32(len(in)+4))
		b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
		return append(b, in...)
	default:
		panic(fmt.Sprintf("encode %T", v))
	}
}

func frame(code byte, fs list, payload ...byte) []byte {
	b := encode([]byte{0, 0, 0, 0, 2, 0, 0, 0}, desc{code, fs})
	b = append(b, payload...)
	binary.BigEndian.PutUint32(b, uint32(len(b)))
	return b
}

// data is a message with one data section.
func data(s string) []byte { return encode([]byte{0x00, 0x53, 0x75}, []byte(s)) }

// transferOf is a delivery in one frame.
func transferOf(id uint32, body []byte) []byte {
	return frame(codeTransfer, list{0, id, []byte{byte(id)}, 0, false, false}, body...)
}

func amqpError(condition, text string) desc { return desc{0x1d, list{sym(condition), text}} }

// ending is a detach of a handle, or an end.
type ending struct {
	code   byte
	handle uint32
}

func endingOf(code byte, f fields) ending {
	e := ending{code: code}
	if code == codeDetach {
		e.handle = f.uint()
	}
	return e
}

// said is a frame that the peer got.
type said struct {
	code byte
	f    fields
}

// scripted is the peer. on replaces the answer to a performative: it gives what
// is written instead.
type scripted struct {
	artemis bool // says that it is one, so that Close commits
	t       *testing.T
	ln      net.Listener
	on      map[byte]func(f fields) []byte
	got     chan said // flows, transfers and dispositions

	mu   sync.Mutex
	conn net.Conn
	// ended are the links, by handle, and sessions that the peer began to end: the
	// client's detach or end is the answer then, and isn't answered in turn.
	ended map[ending]bool
	up    chan struct{} // closed at the first connection
	done  sync.WaitGroup
}

func newPeer(t *testing.T, on map[byte]func(f fields) []byte) *scripted {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &scripted{t: t, ln: ln, on: on, got: make(chan said, 10_000), up: make(chan struct{}), ended: make(map[ending]bool)}
	p.done.Add(1)
	go p.serve()
	t.Cleanup(func() {
		ln.Close()
		p.mu.Lock()
		if p.conn != nil {
			p.conn.Close()
		}
		p.mu.Unlock()
		p.done.Wait()
	})
	return p
}

func (p *scripted) url() string { return "amqp://" + p.ln.Addr().String() }

func (p *scripted) serve() {
	defer p.done.Done()
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		first := p.conn == nil
		p.conn = c
		p.mu.Unlock()
		if first {
			close(p.up)
		}
		p.talk(c)
		c.Close()
	}
}

func (p *scripted) talk(c net.Conn) {
	head := make([]byte, 8)
	if _, err := io.ReadFull(c, head); err != nil {
		return
	}
	if on := p.on[0]; on != nil { // 0: the protocol header
		if b := on(fields{}); b != nil {
			_, _ = c.Write(b)
		}
	} else {
		_, _ = c.Write(head)
	}
	for {
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint32(head))
		copy(b, head)
		if _, err := io.ReadFull(c, b[8:]); err != nil {
			return
		}
		if len(b) < 12 {
			continue // keep-alive
		}
		f, _, err := newFields(b[11:])
		if err != nil {
			p.t.Errorf("the client's frame doesn't parse: %v", err)
			return
		}
		p.reply(c, b[10], f)
		if b[10] == codeClose {
			return
		}
	}
}

// reply writes what a frame is answered with.
func (p *scripted) reply(c net.Conn, code byte, f fields) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := p.answer(code, f)
	if on := p.on[code]; on != nil {
		answer = on(f)
		p.noteEnds(answer)
	} else if e := endingOf(code, f); p.ended[e] {
		delete(p.ended, e)
		return
	}
	if answer != nil {
		_, _ = c.Write(answer)
	}
}

// noteEnds takes note of what b, frames as a rule, begins to end. p.mu is held.
func (p *scripted) noteEnds(b []byte) {
	for len(b) > 11 {
		n := int64(binary.BigEndian.Uint32(b))
		if n <= 11 || n > int64(len(b)) {
			return
		}
		if code := b[10]; code == codeDetach || code == codeEnd {
			if f, _, err := newFields(b[11:n]); err == nil {
				p.ended[endingOf(code, f)] = true
			}
		}
		b = b[n:]
	}
}

const codeOpen = 0x10

func (p *scripted) answer(code byte, f fields) []byte {
	switch code {
	case codeOpen:
		var properties any
		if p.artemis {
			kv := encode(encode(nil, sym("product")), "apache-activemq-artemis")
			properties = raw(append([]byte{0xc1, byte(len(kv) + 1), 2}, kv...))
		}
		return frame(codeOpen, list{"peer", "host", 65536, raw{0x60, 0, 10}, nil, nil, nil, nil, nil, properties})
	case codeBegin:
		return frame(codeBegin, list{raw{0x60, 0, 0}, 0, 5000, 5000})
	case codeAttach:
		_, name := f.next()
		f.skip(1)
		role := f.bool()
		out := list{string(name), 0, !role, nil, nil, desc{0x28, list{"q"}}, desc{0x29, list{"q"}}, nil, nil, 0}
		b := frame(codeAttach, out)
		if !role { // the client sends: let it
			b = append(b, frame(codeFlow, list{0, 5000, 0, 5000, 0, 0, 1000})...)
		}
		return b
	case codeDetach:
		return frame(codeDetach, list{0, true})
	case codeEnd, codeClose:
		return frame(code, list{})
	default:
		p.got <- said{code, f}
		return nil
	}
}

// send writes b as it is.
func (p *scripted) send(b ...[]byte) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range b {
		p.noteEnds(b)
		if _, err := p.conn.Write(b); err != nil {
			p.t.Error(err)
		}
	}
}

// hear waits for the next frame of a kind.
func (p *scripted) hear(code byte) fields {
	p.t.Helper()
	for {
		select {
		case s := <-p.got:
			if s.code == code {
				return s.f
			}
		case <-time.After(10 * time.Second):
			p.t.Fatalf("the client didn't send a 0x%02x", code)
		}
	}
}

// credit is what a flow grants: the sum of its delivery-count and link-credit is
// how many deliveries may ever be sent.
func (p *scripted) credit() (count, credit uint32) {
	p.t.Helper()
	f := p.hear(codeFlow)
	f.skip(5)
	return f.uint(), f.uint()
}

type recorded struct {
	d   *transport.Delivery
	o   transport.Outcome
	err error
}

type recorder chan recorded

func (r recorder) Settled(d *transport.Delivery, o transport.Outcome, err error) {
	r <- recorded{d, o, err}
}
func (r recorder) Lost([]*transport.Delivery, error) {}

func (r recorder) next(t *testing.T) recorded {
	t.Helper()
	select {
	case v := <-r:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("no settlement was reported")
		return recorded{}
	}
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// attach opens a receiver at the peer.
func (p *scripted) attach(o *Options) (transport.Receiver, recorder) {
	p.t.Helper()
	if o == nil {
		o = &Options{}
	}
	o.SASL = SASLNone
	src, err := Queue(p.url(), "q", o)
	if err != nil {
		p.t.Fatal(err)
	}
	rec := make(recorder, 10_000)
	r, err := src.Open(soon(p.t), rec)
	if err != nil {
		p.t.Fatal(err)
	}
	return r, rec
}

// gets waits for n deliveries.
func gets(t *testing.T, r transport.Receiver, n int) []*transport.Delivery {
	t.Helper()
	var all []*transport.Delivery
	for len(all) < n {
		ds, err := r.Receive(soon(t))
		if err != nil {
			t.Fatalf("after %d of %d: %v", len(all), n, err)
		}
		all = append(all, ds...)
	}
	if len(all) > n {
		t.Fatalf("%d deliveries instead of %d", len(all), n)
	}
	return all
}

// ends waits for the error of the epoch's end, and closes.
func ends(t *testing.T, r transport.Receiver) error {
	t.Helper()
	for {
		ds, err := r.Receive(soon(t))
		if err != nil {
			if cerr := r.Close(soon(t)); cerr != nil {
				t.Errorf("close: %v", cerr)
			}
			return err
		}
		_ = ds
	}
}
