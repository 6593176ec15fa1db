package amqp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// outMax is how much may wait to be written before go-amqp's writer is
	// held up. Settlements don't count: credit bounds them.
	outMax = 256 << 10
	// writeChunk bounds one write, and with it how much has to leave within
	// one write timeout.
	writeChunk = 64 << 10
	// coalesceRounds bounds how often the flusher lets others run before it
	// writes, while they keep adding.
	coalesceRounds = 16
)

// injector adds frames of its own between go-amqp's. All methods are called by
// the flusher.
type injector interface {
	// gather appends whole frames to buf.
	gather(buf []byte) []byte
	// flushed says how the writing of what was gathered ended.
	flushed(err error)
	// waiting says how much there is to gather.
	waiting() int
}

// wire is the net.Conn that go-amqp runs on. It reads in large gulps, takes out
// the frames that are a peer's own, and leaves writing to one goroutine, so that
// frames which are ready at the same time leave in one system call.
//
// A write error can't be returned to whoever wrote: it ends the connection, and
// surfaces at the next Write and the next Read.
type wire struct {
	raw          net.Conn
	writeTimeout time.Duration
	idle         time.Duration // silence after which a read fails
	inject       injector      // nil: none
	onDead       func(error)   // nil: none; called at least once when reading ends

	// The reading goroutine's.
	demux  demux // without a peer all bytes go through
	passed int   // how much of demux.pass go-amqp has taken

	heard atomic.Bool // something was read

	mu      sync.Mutex
	out     []byte          // go-amqp's frames that wait
	waiters []chan struct{} // closed when all that waited before is written
	err     error           // first failure; set once
	closing bool
	deaf    bool // reading has failed

	wake chan struct{} // capacity 1
	done chan struct{} // closed when the flusher has ended

	reads, writes atomic.Int64 // system calls, for the gates on them
}

func newWire(raw net.Conn, writeTimeout, idle time.Duration) *wire {
	return &wire{raw: raw, writeTimeout: writeTimeout, idle: idle, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// start begins writing. Set inject, onDead and the demux's peer before.
func (w *wire) start() { go w.flusher() }

// poke makes the flusher look. Any goroutine, never blocks.
func (w *wire) poke() {
	select {
	case w.wake <- struct{}{}:
	default: // a look is due already, and sees what is there by then
	}
}

// Read is called by go-amqp's reading goroutine only. It returns when there is
// something for go-amqp; until then it serves the peer.
func (w *wire) Read(p []byte) (int, error) {
	for w.passed == len(w.demux.pass) {
		w.demux.pass, w.passed = w.demux.pass[:0], 0
		n, err := w.fill(p)
		if err != nil {
			return 0, w.readFailed(err)
		}
		if n > 0 {
			return n, nil
		}
	}
	n := copy(p, w.demux.pass[w.passed:])
	w.passed += n
	return n, nil
}

// fill reads once: through to p when there is no peer, else into the demux.
func (w *wire) fill(p []byte) (n int, err error) {
	if err := w.raw.SetReadDeadline(time.Now().Add(w.idle)); err != nil {
		return 0, err
	}
	into := p
	if w.demux.peer != nil {
		into = w.demux.space()
	}
	w.reads.Add(1)
	n, err = w.raw.Read(into)
	if n == 0 {
		return 0, err
	}
	w.heard.Store(true)
	if w.demux.peer == nil {
		return n, nil
	}
	return 0, w.demux.fed(n)
}

// readFailed prefers the reason why the connection was ended on this side:
// otherwise all that shows is "use of closed network connection".
func (w *wire) readFailed(err error) error {
	w.mu.Lock()
	if w.err != nil {
		err = w.err
	}
	w.deaf = true
	w.mu.Unlock()
	if w.onDead != nil {
		w.onDead(err)
	}
	return err
}

// Write queues one frame: go-amqp writes each frame with one call, so frames
// of others fit between any two calls. It is held up while much waits.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	if err := w.refused(); err != nil {
		w.mu.Unlock()
		return 0, err
	}
	w.out = append(w.out, p...)
	var ch chan struct{}
	if len(w.out) > outMax {
		ch = make(chan struct{})
		w.waiters = append(w.waiters, ch)
	}
	w.mu.Unlock()
	w.poke()
	if ch != nil {
		<-ch // bounded: each write by its deadline, and a failure releases all
	}
	return len(p), nil
}

