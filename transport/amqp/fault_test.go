package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/internal/netfault"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

// endOf waits for the error that ends the epoch.
func endOf(t *testing.T, r transport.Receiver, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for {
		if _, err := r.Receive(ctx); err != nil {
			if ctx.Err() != nil {
				t.Fatalf("the epoch didn't end within %v", within)
			}
			return err
		}
	}
}

// A cut ends the epoch at once: the lease is lost, what is prefetched isn't
// handed out any more, settlements are refused, and everything comes again.
func TestCut(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*netfault.Proxy){"RST": (*netfault.Proxy).RST, "FIN": (*netfault.Proxy).FIN} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker, queue := brokerURL(t), queueName(t)
			publish(t, broker, queue, nil, numbered(200)...)
			proxy, proxied := through(t, broker)
			r, s := open(t, proxied, queue, nil)
			r.Grant(200)
			ds := receive(t, r, 1)
			cut(proxy)
			err := endOf(t, r, 5*time.Second)
			var e *amqp.Error
			if !errors.As(err, &e) || e.Scope != amqp.ScopeConnection {
				t.Errorf("ended with %v", err)
			}
			if !transport.LeaseOf(ds[0]).Lost() {
				t.Error("the lease outlived its link")
			}
			r.Settle(ds[0], transport.Outcome{Kind: transport.Accept})
			if o := s.outcome(t); !errors.Is(o.err, transport.ErrLeaseLost) {
				t.Errorf("settled with %v", o.err)
			}
			closeNow(t, r)
			r2, s2 := open(t, broker, queue, nil)
			r2.Grant(200)
			got := receive(t, r2, 200)
			for i, d := range got {
				if string(d.Body) != fmt.Sprint(i) {
					t.Fatalf("delivery %d is %q", i, d.Body)
				}
			}
			accept(t, r2, s2, got...)
			closeNow(t, r2)
		})
	}
}

// Behind a black hole the idle timeout ends the epoch, and Close comes back.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	for _, d := range []netfault.Direction{netfault.ToClient, netfault.Both} {
		t.Run(fmt.Sprint(d), func(t *testing.T) {
			t.Parallel()
			broker, queue := brokerURL(t), queueName(t)
			proxy, proxied := through(t, broker)
			r, _ := open(t, proxied, queue, &amqp.Options{Connection: amqp.Connection{IdleTimeout: time.Second, WriteTimeout: time.Second}})
			r.Grant(10)
			proxy.BlackHole(d)
			began := time.Now()
			err := endOf(t, r, 5*time.Second)
			if took := time.Since(began); took > 2500*time.Millisecond {
				t.Errorf("noticed after %v", took)
			}
			if !strings.Contains(err.Error(), "i/o timeout") {
				t.Errorf("ended with %v", err)
			}
			closeNow(t, r)
		})
	}
}

