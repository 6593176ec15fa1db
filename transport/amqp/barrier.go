package amqp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// The barrier of Close: an empty transaction on the receiver's session.
//
// An accept has no answer, and a broker answers a detach and the end of a session
// while the record of an accept is still on its way to the disk (Artemis, killed
// right after the answer, gave the last of a thousand accepts back in one of
// seven rounds). A commit is answered only when everything that the session did
// before is stored. go-amqp has no transactions, so the few frames are made
// here; they use link number 1 of the session, and the session ends after them.
// Only Artemis is asked: a broker without transactions may end the session for
// it, and then the end of the session, which is waited for as well, is all the
// certainty there is.

const (
	codeCoordinator = 0x30
	codeDeclare     = 0x31
	codeDischarge   = 0x32
	codeDeclared    = 0x33
	codeAccepted    = 0x24

	barrierHandle = 1
	barrierPrefix = "keylanes-commit-"
)

// errNoBarrier: the broker has its transactions off.
var errNoBarrier = errors.New("the broker refuses a transaction")

// barrier is one commit under way. heard is fed by the reading goroutine.
type barrier struct {
	name     string
	handle   uint32 // the broker's number of the link
	attached bool
	heard    chan barrierSaid // large enough for all that a broker has to say
}

// barrierSaid is what the broker says about the transaction.
type barrierSaid struct {
	refused bool
	credit  bool
	outcome byte // of the delivery
	id      uint32
	txn     []byte
}

// confirm returns nil when the broker has stored what was settled.
func (r *receiver) confirm(ctx context.Context) error {
	b := &barrier{name: barrierPrefix + rand.Text(), heard: make(chan barrierSaid, 64)}
	r.mu.Lock()
	r.barrier = b
	// A flow would have to count the transfers below. None is needed: what still
	// comes is void, and the broker's window doesn't hold its answers up.
	r.quiet = true
	r.mu.Unlock()
	if _, err := r.wire.Write(attachCoordinator(b.name)); err != nil {
		return err
	}
	if _, err := r.await(ctx, b, func(s barrierSaid) bool { return s.credit }); err != nil {
		return err
	}
	if _, err := r.wire.Write(barrierTransfer(0, appendDeclare(nil))); err != nil {
		return err
	}
	s, err := r.await(ctx, b, func(s barrierSaid) bool { return s.outcome != 0 && s.id == 0 })
	if err != nil {
		return err
	}
	if s.outcome != codeDeclared {
		return errNoBarrier
	}
	if _, err := r.wire.Write(barrierTransfer(1, appendDischarge(nil, s.txn))); err != nil {
		return err
	}
	s, err = r.await(ctx, b, func(s barrierSaid) bool { return s.outcome != 0 && s.id == 1 })
	if err == nil && s.outcome != codeAccepted {
		err = fmt.Errorf("the broker couldn't commit: outcome 0x%02x", s.outcome)
	}
	return err
}

func (r *receiver) await(ctx context.Context, b *barrier, what func(barrierSaid) bool) (barrierSaid, error) {
	for {
		select {
		case s := <-b.heard:
			if s.refused {
				return s, errNoBarrier
			}
			if what(s) {
				return s, nil
			}
		case <-r.dead:
			return barrierSaid{}, r.deadErr
		case <-ctx.Done():
			return barrierSaid{}, context.Cause(ctx)
		}
	}
}

// tell hands on what the broker said; a broker that chatters is cut short.
func (b *barrier) tell(s barrierSaid) {
	select {
	case b.heard <- s:
	default:
	}
}

// The broker's side, on the reading goroutine. Each reports whether the frame
// was the barrier's.

func (r *receiver) barrierAttached(name string, handle uint32, refused bool) bool {
	if !strings.HasPrefix(name, barrierPrefix) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.barrier; b != nil && b.name == name {
		b.handle, b.attached = handle, true
		if refused {
			b.tell(barrierSaid{refused: true})
		}
	}
	return true
}

func (r *receiver) barrierDetached(handle uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.barrier
	if b == nil || !b.attached || b.handle != handle {
		return false
	}
	b.tell(barrierSaid{refused: true})
	return true
}

func (r *receiver) barrierCredit(f flow) {
	if b := r.barrier; b != nil && b.attached && f.onLink && f.handle == b.handle && f.credit > 0 {
		b.tell(barrierSaid{credit: true})
	}
}

// disposed hears of the barrier's own deliveries: nothing else is ever sent on
// the session.
func (r *receiver) disposed(first, last uint32, outcome byte, txn []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.barrier; b != nil && last-first < 2 {
		for id := first; id <= last; id++ {
			b.tell(barrierSaid{outcome: outcome, id: id, txn: append([]byte(nil), txn...)})
		}
	}
}

// The frames.

// appendList appends the head of a described list of n fields; closeList fills in
// its size when they are there.
func appendList(buf []byte, code, n byte) (out []byte, start int) {
	buf = append(buf, 0x00, 0x53, code, 0xd0)
	return append(buf, 0, 0, 0, 0, 0, 0, 0, n), len(buf)
}

func closeList(buf []byte, start int) {
	binary.BigEndian.PutUint32(buf[start:], uint32(len(buf)-start-4))
}

// appendFrame appends the head of a frame on channel 0: a connection has one
// session, and go-amqp numbers from 0. closeFrame fills in its size.
func appendFrame(buf []byte) (out []byte, start int) {
	return append(buf, 0, 0, 0, 0, 2, 0, 0, 0), len(buf)
}

func closeFrame(buf []byte, start int) {
	binary.BigEndian.PutUint32(buf[start:], uint32(len(buf)-start))
}

func appendUint(buf []byte, v uint32) []byte {
	return binary.BigEndian.AppendUint32(append(buf, 0x70), v)
}

func attachCoordinator(name string) []byte {
	b, frame := appendFrame(nil)
	b, attach := appendList(b, codeAttach, 10)
	b = appendString(b, 0xa1, name)
	b = appendUint(b, barrierHandle)
	b = append(b, 0x42, 0x40, 0x40)       // role: sender; settle modes: default
	b = append(b, 0x00, 0x53, 0x28, 0x45) // source: nothing special
	b, target := appendList(b, codeCoordinator, 1)
	b = appendString(b, 0xa3, "amqp:local-transactions")
	closeList(b, target)
	b = append(b, 0x40, 0x42) // unsettled, incomplete-unsettled
	b = appendUint(b, 0)      // initial-delivery-count
	closeList(b, attach)
	closeFrame(b, frame)
	return b
}

// barrierTransfer is a delivery of one amqp-value.
func barrierTransfer(id uint32, value []byte) []byte {
	b, frame := appendFrame(nil)
	b, list := appendList(b, codeTransfer, 6)
	b = appendUint(b, barrierHandle)
	b = appendUint(b, id)
	b = append(b, 0xa0, 1, byte(id))
	b = appendUint(b, 0)
	b = append(b, 0x42, 0x42) // settled, more
	closeList(b, list)
	b = append(append(b, 0x00, 0x53, 0x77), value...)
	closeFrame(b, frame)
	return b
}

func appendDeclare(b []byte) []byte { return append(b, 0x00, 0x53, codeDeclare, 0x45) }

func appendDischarge(b, txn []byte) []byte {
	b, list := appendList(b, codeDischarge, 2)
	b = binary.BigEndian.AppendUint32(append(b, 0xb0), uint32(len(txn)))
	b = append(b, txn...)
	b = append(b, 0x42) // fail
	closeList(b, list)
	return b
}