func (w *wire) refused() error {
	if w.err != nil {
		return w.err
	}
	if w.closing {
		return net.ErrClosed
	}
	return nil
}

// flush returns when all that was queued or could be gathered before is with
// the kernel, with ctx's error, or with the connection's.
func (w *wire) flush(ctx context.Context) error {
	w.mu.Lock()
	if err := w.refused(); err != nil {
		w.mu.Unlock()
		return err
	}
	ch := make(chan struct{})
	w.waiters = append(w.waiters, ch)
	w.mu.Unlock()
	w.poke()
	select {
	case <-ch:
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.err
	case <-ctx.Done():
		return fmt.Errorf("flush: %w", context.Cause(ctx))
	}
}

func (w *wire) flusher() {
	defer close(w.done)
	var buf []byte
	for {
		<-w.wake
		w.coalesce()
		w.mu.Lock()
		buf, w.out = w.out, buf[:0]
		waiters := w.waiters
		w.waiters = nil
		closing, err := w.closing, w.err
		w.mu.Unlock()
		if w.inject != nil {
			buf = w.inject.gather(buf)
		}
		if err == nil && len(buf) > 0 {
			if err = w.writeAll(buf); err != nil {
				w.fail(err)
			}
		}
		if w.inject != nil {
			w.inject.flushed(err)
		}
		for _, ch := range waiters {
			close(ch)
		}
		if closing || err != nil {
			w.release()
			return
		}
		if cap(buf) > 2*outMax {
			buf = nil // one huge message must not stay for ever
		}
	}
}

// coalesce lets others run while they keep adding. When nobody does, a lone
// frame leaves after one turn of the scheduler.
func (w *wire) coalesce() {
	last := -1
	for range coalesceRounds {
		n := 0
		if w.inject != nil {
			n = w.inject.waiting()
		}
		w.mu.Lock()
		n += len(w.out)
		hurry := w.closing || w.err != nil || len(w.out) > outMax
		w.mu.Unlock()
		if n == last || hurry {
			return
		}
		last = n
		runtime.Gosched()
	}
}

func (w *wire) writeAll(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writeChunk)
		if err := w.raw.SetWriteDeadline(time.Now().Add(w.writeTimeout)); err != nil {
			return err
		}
		w.writes.Add(1)
		if _, err := w.raw.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// release ends what came too late for the last round. w.err or w.closing is
// set, so nothing more is queued.
func (w *wire) release() {
	w.mu.Lock()
	waiters := w.waiters
	w.waiters = nil
	w.mu.Unlock()
	for _, ch := range waiters {
		close(ch)
	}
}

// fail ends the connection for a reason of this side. Any goroutine.
func (w *wire) fail(err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.mu.Unlock()
	_ = w.raw.Close()
	w.poke()
}

var errAborted = errors.New("the connection was given up")

// abort ends the connection at once: what waits is lost.
func (w *wire) abort(err error) {
	if err == nil {
		err = errAborted
	}
	w.fail(err)
}

// Close writes what waits, bounded by the write timeout, and closes. go-amqp
// calls it once; it may be called more often.
func (w *wire) Close() error {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	w.poke()
	<-w.done
	err := w.raw.Close()
	if w.onDead != nil {
		w.onDead(errClient) // unless there was a reason before
	}
	return err
}

// SetReadDeadline does nothing: each read that waits has its own deadline, by
// the idle timeout.
func (w *wire) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing: go-amqp makes a caller's deadline the socket's,
// and when it passes, the whole connection dies. The write timeout bounds each
// write instead.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline does nothing, see the others. go-amqp calls it while it opens the
// connection, and closes that anyway when its context ends.
func (w *wire) SetDeadline(time.Time) error { return nil }

// LocalAddr is the socket's.
func (w *wire) LocalAddr() net.Addr { return w.raw.LocalAddr() }

// RemoteAddr is the socket's.
func (w *wire) RemoteAddr() net.Addr { return w.raw.RemoteAddr() }

// failure is why this side ended the connection, nil when it didn't.
func (w *wire) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// down reports that the connection can't be used any more.
func (w *wire) down() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deaf || w.closing || w.err != nil
}

// silent reports that nothing was read yet.
func (w *wire) silent() bool { return !w.heard.Load() }
