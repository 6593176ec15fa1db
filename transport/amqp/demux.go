package amqp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Codes of the performatives that matter here.
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
	// maxFrame is the largest frame that the broker may send: it is announced
	// when the connection opens.
	maxFrame = 64 << 10
	// slabBytes is how much is read at a time. Payloads are handed on as parts
	// of the slab that they were read into; it is never written again.
	slabBytes = 2 * maxFrame
	// slabMin is how much room a slab must have left to be read into once more.
	slabMin = 8 << 10
)

// transfer is one transfer frame.
type transfer struct {
	handle  uint32
	id      uint32
	hasID   bool // the first frame of a delivery has one, continuations needn't
	settled bool
	more    bool
	aborted bool
	payload []byte // of the slab: to be kept, not to be changed
}

// flow is what matters of a flow frame.
type flow struct {
	nextOutgoing uint32 // the session's
	onLink       bool   // handle and credit are of a link
	handle       uint32
	credit       uint32
	echo         bool
}

// peer hears what the broker says, in order, as it comes off the socket. The
// methods are called on the connection's reading goroutine.
type peer interface {
	began(nextOutgoing uint32)
	attached(handle, deliveryCount uint32, peerSends bool)
	transferred(t transfer) error
	flowed(f flow)
	// disposed tells of deliveries that were sent to the broker.
	disposed(first, last uint32, outcome byte, txn []byte)
	// barrierAttached and barrierDetached report whether the link is one that
	// go-amqp knows nothing of.
	barrierAttached(name string, handle uint32, refused bool) bool
	barrierDetached(handle uint32) bool
	detached(handle uint32)
	ended()
	// heard is called once for each read, after all its frames.
	heard()
}

// demux cuts a stream of bytes into frames. Transfers and flows are for the
// peer alone; everything else is also, and only then, for go-amqp.
type demux struct {
	peer peer
	pass []byte // for go-amqp, in order

	slab []byte
	r, w int  // what of the slab isn't looked at yet
	kept bool // a payload in the slab was handed on
	amqp bool // the stream began as AMQP does
}

var (
	errFraming = errors.New("the peer's bytes aren't AMQP frames")
	errNotAMQP = errors.New("the port doesn't speak AMQP")
)

// space is where the next bytes are to be read into.
func (d *demux) space() []byte {
	if d.r == d.w && !d.kept {
		d.r, d.w = 0, 0
	}
	if need := max(d.missing(), slabMin); len(d.slab)-d.w < need {
		fresh := make([]byte, max(slabBytes, d.w-d.r+need))
		d.w = copy(fresh, d.slab[d.r:d.w])
		d.slab, d.r, d.kept = fresh, 0, false
	}
	return d.slab[d.w:]
}

// missing is how many bytes the frame that has begun lacks.
func (d *demux) missing() int {
	b := d.slab[d.r:d.w]
	if len(b) < frameHeader {
		return 0
	}
	n, err := unitSize(b)
	if err != nil {
		return 0
	}
	return n - len(b)
}

// fed takes the n bytes that were read into space. An error means that the
// stream can't be followed any more: the connection is of no use.
func (d *demux) fed(n int) error {
	d.w += n
	defer d.peer.heard()
	for d.w-d.r >= frameHeader {
		if !d.amqp && string(d.slab[d.r:d.r+4]) != "AMQP" {
			return fmt.Errorf("%w: it says %q", errNotAMQP, d.slab[d.r:d.r+frameHeader])
		}
		d.amqp = true
		size, err := unitSize(d.slab[d.r:d.w])
		if err != nil {
			return err
		}
		if d.w-d.r < size {
			return nil
		}
		b := d.slab[d.r : d.r+size : d.r+size]
		d.r += size
		own, err := d.frame(b)
		if err != nil {
			return err
		}
		if !own {
			d.pass = append(d.pass, b...)
		}
	}
	return nil
}

