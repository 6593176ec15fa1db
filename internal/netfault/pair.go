package netfault

import (
	"io"
	"net"
	"sync"
	"time"
)

const (
	chunkSize  = 32 << 10
	delayQueue = 1024 // chunks under way in a delayed direction
)

// pair is one client's connection and the proxy's own to the server.
type pair struct {
	p              *Proxy
	client, server net.Conn
	once           sync.Once
	done           chan struct{} // closed by end
}

func (c *pair) end(rst bool) {
	c.once.Do(func() {
		close(c.done)
		for _, s := range []net.Conn{c.client, c.server} {
			if rst {
				reset(s)
				continue
			}
			c.p.wg.Add(1)
			go c.finish(s)
		}
		c.p.mu.Lock()
		delete(c.p.pairs, c)
		c.p.mu.Unlock()
	})
}

// lingerFor bounds how long the end of a connection waits for the peer's.
const lingerFor = time.Second

// finish ends one side in good order. A socket that is closed with bytes unread
// is reset, so they are read first.
func (c *pair) finish(s net.Conn) {
	defer c.p.wg.Done()
	if t, ok := s.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
	_ = s.SetDeadline(time.Now().Add(lingerFor))
	_, _ = io.Copy(io.Discard, s)
	_ = s.Close()
}

// chunk is a piece under way, and when it is due at the other side.
type chunk struct {
	b   []byte
	due time.Time
}

// forward carries one direction. Reading and writing are apart, so that a delay
// doesn't narrow the line.
func (c *pair) forward(d Direction, dst, src net.Conn) {
	defer c.p.wg.Done()
	under := make(chan chunk, delayQueue)
	c.p.wg.Add(1)
	go c.deliver(d, dst, under)
	defer close(under)
	for c.open(d) {
		size := chunkSize
		if f, _ := c.p.now(d); f.rate > 0 {
			size = max(1, min(chunkSize, f.rate/20)) // about 20 pieces a second
		}
		b := make([]byte, size)
		n, err := src.Read(b)
		if n > 0 {
			f, _ := c.p.now(d)
			select {
			case under <- chunk{b[:n], time.Now().Add(f.delay)}:
			case <-c.done:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// open waits while the direction is a black hole; false when the pair ended.
func (c *pair) open(d Direction) bool {
	for {
		f, changed := c.p.now(d)
		if !f.hole {
			select {
			case <-c.done:
				return false
			default:
				return true
			}
		}
		select {
		case <-changed:
		case <-c.done:
			return false
		}
	}
}

// deliver writes what forward has read. When that ends, so does the pair: what
// was read before is delivered first.
func (c *pair) deliver(d Direction, dst net.Conn, under <-chan chunk) {
	defer c.p.wg.Done()
	defer c.end(false)
	for ch := range under {
		// Bytes may have been read just before the hole opened: they stay in it.
		if !c.wait(time.Until(ch.due)) || !c.open(d) {
			break
		}
		if f, _ := c.p.now(d); f.rate > 0 && !c.wait(time.Duration(len(ch.b))*time.Second/time.Duration(f.rate)) {
			break
		}
		if _, err := dst.Write(ch.b); err != nil {
			break
		}
		c.p.bytes[index(d)].Add(int64(len(ch.b)))
	}
}

func (c *pair) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.done:
		return false
	}
}
