package netfault_test

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/keylanes/keylanes/internal/netfault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers with what it hears.
func echo(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return ln.Addr().String()
}

func setup(t *testing.T) (*netfault.Proxy, net.Conn) {
	p, err := netfault.New(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return p, c
}

func say(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := c.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
}

func hear(c net.Conn, n int, within time.Duration) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(within))
	b := make([]byte, n)
	m, err := io.ReadFull(c, b)
	return string(b[:m]), err
}

func mustHear(t *testing.T, c net.Conn, want string) {
	t.Helper()
	if got, err := hear(c, len(want), 5*time.Second); err != nil || got != want {
		t.Fatalf("heard %q, %v", got, err)
	}
}

func TestForwards(t *testing.T) {
	t.Parallel()
	p, c := setup(t)
	say(t, c, "hello")
	mustHear(t, c, "hello")
	if p.Conns() != 1 || p.Accepted() != 1 || p.Bytes(netfault.ToServer) != 5 {
		t.Errorf("%d connections, %d accepted, %d bytes", p.Conns(), p.Accepted(), p.Bytes(netfault.ToServer))
	}
}

func TestFIN(t *testing.T) {
	t.Parallel()
	p, c := setup(t)
	say(t, c, "x")
	mustHear(t, c, "x")
	p.FIN()
	if _, err := hear(c, 1, 5*time.Second); !errors.Is(err, io.EOF) {
		t.Fatalf("got %v", err)
	}
}

func TestRST(t *testing.T) {
	t.Parallel()
	p, c := setup(t)
	say(t, c, "x")
	mustHear(t, c, "x")
	p.RST()
	if _, err := hear(c, 1, 5*time.Second); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("got %v", err)
	}
	if p.Conns() != 0 {
		t.Error("the connection is still counted")
	}
}

func TestBlackHoleHoldsAndHeals(t *testing.T) {
	t.Parallel()
	for _, d := range []netfault.Direction{netfault.ToServer, netfault.ToClient, netfault.Both} {
		p, c := setup(t)
		say(t, c, "a")
		mustHear(t, c, "a")
		p.BlackHole(d)
		say(t, c, "b")
		if got, err := hear(c, 1, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("heard %q, %v", got, err)
		}
		p.Heal()
		mustHear(t, c, "b")
	}
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	p, _ := setup(t)
	p.Refuse()
	c, err := net.Dial("tcp", p.Addr())
	if err == nil {
		defer c.Close()
		if _, err = hear(c, 1, 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
	}
}

func TestDelayKeepsBandwidth(t *testing.T) {
	t.Parallel()
	p, c := setup(t)
	p.Delay(netfault.ToServer, 200*time.Millisecond)
	began := time.Now()
	big := make([]byte, 1<<20)
	say(t, c, string(big))
	if _, err := hear(c, len(big), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	// 32 chunks, one after the other, would take 6.4 s.
	if d := time.Since(began); d < 200*time.Millisecond || d > 4*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestThrottle(t *testing.T) {
	t.Parallel()
	p, c := setup(t)
	p.Throttle(netfault.ToClient, 10_000)
	began := time.Now()
	say(t, c, string(make([]byte, 5000)))
	if _, err := hear(c, 5000, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d < 300*time.Millisecond {
		t.Errorf("5000 bytes at 10000 a second took %v", d)
	}
}

func TestServerAway(t *testing.T) {
	t.Parallel()
	p, err := netfault.New("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		return
	}
	defer c.Close()
	if _, err := hear(c, 1, 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
}