// unitSize is how long the unit at the start of b is: a frame, or one of the
// 8-byte protocol headers that precede the frames.
func unitSize(b []byte) (int, error) {
	if string(b[:4]) == "AMQP" {
		return frameHeader, nil
	}
	n := binary.BigEndian.Uint32(b)
	if n < frameHeader || n > maxFrame || b[4] != 2 {
		return 0, fmt.Errorf("%w: %d bytes, data at %d", errFraming, n, b[4])
	}
	return int(n), nil
}

// frame looks at one unit and reports whether it was the peer's own.
func (d *demux) frame(b []byte) (own bool, err error) {
	// size(4) doff type channel(2), then 0x00 0x53 code and a list. What isn't
	// so is a protocol header, SASL, or a keep-alive.
	if len(b) < frameHeader+4 || b[5] != 0 || b[8] != 0 || b[9] != 0x53 || string(b[:4]) == "AMQP" {
		return false, nil
	}
	code := b[10]
	if code < codeBegin || code > codeClose {
		return false, nil
	}
	f, rest, err := newFields(b[11:])
	if err == nil {
		switch code {
		case codeTransfer:
			return true, d.transfer(f, rest)
		case codeFlow:
			err = d.flow(f)
			own = true
		case codeBegin:
			f.skip(1) // remote-channel
			d.peer.began(f.uint())
		case codeAttach:
			own, err = d.attach(f)
		case codeDisposition:
			own, err = d.disposition(f)
		case codeDetach:
			handle := f.uint()
			if own = d.peer.barrierDetached(handle); !own {
				d.peer.detached(handle)
			}
		case codeEnd, codeClose:
			d.peer.ended()
		}
	}
	if err != nil {
		return own, fmt.Errorf("%w: performative 0x%02x: %w", errFraming, code, err)
	}
	return own, nil
}

func (d *demux) attach(f fields) (own bool, err error) {
	_, name := f.next()
	handle := f.uint()
	peerReceives := f.bool()
	f.skip(3) // settle modes, source
	target, _ := f.next()
	f.skip(2) // unsettled, incomplete-unsettled
	count := f.uint()
	if f.err != nil {
		return false, f.err
	}
	if peerReceives && d.peer.barrierAttached(string(name), handle, target == 0x40) {
		return true, nil
	}
	d.peer.attached(handle, count, !peerReceives)
	return false, nil
}

// disposition takes those of the peer as a receiver. As a sender it speaks of
// deliveries that it gave up; go-amqp takes no interest in them either.
func (d *demux) disposition(f fields) (own bool, err error) {
	if !f.bool() || f.err != nil {
		return false, f.err
	}
	first := f.uint()
	last, given := f.optUint()
	if !given {
		last = first
	}
	f.skip(1) // settled
	outcome, txn := f.outcome()
	if f.err == nil {
		d.peer.disposed(first, last, outcome, txn)
	}
	return true, f.err
}

func (d *demux) flow(f fields) error {
	f.skip(2) // next-incoming-id, incoming-window
	fl := flow{nextOutgoing: f.uint()}
	f.skip(1) // outgoing-window
	fl.handle, fl.onLink = f.optUint()
	f.skip(1) // delivery-count
	fl.credit = f.uint()
	f.skip(2) // available, drain
	fl.echo = f.bool()
	if f.err == nil {
		d.peer.flowed(fl)
	}
	return f.err
}

func (d *demux) transfer(f fields, payload []byte) error {
	t := transfer{handle: f.uint(), payload: payload}
	t.id, t.hasID = f.optUint()
	f.skip(2) // delivery-tag, message-format
	t.settled = f.bool()
	t.more = f.bool()
	f.skip(3) // rcv-settle-mode, state, resume
	t.aborted = f.bool()
	if f.err != nil {
		return fmt.Errorf("%w: transfer: %w", errFraming, f.err)
	}
	d.kept = true
	return d.peer.transferred(t)
}
