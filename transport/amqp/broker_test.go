package amqp_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

// ownBroker is an Artemis of a test's own, to be killed.
type ownBroker struct {
	t    *testing.T
	env  []string
	port int
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// newBroker starts a broker of its own for t. It needs the script, and is as
// optional as any broker.
func newBroker(t *testing.T) *ownBroker {
	t.Helper()
	brokerURL(t)
	b := &ownBroker{t: t, port: freePort(t)}
	b.env = append(os.Environ(), "ARTEMIS_INSTANCE="+strings.ToLower(t.Name()), "ARTEMIS_TIER=1", "ARTEMIS_HEAP=256m",
		fmt.Sprint("ARTEMIS_PORT=", b.port), fmt.Sprint("ARTEMIS_TLS_PORT=", freePort(t)))
	b.do("stop") // left over from a run that was killed
	b.do("wipe")
	b.do("start")
	t.Cleanup(func() { b.do("stop") })
	return b
}

func (b *ownBroker) url() string { return fmt.Sprintf("amqp://admin:admin@127.0.0.1:%d", b.port) }

func (b *ownBroker) do(command string) {
	b.t.Helper()
	script, err := filepath.Abs("../../scripts/artemis.sh")
	if err != nil {
		b.t.Fatal(err)
	}
	c := exec.Command(script, command)
	c.Env = b.env
	if out, err := c.CombinedOutput(); err != nil {
		b.t.Fatalf("artemis.sh %s: %v\n%s", command, err, out)
	}
}

// rounds is n, or what KEYLANES_SOAK says.
func rounds(t *testing.T, n int) int {
	if s := os.Getenv("KEYLANES_SOAK"); s != "" {
		m, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("KEYLANES_SOAK = %q: must be a number of rounds", s)
		}
		return m
	}
	return n
}

// After Close nothing that was settled comes again, not even when the broker is
// killed the moment Close returns; and what wasn't settled is all there, in
// order.
func TestKillAfterClose(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	const n = 1000
	for round := range rounds(t, 5) {
		queue := queueName(t)
		publish(t, b.url(), queue, nil, numbered(n)...)
		r, s := open(t, b.url(), queue, nil)
		r.Grant(n)
		ds := receive(t, r, n)
		var want []string
		for i, d := range ds {
			if i%10 == round%10 {
				want = append(want, string(d.Body))
				continue
			}
			r.Settle(d, transport.Outcome{Kind: transport.Accept})
		}
		closeNow(t, r)
		b.do("kill9")
		for range n - len(want) {
			if o := s.outcome(t); o.err != nil {
				t.Fatal(o.err)
			}
		}
		b.do("start")
		r2, s2 := open(t, b.url(), queue, nil)
		r2.Grant(n)
		got := receive(t, r2, len(want))
		if g := bodies(got); strings.Join(g, " ") != strings.Join(want, " ") {
			t.Fatalf("round %d: %d came back instead of %d: %v", round, len(g), len(want), g)
		}
		accept(t, r2, s2, got...)
		closeNow(t, r2)
		empty(t, b.url(), queue)
	}
}

// A broker that is killed or stopped while deliveries are held ends the epoch
// at once, refuses for a while, and gives everything back in order.
func TestBrokerGoesAndComes(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	queue := queueName(t)
	publish(t, b.url(), queue, nil, numbered(300)...)
	src, err := amqp.Queue(b.url(), queue, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"kill9", "stop"} {
		r, _ := open(t, b.url(), queue, nil)
		r.Grant(200)
		receive(t, r, 200)
		b.do(how)
		err := endOf(t, r, 5*time.Second)
		var e *amqp.Error
		if !errors.As(err, &e) || e.Scope != amqp.ScopeConnection {
			t.Errorf("%s: ended with %v", how, err)
		}
		closeNow(t, r)
		if _, err := src.Open(testCtx(t), newSink()); !errors.As(err, &e) || e.Scope != amqp.ScopeConnection {
			t.Errorf("%s: open gives %v", how, err)
		}
		b.do("start")
	}
	r, s := open(t, b.url(), queue, nil)
	r.Grant(300)
	got := receive(t, r, 300)
	for i, d := range got {
		if string(d.Body) != fmt.Sprint(i) {
			t.Fatalf("delivery %d is %q", i, d.Body)
		}
	}
	accept(t, r, s, got...)
	closeNow(t, r)
	empty(t, b.url(), queue)
}
