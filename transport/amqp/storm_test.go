package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/keylanes/keylanes/internal/netfault"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

const stormCredit = 256

// stormConsumer consumes a queue over whatever happens to its connection, as a
// subscription's pump does, and keeps a log.
type stormConsumer struct {
	t     *testing.T
	src   transport.Source
	ctx   context.Context
	first map[string]int // by key: the latest message that was seen for the first time
	seen  map[int]int    // times
	lose  int            // epochs that ended badly
	fresh chan int       // number of messages seen at least once
}

func (c *stormConsumer) run() {
	defer close(c.fresh)
	for n := 0; c.ctx.Err() == nil; n++ {
		s := &grantSink{opened: make(chan struct{})}
		open, cancel := context.WithTimeout(c.ctx, 3*time.Second)
		r, err := c.src.Open(open, s)
		cancel()
		if err != nil {
			var f *transport.FatalError
			if errors.As(err, &f) {
				c.t.Error(err)
				return
			}
			pause(c.ctx, 20*time.Millisecond)
			continue
		}
		s.r = r
		close(s.opened)
		c.epoch(r)
		end, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		_ = r.Close(end)
		cancel()
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// grantSink gives the place of what was settled to the next.
type grantSink struct {
	opened chan struct{} // closed when r is set
	r      transport.Receiver
}

func (s *grantSink) Settled(_ *transport.Delivery, _ transport.Outcome, err error) {
	<-s.opened
	if err == nil {
		s.r.Grant(1)
	}
}
func (s *grantSink) Lost([]*transport.Delivery, error) {}

func (c *stormConsumer) epoch(r transport.Receiver) {
	r.Grant(stormCredit)
	for {
		ds, err := r.Receive(c.ctx)
		for _, d := range ds {
			if transport.LeaseOf(d).Lost() {
				continue // not to be started
			}
			c.note(d)
			r.Settle(d, transport.Outcome{Kind: transport.Accept})
		}
		if err != nil {
			if c.ctx.Err() == nil {
				c.lose++
			}
			return
		}
	}
}

func (c *stormConsumer) note(d *transport.Delivery) {
	i, err := strconv.Atoi(string(d.Body))
	if err != nil {
		c.t.Error(err)
		return
	}
	if c.seen[i]++; c.seen[i] > 1 {
		return
	}
	if last, ok := c.first[d.Key]; ok && i != last+7 {
		c.t.Errorf("key %s: %d started after %d", d.Key, i, last)
	}
	c.first[d.Key] = i
	select {
	case c.fresh <- len(c.seen):
	case <-c.ctx.Done():
	}
}

// Through cuts, resets, holes, delays and narrow lines nothing is lost, nothing
// of a key starts before its predecessors, duplicates stay within the stated
// bound, and the flow is back within 5 s of healing.
func TestNetworkStorm(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	proxy, proxied := through(t, broker)
	src, err := amqp.Queue(proxied, queue, &amqp.Options{Connection: amqp.Connection{IdleTimeout: time.Second, WriteTimeout: time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &stormConsumer{t: t, src: src, ctx: ctx, first: map[string]int{}, seen: map[int]int{}, fresh: make(chan int, 1024)}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.run()
	}()
	defer func() {
		cancel()
		<-stopped
	}()
	p := newPublisher(t, broker, queue, nil)

	faults := []struct {
		name string
		do   func()
		last time.Duration
	}{
		{"RST", proxy.RST, 0},
		{"FIN", proxy.FIN, 0},
		{"hole to the client", func() { proxy.BlackHole(netfault.ToClient) }, 1500 * time.Millisecond},
		{"hole to the broker", func() { proxy.BlackHole(netfault.ToServer) }, 1500 * time.Millisecond},
		{"short hole", func() { proxy.BlackHole(netfault.Both) }, 300 * time.Millisecond},
		{"long hole", func() { proxy.BlackHole(netfault.Both) }, 6 * time.Second}, // the broker notices too
		{"delay", func() { proxy.Delay(netfault.Both, 50*time.Millisecond) }, 500 * time.Millisecond},
		{"narrow line", func() { proxy.Throttle(netfault.ToClient, 200_000) }, 500 * time.Millisecond},
		{"refusal", func() { proxy.Refuse(); proxy.RST() }, 500 * time.Millisecond},
	}
	const each = 7000
	total, seen := 0, 0
	for round := range rounds(t, 1) * len(faults) {
		f := faults[round%len(faults)]
		ms := make([]transport.Message, each)
		for i := range ms {
			n := total + i
			ms[i] = transport.Message{ID: fmt.Sprint(queue, n), Key: fmt.Sprint("k", n%7), Body: []byte(fmt.Sprint(n))}
		}
		published := make(chan error, 1)
		go func() { published <- p.Publish(testCtx(t), ms...) }()
		for late := time.After(20 * time.Second); seen < total+each/10; { // in the middle of the flow
			select {
			case seen = <-c.fresh:
			case <-late:
				t.Fatalf("before %s: %d of %d messages after 20 s", f.name, seen, total)
			}
		}
		f.do()
		pause(ctx, f.last)
		proxy.Heal()
		healed := time.Now()
		if err := <-published; err != nil {
			t.Fatal(err)
		}
		total += each
		for late := time.After(20 * time.Second); seen < total; {
			select {
			case seen = <-c.fresh:
			case <-late:
				t.Fatalf("%s: %d of %d messages after 20 s", f.name, seen, total)
			}
			if healed.IsZero() {
				continue
			}
			if took := time.Since(healed); took > 5*time.Second {
				t.Errorf("%s: the flow was back after %v", f.name, took)
			}
			healed = time.Time{}
		}
	}
	cancel()
	for range c.fresh {
	}
	extra := 0
	for _, n := range c.seen {
		extra += n - 1
	}
	// For each lost epoch: what was held, and the accepts in the sockets.
	if bound := c.lose * 3 * stormCredit; extra > bound {
		t.Errorf("%d duplicates for %d lost epochs, more than %d", extra, c.lose, bound)
	}
	t.Logf("%d messages, %d lost epochs, %d duplicates", total, c.lose, extra)
	empty(t, broker, queue)
}
