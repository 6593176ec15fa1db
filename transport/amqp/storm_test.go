package amqp_test

import (
	"context"
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/internal/netfault"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

const stormCredit = 256

// lossBound is how many duplicates a lost receiver may cause: what was held, and
// the accepts in the sockets.
const lossBound = 3 * stormCredit

var retryForever = supervision.RetryForever(supervision.Backoff{})

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// work takes a millisecond for one message in sixteen, so that handlers run
// when something happens.
func work(ctx context.Context, d *transport.Delivery) error {
	if n := len(d.Body); n > 0 && d.Body[n-1]%16 == 0 {
		pause(ctx, time.Millisecond)
	}
	return context.Cause(ctx)
}

// Through cuts, resets, holes, delays and narrow lines in the middle of 63,000
// messages nothing is lost, no key's order breaks, no two of a key run at once,
// duplicates stay within the stated bound, and the flow is back within 5 s of
// healing.
func TestNetworkStorm(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	proxy, proxied := through(t, broker)
	w := newTree(t, broker, proxied, queue,
		&amqp.Options{Connection: amqp.Connection{IdleTimeout: time.Second, WriteTimeout: time.Second}},
		work, actors.Options{Dispatch: actors.ByKey(8), Credit: stormCredit, Policy: retryForever})
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
	total := 0
	for round := range rounds(t, 1) * len(faults) {
		f := faults[round%len(faults)]
		published := make(chan error, 1)
		go func(from int) { published <- w.out.Publish(testCtx(t), keyed(queue, from, each, 64)...) }(total)
		w.awaitHandled(total+each/10, 20*time.Second) // in the middle of the flow
		f.do()
		pause(t.Context(), f.last)
		w.mu.Lock()
		before := len(w.succeeded)
		w.mu.Unlock()
		proxy.Heal()
		if before < total+each {
			w.awaitHandled(before+1, 5*time.Second)
		}
		if err := <-published; err != nil {
			t.Fatal(err)
		}
		total += each
		w.awaitHandled(total, 20*time.Second)
	}
	lost := w.detached()
	w.finish(oracle.Rules{Duplicates: lost * lossBound, Credit: stormCredit})
	t.Logf("%d lost receivers", lost)
}

// A broker that is killed five times and stopped once while messages flow, in
// both directions: everything arrives, in order.
func TestBrokerStorm(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	queue := queueName(t)
	w := newTree(t, b.url(), b.url(), queue, nil, work, actors.Options{Dispatch: actors.ByKey(8), Credit: stormCredit, Policy: retryForever})
	const each = 3000
	total := 0
	for round := range rounds(t, 6) {
		published := make(chan error, 1)
		go func(from int) { published <- w.out.Publish(testCtx(t), keyed(queue, from, each, 64)...) }(total)
		w.awaitHandled(total+each/10, 20*time.Second)
		if round%6 < 5 {
			b.do("kill9")
		} else {
			b.do("stop")
		}
		b.do("start")
		if err := <-published; err != nil {
			t.Fatal(err)
		}
		total += each
		w.awaitHandled(total, 30*time.Second)
	}
	lost := w.detached()
	w.finish(oracle.Rules{Duplicates: lost * lossBound, Credit: stormCredit})
	t.Logf("%d lost receivers", lost)
}
