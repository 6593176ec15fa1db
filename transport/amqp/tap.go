package amqp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Codes of the performatives that the tap looks at.
const (
	codeBegin       = 0x11
	codeAttach      = 0x12
	codeFlow        = 0x13
	codeTransfer    = 0x14
	codeDisposition = 0x15
	codeDetach      = 0x16
	codeEnd         = 0x17
	codeClose       = 0x18
)

const (
	frameHeader = 8
	// headMax is how much of a frame is kept for parsing: its header and its
	// performative. What follows is payload, which the tap skips.
	headMax = 1024
)

// transfer is what a transfer frame says about its delivery.
type transfer struct {
	handle  uint32
	id      uint32
	hasID   bool // the first frame of a delivery has one, continuations needn't
	tag     []byte
	settled bool
	more    bool
	aborted bool
}

// tapHandler hears what the broker says, in order, as it comes off the socket
// and before go-amqp sees it. Called on the connection's reading goroutine.
type tapHandler interface {
	attached(handle uint32, peerSends bool)
	transferred(t transfer) error
	detached(handle uint32)
	ended()
}

// tap follows the frames in a stream of bytes without holding it up. go-amqp
// doesn't show a delivery's id, nor that a link is gone while it still hands
// out what it prefetched: both are needed, and both are plain to see here.
type tap struct {
	h    tapHandler
	head []byte // the beginning of a frame that came in pieces
	skip int    // bytes of the current frame that are of no interest
}

var errFraming = errors.New("the peer's bytes aren't AMQP frames")

// feed takes the next bytes of the stream. An error means that the stream
// can't be followed any more: the connection is of no use.
func (t *tap) feed(p []byte) error {
	for len(p) > 0 {
		if t.skip > 0 {
			n := min(t.skip, len(p))
			t.skip -= n
			p = p[n:]
			continue
		}
		// The common case: the whole head is in p, nothing is copied.
		b := p
		if len(t.head) > 0 {
			n := min(headMax-len(t.head), len(p))
			b = append(t.head, p[:n]...)
		}
		if len(b) < frameHeader {
			t.head = append(t.head[:0], b...)
			return nil
		}
		size, err := frameSize(b)
		if err != nil {
			return err
		}
		want := min(size, headMax)
		if len(b) < want {
			t.head = append(t.head[:0], b...)
			return nil
		}
		if err := t.frame(b[:want]); err != nil {
			return err
		}
		used := want - len(t.head)
		t.head = t.head[:0]
		t.skip = size - want
		p = p[used:]
	}
	return nil
}

// frameSize is how long the unit at the start of b is: a frame, or one of the
// 8-byte protocol headers that precede the frames.
func frameSize(b []byte) (int, error) {
	if string(b[:4]) == "AMQP" {
		return frameHeader, nil
	}
	n := binary.BigEndian.Uint32(b)
	if n < frameHeader || n > 1<<30 {
		return 0, fmt.Errorf("%w: frame of %d bytes", errFraming, n)
	}
	return int(n), nil
}

// performative gives the code and the fields of the frame that starts with b;
// ok is false for what isn't an AMQP frame with a body.
func performative(b []byte) (code byte, f fields, ok bool) {
	// size(4) doff type channel(2), then 0x00 0x53 code and a list.
	if len(b) < frameHeader+4 || string(b[:4]) == "AMQP" || b[5] != 0 || b[8] != 0 || b[9] != 0x53 {
		return 0, fields{}, false
	}
	return b[10], newFields(b[11:]), true
}

func (t *tap) frame(b []byte) error {
	code, f, ok := performative(b)
	if !ok {
		return nil
	}
	switch code {
	case codeAttach:
		f.skip() // name
		handle := f.uint()
		peerReceives := f.bool()
		if f.err == nil {
			t.h.attached(handle, !peerReceives)
		}
	case codeTransfer:
		var tr transfer
		tr.handle = f.uint()
		tr.id, tr.hasID = f.optUint()
		tr.tag = f.binary()
		f.skip() // message-format
		tr.settled = f.bool()
		tr.more = f.bool()
		f.skip() // rcv-settle-mode
		f.skip() // state
		f.skip() // resume
		tr.aborted = f.bool()
		if f.err != nil {
			return fmt.Errorf("%w: transfer: %w", errFraming, f.err)
		}
		return t.h.transferred(tr)
	case codeDetach:
		handle := f.uint()
		if f.err == nil {
			t.h.detached(handle)
		}
	case codeEnd, codeClose:
		t.h.ended()
	}
	return nil
}