// While the socket takes nothing, Settle and Grant return at once, Close keeps
// to its context, and every settlement is reported.
func TestStalledSocket(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	const n = 5000
	publish(t, broker, queue, nil, numbered(n)...)
	proxy, proxied := through(t, broker)
	r, s := open(t, proxied, queue, &amqp.Options{Connection: amqp.Connection{WriteTimeout: time.Minute, IdleTimeout: time.Minute}})
	r.Grant(n)
	ds := receive(t, r, n)
	proxy.BlackHole(netfault.ToServer)
	began := time.Now()
	for i := 0; i < n; i += 2 { // holes: one range each
		r.Settle(ds[i], transport.Outcome{Kind: transport.Accept})
		r.Grant(1)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("%d settlements took %v", n/2, took)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	began = time.Now()
	if err := r.Close(ctx); err == nil {
		t.Error("nothing could be confirmed, and Close says nothing")
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Close took %v", took)
	}
	for range n / 2 {
		s.outcome(t)
	}
	select {
	case o := <-s.settled:
		t.Errorf("reported twice: %v", o)
	default:
	}
}

// A write that the socket doesn't take ends the connection after WriteTimeout.
func TestWriteTimeout(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	proxy, proxied := through(t, broker)
	p, err := amqp.Publisher(proxied, queue, &amqp.PublisherOptions{
		Connection: amqp.Connection{WriteTimeout: 300 * time.Millisecond, IdleTimeout: time.Minute}, RetryFor: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := testCtx(t)
	if err := p.Publish(ctx, numbered(1)...); err != nil {
		t.Fatal(err)
	}
	proxy.BlackHole(netfault.ToServer)
	big := transport.Message{Body: make([]byte, 16<<20)}
	began := time.Now()
	err = p.Publish(ctx, big)
	var pe *transport.PublishError
	if !errors.As(err, &pe) || len(pe.Unconfirmed) != 1 {
		t.Fatalf("got %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
}

// The watchdog replaces an idle link, and leaves one alone that holds something.
func TestSilence(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	r, s := open(t, broker, queue, &amqp.Options{SilentAfter: 200 * time.Millisecond})
	r.Grant(5)
	publish(t, broker, queue, nil, numbered(1)...)
	ds := receive(t, r, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if got, err := r.Receive(ctx); err != nil || len(got) > 0 {
		t.Fatalf("while one is held: %v, %v", got, err)
	}
	accept(t, r, s, ds...)
	var e *amqp.Error
	if err := endOf(t, r, 5*time.Second); !errors.As(err, &e) || e.Scope != amqp.ScopeLink {
		t.Errorf("got %v", err)
	}
	closeNow(t, r)
	empty(t, broker, queue)
}

// manage calls an operation of Artemis' management, and returns its answer: a
// JSON array.
func manage(t testing.TB, broker, resource, op, args string) string {
	t.Helper()
	ctx := testCtx(t)
	c, err := goamqp.Dial(ctx, broker, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ses, err := c.NewSession(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	in, err := ses.NewReceiver(ctx, "", &goamqp.ReceiverOptions{DynamicAddress: true, Credit: 1})
	if err != nil {
		t.Fatal(err)
	}
	out, err := ses.NewSender(ctx, "activemq.management", nil)
	if err != nil {
		t.Fatal(err)
	}
	to := in.Address()
	if err := out.Send(ctx, &goamqp.Message{
		Properties:            &goamqp.MessageProperties{ReplyTo: &to},
		ApplicationProperties: map[string]any{"_AMQ_ResourceName": resource, "_AMQ_OperationName": op},
		Value:                 args,
	}, nil); err != nil {
		t.Fatal(err)
	}
	m, err := in.Receive(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if ok, _ := m.ApplicationProperties["_AMQ_OperationSucceeded"].(bool); !ok {
		t.Fatalf("%s of %s: %v", op, resource, m.Value)
	}
	answer, _ := m.Value.(string)
	return answer
}

// awaitNoMessage waits until the broker has no message of the queue, and has
// lent none: also none to a connection that it doesn't know to be dead.
func awaitNoMessage(t testing.TB, broker, queue string, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		count := manage(t, broker, "queue."+queue, "getMessageCount", "[]")
		if count == "[0]" {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("after %v the broker has %s messages of %s", within, count, queue)
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// A queue that is deleted ends the link with the broker's word for it; it may
// come back, so that isn't fatal.
func TestQueueDeleted(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	publish(t, broker, queue, nil, numbered(3)...)
	r, _ := open(t, broker, queue, nil)
	r.Grant(10)
	receive(t, r, 3)
	manage(t, broker, "broker", "destroyQueue", fmt.Sprintf(`[%q, true]`, queue))
	err := endOf(t, r, 5*time.Second)
	var e *amqp.Error
	var remote *goamqp.Error
	if !errors.As(err, &e) || e.Scope != amqp.ScopeLink || !errors.As(err, &remote) || remote.Condition != goamqp.ErrCondResourceDeleted {
		t.Errorf("ended with %v", err)
	}
	closeNow(t, r)
	publish(t, broker, queue, nil, numbered(1)...) // made anew on demand
	r2, s2 := open(t, broker, queue, nil)
	r2.Grant(1)
	accept(t, r2, s2, receive(t, r2, 1)...)
	closeNow(t, r2)
}

// Connections that the broker's operator closes.
func TestConnectionsClosedByManagement(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	publish(t, broker, queue, nil, numbered(3)...)
	r, _ := open(t, broker, queue, nil)
	r.Grant(10)
	receive(t, r, 3)
	manage(t, broker, "broker", "closeConsumerConnectionsForAddress", fmt.Sprintf(`[%q]`, queue))
	err := endOf(t, r, 5*time.Second)
	var e *amqp.Error
	if !errors.As(err, &e) || e.Scope != amqp.ScopeConnection {
		t.Errorf("ended with %v", err)
	}
	closeNow(t, r)
	r2, s2 := open(t, broker, queue, nil)
	r2.Grant(3)
	accept(t, r2, s2, receive(t, r2, 3)...)
	closeNow(t, r2)
}

// through gives the url of a proxy in front of the broker.
func through(t testing.TB, broker string) (*netfault.Proxy, string) {
	t.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	p, err := netfault.New(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	u.Host = p.Addr()
	return p, u.String()
}
