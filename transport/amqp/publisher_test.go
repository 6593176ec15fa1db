package amqp_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/internal/netfault"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

func newPublisher(t *testing.T, url, queue string, o *amqp.PublisherOptions) transport.Publisher {
	t.Helper()
	p, err := amqp.Publisher(url, queue, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(testCtx(t)); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Over lost connections every message arrives, and is doubled only if it was
// under way when one was lost.
func TestPublishThroughCuts(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	proxy, proxied := through(t, broker)
	p := newPublisher(t, proxied, queue, nil)
	const calls, each = 20, 500
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		cuts, next := 0, int64(50_000)
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			if proxy.Bytes(netfault.ToServer) < next {
				continue // by what got through, so that a slow machine gets on too
			}
			if cuts++; cuts%2 == 0 {
				proxy.RST()
			} else {
				proxy.FIN()
			}
			next = proxy.Bytes(netfault.ToServer) + 150_000
		}
	}()
	ms := numbered(calls * each)
	for i := range calls {
		if err := p.Publish(testCtx(t), ms[i*each:(i+1)*each]...); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	<-stopped
	if proxy.Accepted() < 2 {
		t.Error("nothing was cut")
	}
	r, s := open(t, broker, queue, nil)
	r.Grant(2 * calls * each)
	var got []*transport.Delivery
	seen := map[string]bool{}
	late, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for len(seen) < calls*each {
		ds, err := r.Receive(late)
		if err != nil {
			t.Fatalf("%d of %d arrived, in %d deliveries: %v", len(seen), calls*each, len(got), err)
		}
		for _, d := range ds {
			seen[string(d.Body)] = true
		}
		got = append(got, ds...)
	}
	got = append(got, drain(t, r)...)
	// The window is the bound; the broker's deduplication leaves a handful.
	if extra := len(got) - calls*each; extra > 50*int(proxy.Accepted()) {
		t.Errorf("%d duplicates of %d connections", extra, proxy.Accepted())
	}
	accept(t, r, s, got...)
	closeNow(t, r)
	empty(t, broker, queue)
}

// Calls that together need more than the window don't wait for each other.
func TestPublishWindow(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	p := newPublisher(t, broker, queue, &amqp.PublisherOptions{Window: 3})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			ms := make([]transport.Message, 50)
			if err := p.Publish(testCtx(t), ms...); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r, s := open(t, broker, queue, nil)
	r.Grant(400)
	accept(t, r, s, receive(t, r, 400)...)
	closeNow(t, r)
}

// Behind a hole, Publish ends with its context and says what isn't confirmed;
// so it does when the broker refuses some.
func TestPublishUnconfirmed(t *testing.T) {
	t.Parallel()
	broker := brokerURL(t)
	t.Run("hole", func(t *testing.T) {
		t.Parallel()
		proxy, proxied := through(t, broker)
		p := newPublisher(t, proxied, queueName(t), nil)
		if err := p.Publish(testCtx(t), numbered(10)...); err != nil {
			t.Fatal(err)
		}
		proxy.BlackHole(netfault.Both)
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		err := p.Publish(ctx, numbered(10)...)
		var pe *transport.PublishError
		if !errors.As(err, &pe) || !slices.Equal(pe.Unconfirmed, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		proxy.Heal()
		if err := p.Publish(testCtx(t), numbered(10)...); err != nil {
			t.Errorf("after healing: %v", err)
		}
	})
	t.Run("address full", func(t *testing.T) {
		t.Parallel()
		p := newPublisher(t, broker, strings.Replace(queueName(t), "app.", "app.small.", 1), nil)
		ms := make([]transport.Message, 100)
		for i := range ms {
			ms[i].Body = make([]byte, 4096)
		}
		err := p.Publish(testCtx(t), ms...)
		var pe *transport.PublishError
		var remote *goamqp.Error
		if !errors.As(err, &pe) || len(pe.Unconfirmed) == 0 || len(pe.Unconfirmed) == 100 ||
			!errors.As(err, &remote) || remote.Condition != goamqp.ErrCondResourceLimitExceeded {
			t.Errorf("got %v", err)
		}
	})
	t.Run("nobody there", func(t *testing.T) {
		t.Parallel()
		p := newPublisher(t, "amqp://127.0.0.1:1", "q", &amqp.PublisherOptions{RetryFor: 2 * time.Second})
		err := p.Publish(context.Background(), numbered(2)...)
		var pe *transport.PublishError
		var e *amqp.Error
		if !errors.As(err, &pe) || len(pe.Unconfirmed) != 2 || !errors.As(err, &e) {
			t.Errorf("got %v", err)
		}
	})
}

// What can't be sent is refused before anything is.
func TestPublishRefusesBadMessages(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, "amqp://127.0.0.1:1", "q", nil)
	for field, m := range map[string]transport.Message{
		"Message.ID":            {ID: "\xff"},
		"Message.Key":           {Key: "\xff"},
		"Message.CorrelationID": {CorrelationID: "\xff"},
		"Message.ReplyTo":       {ReplyTo: "\xff"},
		"Message.ContentType":   {ContentType: "text/ä"},
		"Message.TTL":           {TTL: -1},
		"Message.Delay":         {Delay: 50 * 24 * time.Hour},
		"Message.Headers":       {Headers: map[string]any{"\xff": 1}},
		`Message.Headers["a"]`:  {Headers: map[string]any{"a": "\xff"}},
		`Message.Headers["b"]`:  {Headers: map[string]any{"b": []string{"x"}}},
	} {
		err := p.Publish(testCtx(t), transport.Message{}, m)
		var pe *transport.PublishError
		if !errors.As(err, &pe) || len(pe.Unconfirmed) != 2 {
			t.Errorf("%s: got %v", field, err)
			continue
		}
		optionError(t, err, field)
	}
}

// Close waits for calls under way, and ends them when its own time is over.
func TestPublisherClose(t *testing.T) {
	t.Parallel()
	broker := brokerURL(t)
	proxy, proxied := through(t, broker)
	p, err := amqp.Publisher(proxied, queueName(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(testCtx(t), numbered(1)...); err != nil {
		t.Fatal(err)
	}
	proxy.BlackHole(netfault.Both)
	failed := make(chan error, 1)
	began := make(chan struct{})
	go func() {
		close(began)
		failed <- p.Publish(context.Background(), numbered(1)...)
	}()
	<-began
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_ = p.Close(ctx) // with an error if Publish was under way already
	var pe *transport.PublishError
	select {
	case err := <-failed:
		if !errors.As(err, &pe) || !errors.Is(err, transport.ErrClosed) {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Publish outlived Close")
	}
	if err := p.Publish(testCtx(t), transport.Message{}); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	for range 3 {
		if err := p.Close(testCtx(t)); err != nil {
			t.Errorf("another Close: %v", err)
		}
	}
}

// Durable and of priority 4 unless told otherwise; the id goes along for
// deduplication.
func TestPublishedHeader(t *testing.T) {
	t.Parallel()
	broker := brokerURL(t)
	nine := uint8(9)
	for name, c := range map[string]struct {
		o        *amqp.PublisherOptions
		durable  bool
		priority uint8
		copies   int
	}{
		"default": {nil, true, 4, 1},
		"other":   {&amqp.PublisherOptions{NonDurable: true, Priority: &nine, NoDeduplication: true}, false, 9, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := queueName(t)
			m := transport.Message{ID: "one", Body: []byte("x"), Headers: map[string]any{"a": "b"}}
			publish(t, broker, queue, c.o, m, m)
			r, s := open(t, broker, queue, nil)
			r.Grant(10)
			for _, d := range receive(t, r, c.copies) {
				n := d.Native.(*goamqp.Message)
				if n.Header == nil || n.Header.Durable != c.durable || n.Header.Priority != c.priority {
					t.Errorf("header %+v", n.Header)
				}
				if len(d.Headers) != 1 || d.Headers["a"] != "b" {
					t.Errorf("headers %v", d.Headers)
				}
				accept(t, r, s, d)
			}
			closeNow(t, r)
			empty(t, broker, queue)
		})
	}
}
