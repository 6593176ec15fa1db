// Package netfault is a TCP proxy on loopback that breaks connections the ways
// networks do: it cuts, resets, delays, throttles and swallows what goes
// through. For tests.
package netfault

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Direction says which way bytes go. Directions can be combined with |.
type Direction uint8

// The directions.
const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// Proxy forwards connections to one target. All methods may be called from any
// goroutine; faults hold for the connections that are there and those to come,
// until Heal.
type Proxy struct {
	target string
	ln     net.Listener
	wg     sync.WaitGroup

	mu       sync.Mutex
	state    [2]fault      // by index of direction
	changed  chan struct{} // closed and replaced when state changes
	refuse   bool
	pairs    map[*pair]struct{}
	closed   bool
	accepted atomic.Int64
	bytes    [2]atomic.Int64
}

// fault is what happens to one direction.
type fault struct {
	hole  bool
	delay time.Duration
	rate  int // bytes a second, 0: unlimited
}

// New listens on a free port of 127.0.0.1 and forwards to target (host:port).
func New(target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, ln: ln, changed: make(chan struct{}), pairs: map[*pair]struct{}{}}
	p.wg.Add(1)
	go p.accept()
	return p, nil
}

// Addr is what clients dial: 127.0.0.1:port.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Conns is how many connections are open.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs)
}

// Accepted is how many connections were ever accepted.
func (p *Proxy) Accepted() int64 { return p.accepted.Load() }

// Bytes is how many bytes went the given way (one direction).
func (p *Proxy) Bytes(d Direction) int64 { return p.bytes[index(d)].Load() }

// BlackHole lets nothing through the given way: bytes stay in the senders'
// buffers, which fill, and neither side hears of the other's end. After Heal
// they arrive, as TCP's retransmissions do.
func (p *Proxy) BlackHole(d Direction) { p.change(d, func(f *fault) { f.hole = true }) }

// Delay holds everything that goes the given way back by the given time.
func (p *Proxy) Delay(d Direction, by time.Duration) { p.change(d, func(f *fault) { f.delay = by }) }

// Throttle lets so many bytes a second through the given way.
func (p *Proxy) Throttle(d Direction, bytesPerSecond int) {
	p.change(d, func(f *fault) { f.rate = bytesPerSecond })
}

// Refuse resets every new connection.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = true
}

// Heal takes all faults back. Connections that were ended stay so.
func (p *Proxy) Heal() {
	p.mu.Lock()
	p.refuse = false
	p.mu.Unlock()
	p.change(Both, func(f *fault) { *f = fault{} })
}

func (p *Proxy) change(d Direction, set func(*fault)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.state {
		if d&(1<<i) != 0 {
			set(&p.state[i])
		}
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// FIN ends all connections in good order, on both sides: each peer reads what
// is under way and then the end.
func (p *Proxy) FIN() { p.each(func(c *pair) { c.end(false) }) }

// RST resets all connections, on both sides.
func (p *Proxy) RST() { p.each(func(c *pair) { c.end(true) }) }

func (p *Proxy) each(do func(*pair)) {
	p.mu.Lock()
	cs := make([]*pair, 0, len(p.pairs))
	for c := range p.pairs {
		cs = append(cs, c)
	}
	p.mu.Unlock()
	for _, c := range cs {
		do(c)
	}
}

// Close ends everything and waits for the proxy's goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.ln.Close()
	p.RST()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	defer p.wg.Done()
	for {
		c, err := p.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // a passing shortage: the listener lives
		}
		p.accepted.Add(1)
		p.mu.Lock()
		refuse := p.refuse || p.closed
		p.mu.Unlock()
		if refuse {
			reset(c)
			continue
		}
		p.wg.Add(1)
		go p.connect(c)
	}
}

func (p *Proxy) connect(client net.Conn) {
	defer p.wg.Done()
	server, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		reset(client)
		return
	}
	c := &pair{p: p, client: client, server: server, done: make(chan struct{})}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		c.end(true)
		return
	}
	p.pairs[c] = struct{}{}
	p.mu.Unlock()
	p.wg.Add(2)
	go c.forward(ToServer, server, client)
	go c.forward(ToClient, client, server)
}

// now gives the direction's fault, and a channel that tells of a change.
func (p *Proxy) now(d Direction) (fault, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state[index(d)], p.changed
}

func index(d Direction) int {
	if d == ToServer {
		return 0
	}
	return 1
}

func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}