// fields reads the fields of a performative's list one by one. Past the end
// every field is null, as AMQP has it. The first error stays.
type fields struct {
	b    []byte
	left int // fields that the list still has
	err  error
}

var errTruncated = errors.New("cut short")

func newFields(b []byte) fields {
	var f fields
	if len(b) == 0 {
		f.err = errTruncated
		return f
	}
	switch b[0] {
	case 0x45: // list0
	case 0xc0: // list8: size(1) count(1)
		if len(b) < 3 {
			f.err = errTruncated
			return f
		}
		f.left, f.b = int(b[2]), b[3:]
	case 0xd0: // list32: size(4) count(4)
		if len(b) < 9 {
			f.err = errTruncated
			return f
		}
		f.left, f.b = int(binary.BigEndian.Uint32(b[5:])), b[9:]
	default:
		f.err = fmt.Errorf("type 0x%02x where a list belongs", b[0])
	}
	return f
}

// next cuts the next value off: its constructor and its bytes. A null, or a
// field past the end, has constructor 0x40.
func (f *fields) next() (ctor byte, v []byte) {
	if f.err != nil || f.left <= 0 {
		return 0x40, nil
	}
	f.left--
	n, head, err := valueSize(f.b)
	if err != nil {
		f.err = err
		return 0x40, nil
	}
	ctor, v = f.b[0], f.b[head:n]
	f.b = f.b[n:]
	return ctor, v
}

// valueSize is how many bytes the value at the start of b takes, and how many
// of them come before its content.
func valueSize(b []byte) (n, head int, err error) {
	if len(b) == 0 {
		return 0, 0, errTruncated
	}
	if b[0] == 0 { // described: the descriptor is a value, then comes the value
		d, _, err := valueSize(b[1:])
		if err != nil {
			return 0, 0, err
		}
		v, _, err := valueSize(b[1+d:])
		if err != nil {
			return 0, 0, err
		}
		return 1 + d + v, 1 + d, nil
	}
	// The high half of a constructor says how the length is given.
	switch b[0] >> 4 {
	case 0x4:
		n, head = 1, 1
	case 0x5:
		n, head = 2, 1
	case 0x6:
		n, head = 3, 1
	case 0x7:
		n, head = 5, 1
	case 0x8:
		n, head = 9, 1
	case 0x9:
		n, head = 17, 1
	case 0xa, 0xc, 0xe:
		if len(b) < 2 {
			return 0, 0, errTruncated
		}
		n, head = 2+int(b[1]), 2
	case 0xb, 0xd, 0xf:
		if len(b) < 5 {
			return 0, 0, errTruncated
		}
		size := binary.BigEndian.Uint32(b[1:])
		if size > headMax {
			return 0, 0, errTruncated
		}
		n, head = 5+int(size), 5
	default:
		return 0, 0, fmt.Errorf("unknown type 0x%02x", b[0])
	}
	if n > len(b) {
		return 0, 0, errTruncated
	}
	return n, head, nil
}

func (f *fields) skip() { f.next() }

func (f *fields) uint() uint32 {
	n, _ := f.optUint()
	return n
}

func (f *fields) optUint() (n uint32, given bool) {
	switch ctor, v := f.next(); ctor {
	case 0x40:
		return 0, false
	case 0x43: // uint 0
		return 0, true
	case 0x52: // small uint
		return uint32(v[0]), true
	case 0x70:
		return binary.BigEndian.Uint32(v), true
	default:
		f.err = fmt.Errorf("type 0x%02x where a uint belongs", ctor)
		return 0, false
	}
}

func (f *fields) bool() bool {
	switch ctor, v := f.next(); ctor {
	case 0x40, 0x42:
		return false
	case 0x41:
		return true
	case 0x56:
		return v[0] != 0
	default:
		f.err = fmt.Errorf("type 0x%02x where a boolean belongs", ctor)
		return false
	}
}

func (f *fields) binary() []byte {
	switch ctor, v := f.next(); ctor {
	case 0x40:
		return nil
	case 0xa0, 0xb0:
		return v
	default:
		f.err = fmt.Errorf("type 0x%02x where binary belongs", ctor)
		return nil
	}
}
