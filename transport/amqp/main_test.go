package amqp_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// brokerURL is the broker's url, or the end of the test: a run that requires
// brokers must not pass without one.
func brokerURL(t testing.TB) string {
	t.Helper()
	return needEnv(t, "KEYLANES_AMQP_URL")
}

func needEnv(t testing.TB, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v != "" {
		return v
	}
	if os.Getenv("CI") == "true" || os.Getenv("KEYLANES_REQUIRE_BROKERS") == "1" {
		t.Fatalf("%s isn't set: start a broker with scripts/artemis.sh start, then eval \"$(scripts/artemis.sh env)\"", name)
	}
	t.Skipf("%s isn't set: needs a broker (scripts/artemis.sh start; scripts/artemis.sh env)", name)
	return ""
}

// queueName gives a name that no other test, and no other run, uses.
func queueName(t testing.TB) string {
	return fmt.Sprintf("app.%s.%s", strings.NewReplacer("/", ".", "#", ".").Replace(t.Name()), rand.Text()[:10])
}

// testCtx ends well before the test binary's own timeout.
func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// settled is one call of Sink.Settled.
type settled struct {
	d   *transport.Delivery
	o   transport.Outcome
	err error
}

// sink records what a receiver reports.
type sink struct{ settled chan settled }

func newSink() *sink { return &sink{settled: make(chan settled, 1<<16)} }

func (s *sink) Settled(d *transport.Delivery, o transport.Outcome, err error) {
	s.settled <- settled{d, o, err}
}
func (s *sink) Lost([]*transport.Delivery, error) {}

// outcome waits for the next report.
func (s *sink) outcome(t testing.TB) settled {
	t.Helper()
	select {
	case o := <-s.settled:
		return o
	case <-time.After(20 * time.Second):
		t.Fatal("no settlement was reported within 20 s")
		return settled{}
	}
}

func publish(t testing.TB, url, queue string, o *amqp.PublisherOptions, ms ...transport.Message) {
	t.Helper()
	p, err := amqp.Publisher(url, queue, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx := testCtx(t)
	if err := p.Publish(ctx, ms...); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func numbered(n int) []transport.Message {
	ms := make([]transport.Message, n)
	for i := range ms {
		ms[i] = transport.Message{ID: fmt.Sprint("m", i), Key: fmt.Sprint("k", i%7), Body: []byte(fmt.Sprint(i))}
	}
	return ms
}

func open(t testing.TB, url, queue string, o *amqp.Options) (transport.Receiver, *sink) {
	t.Helper()
	src, err := amqp.Queue(url, queue, o)
	if err != nil {
		t.Fatal(err)
	}
	s := newSink()
	r, err := src.Open(testCtx(t), s)
	if err != nil {
		t.Fatal(err)
	}
	return r, s
}

func closeNow(t testing.TB, r transport.Receiver) {
	t.Helper()
	if err := r.Close(testCtx(t)); err != nil {
		t.Error(err)
	}
}

// receive gathers n deliveries.
func receive(t testing.TB, r transport.Receiver, n int) []*transport.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var all []*transport.Delivery
	for len(all) < n {
		ds, err := r.Receive(ctx)
		if err != nil {
			t.Fatalf("after %d of %d: %v", len(all), n, err)
		}
		all = append(all, ds...)
	}
	return all
}

func bodies(ds []*transport.Delivery) []string {
	var out []string
	for _, d := range ds {
		out = append(out, string(d.Body))
	}
	return out
}
