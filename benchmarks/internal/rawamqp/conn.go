// Package rawamqp holds the loops that one writes on go-amqp alone, on the
// client's own socket and on one that is buffered the way transport/amqp does it.
package rawamqp

import (
	"bufio"
	"context"
	"net"
	"net/url"
	"runtime"
	"sync"
	"time"

	goamqp "github.com/Azure/go-amqp"
)

// Dial connects as an application does.
func Dial(ctx context.Context, broker string) (*goamqp.Conn, error) {
	return goamqp.Dial(ctx, broker, nil)
}

// DialBuffered connects through a socket that is read in large gulps and written
// when whoever wants to write has written.
func DialBuffered(ctx context.Context, broker string) (*goamqp.Conn, error) {
	u, err := url.Parse(broker)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	o := &goamqp.ConnOptions{HostName: u.Hostname()}
	if u.User != nil {
		password, _ := u.User.Password()
		o.SASLType = goamqp.SASLTypePlain(u.User.Username(), password)
	}
	c, err := goamqp.NewConn(ctx, newBuffered(raw), o)
	if err != nil {
		_ = raw.Close()
	}
	return c, err
}

// gulp is how much is read, and how much may wait to be written.
const gulp = 64 << 10

type buffered struct {
	net.Conn
	in *bufio.Reader

	mu      sync.Mutex
	room    sync.Cond // out has become shorter, or err is set
	out     []byte
	err     error
	closing bool
	wake    chan struct{}
	done    chan struct{}
}

func newBuffered(raw net.Conn) *buffered {
	b := &buffered{Conn: raw, in: bufio.NewReaderSize(raw, gulp), wake: make(chan struct{}, 1), done: make(chan struct{})}
	b.room.L = &b.mu
	go b.flush()
	return b
}

func (b *buffered) Read(p []byte) (int, error) { return b.in.Read(p) }

func (b *buffered) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.err == nil && len(b.out) > gulp {
		b.room.Wait()
	}
	if b.err != nil {
		return 0, b.err
	}
	b.out = append(b.out, p...)
	b.poke()
	return len(p), nil
}

func (b *buffered) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// SetWriteDeadline does nothing: go-amqp's is for one frame, and here frames of
// several writers leave together.
func (b *buffered) SetWriteDeadline(time.Time) error { return nil }

func (b *buffered) flush() {
	defer close(b.done)
	var buf []byte
	for range b.wake {
		// As long as others add, let them run: their frames leave with these.
		for last := -1; ; runtime.Gosched() {
			b.mu.Lock()
			n := len(b.out)
			b.mu.Unlock()
			if n == last || n > gulp {
				break
			}
			last = n
		}
		b.mu.Lock()
		buf, b.out = b.out, buf[:0]
		closing := b.closing
		b.mu.Unlock()
		_, err := b.Conn.Write(buf)
		b.mu.Lock()
		if err != nil {
			b.err = err
		}
		b.room.Broadcast()
		b.mu.Unlock()
		if closing || err != nil {
			return
		}
	}
}

func (b *buffered) Close() error {
	b.mu.Lock()
	b.closing = true
	b.mu.Unlock()
	b.poke()
	<-b.done
	return b.Conn.Close()
}
