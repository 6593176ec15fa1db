package amqp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

var errTruncated = errors.New("cut short")

// fields reads the fields of a performative's list one by one. Past the end
// every field is null, as AMQP has it. The first error stays.
type fields struct {
	b    []byte
	left int // fields that the list still has
	err  error
}

// newFields reads the list at the start of b, and gives what follows it.
func newFields(b []byte) (f fields, rest []byte, err error) {
	if len(b) == 0 {
		return f, nil, errTruncated
	}
	var head, size int
	switch b[0] {
	case 0x45: // list0
		return f, b[1:], nil
	case 0xc0: // list8: size(1) count(1)
		if len(b) < 3 {
			return f, nil, errTruncated
		}
		head, size, f.left = 3, int(b[1])-1, int(b[2])
	case 0xd0: // list32: size(4) count(4)
		if len(b) < 9 {
			return f, nil, errTruncated
		}
		n := binary.BigEndian.Uint32(b[1:])
		if n > maxFrame {
			return f, nil, errTruncated
		}
		head, size, f.left = 9, int(n)-4, int(binary.BigEndian.Uint32(b[5:])&0x7fffffff)
	default:
		return f, nil, fmt.Errorf("type 0x%02x where a list belongs", b[0])
	}
	if size < 0 || size > len(b)-head {
		return f, nil, errTruncated
	}
	f.b = b[head : head+size]
	return f, b[head+size:], nil
}

// next cuts the next value off: its constructor and its bytes. A null, or a
// field past the end, has constructor 0x40.
func (f *fields) next() (ctor byte, v []byte) {
	if f.err != nil || f.left <= 0 {
		return 0x40, nil
	}
	f.left--
	head, n, err := valueSize(f.b)
	if err != nil {
		f.err = err
		return 0x40, nil
	}
	ctor, v = f.b[0], f.b[head:n]
	f.b = f.b[n:]
	return ctor, v
}

// valueSize is how many bytes the value at the start of b takes (n), and how
// many of them come before its content (head).
func valueSize(b []byte) (head, n int, err error) {
	if len(b) > 0 && b[0] == 0 { // described: the descriptor, a plain value, then the value
		_, d, err := plainSize(b[1:])
		if err != nil {
			return 0, 0, err
		}
		_, v, err := plainSize(b[1+d:])
		return 1 + d, 1 + d + v, err
	}
	return plainSize(b)
}

func plainSize(b []byte) (head, n int, err error) {
	if len(b) == 0 {
		return 0, 0, errTruncated
	}
	// The high half of a constructor says how the length is given.
	switch c := b[0] >> 4; c {
	case 0x4:
		head, n = 1, 1
	case 0x5, 0x6, 0x7, 0x8, 0x9:
		head, n = 1, 1+1<<(c-5)
	case 0xa, 0xc, 0xe:
		if len(b) < 2 {
			return 0, 0, errTruncated
		}
		head, n = 2, 2+int(b[1])
	case 0xb, 0xd, 0xf:
		if len(b) < 5 {
			return 0, 0, errTruncated
		}
		size := binary.BigEndian.Uint32(b[1:])
		if size > maxFrame {
			return 0, 0, errTruncated
		}
		head, n = 5, 5+int(size)
	default:
		return 0, 0, fmt.Errorf("unknown type 0x%02x", b[0])
	}
	if n > len(b) {
		return 0, 0, errTruncated
	}
	return head, n, nil
}

func (f *fields) skip(n int) {
	for range n {
		f.next()
	}
}

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

// outcome reads a delivery state: the code of its descriptor (0: none), and the
// transaction's id where it is declared.
func (f *fields) outcome() (code byte, txn []byte) {
	if f.err != nil || f.left <= 0 {
		return 0, nil
	}
	b := f.b
	ctor, _ := f.next()
	if ctor != 0 || f.err != nil || len(b) < 4 || b[1] != 0x53 {
		return 0, nil
	}
	code = b[2]
	if code == codeDeclared {
		in, _, err := newFields(b[3:])
		if err != nil {
			f.err = err
			return code, nil
		}
		_, txn = in.next()
		f.err = in.err
	}
	return code, txn
}
