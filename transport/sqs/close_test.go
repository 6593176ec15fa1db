package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/transport"
)

// Close sends what is settled first, and then gives back the rest, the last
// received first.
func TestCloseFlushesThenGivesBack(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, ".fifo", nil)
		put(f, f.client, q, "g", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
		r, s := open(f, f.client, q, nil)
		r.Grant(20)
		ds := receive(f, r, 10)
		var mu sync.Mutex
		var order []string
		f.wire.Script(func(c sqsfake.Call) sqsfake.Fault {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, c.Op)
			if c.Op == "DeleteMessageBatch" {
				return sqsfake.Delay(time.Second)
			}
			return nil
		})
		for _, d := range ds[:3] {
			r.Settle(d, accept)
		}
		began := time.Now()
		closeNow(f, r)
		if d := time.Since(began); d != time.Second {
			f.Errorf("closed after %v, want 1s, without a linger", d)
		}
		s.await(f, 3)
		if got := strings.Join(order, " "); got != "DeleteMessageBatch "+changeOp {
			f.Errorf("calls: %s", got)
		}
		for _, d := range ds[3:] {
			if transport.LeaseOf(d).Live(time.Now()) {
				f.Errorf("%v: its lease is live after Close", d)
			}
		}
		f.wire.Script(nil)
		f.atServer(q, "7", "0")
		r, _ = open(f, f.client, q, nil)
		r.Grant(20)
		if got := bodies(receive(f, r, 7)); got != "3 4 5 6 7 8 9" {
			f.Errorf("came again as %s", got)
		}
		closeNow(f, r)
	})
}

// A head isn't given back before its successors are.
func TestCloseGivesTheHeadBackLast(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, ".fifo", nil)
		put(f, f.client, q, "g", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
		put(f, f.client, q, "h", "a", "b")
		r, _ := open(f, f.client, q, nil)
		r.Grant(20)
		ds := receive(f, r, 12)
		// The first call holds b a 9 … 2; of it 5 fails again and again.
		var calls []string
		f.wire.Script(func(c sqsfake.Call) sqsfake.Fault {
			if c.Op != changeOp {
				return nil
			}
			calls = append(calls, bodiesOf(f, c, ds))
			n := len(calls)
			if n <= 4 {
				return sqsfake.FailEntries("InternalError", false, func(i int) bool { return n == 1 && i == 6 || n > 1 && i == 0 })
			}
			return nil
		})
		closeNow(f, r)
		f.wire.Script(nil)
		if got := strings.Join(calls, ", "); got != "b a 9 8 7 6 5 4 3 2, 5, 5, 5, 5, 1 0" {
			f.Errorf("calls: %s", got)
		}
		f.atServer(q, "12", "0")
		r, _ = open(f, f.client, q, nil)
		r.Grant(20)
		got := map[string]string{}
		for _, d := range receive(f, r, 12) {
			got[d.Group] += string(d.Body)
		}
		if got["g"] != "0123456789" || got["h"] != "ab" {
			f.Errorf("came again as %v", got)
		}
		closeNow(f, r)
	})
}

// bodiesOf names the entries of a call by their messages' bodies.
func bodiesOf(t testing.TB, c sqsfake.Call, ds []*transport.Delivery) string {
	var in struct {
		Entries []struct{ ReceiptHandle string }
	}
	if err := json.Unmarshal(c.Body, &in); err != nil {
		t.Error(err)
	}
	var out []string
	for _, e := range in.Entries {
		for _, d := range ds {
			if transport.HandleOf(d).(*receipt).handle == e.ReceiptHandle {
				out = append(out, string(d.Body))
			}
		}
	}
	return strings.Join(out, " ")
}

// Close waits for a poll in flight and gives back what it brings.
func TestCloseWaitsForThePoll(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, "", nil)
		r, _ := open(f, f.client, q, &Options{Pollers: 3, WaitTime: 10 * time.Second})
		r.Grant(100)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if ds, err := r.Receive(ctx); len(ds) != 0 {
				f.Errorf("got %v, %v", ds, err)
			}
		}()
		time.Sleep(7 * time.Second)
		cancel()
		<-done
		put(f, f.client, q, "", "0")
		closeNow(f, r)
		f.atServer(q, "1", "0")
		if n := f.wire.Calls("ReceiveMessage"); n != 3 {
			f.Errorf("%d receives, want 3", n)
		}
	})
}

// When its context ends, Close gives up at once, says what comes again, and
// leaves no goroutine (the bubble would wait for it).
func TestCloseIsBounded(t *testing.T) {
	virtual(t, func(f *fake) {
		q, r, s, ds := f.held(".fifo", 30, nil)
		f.wire.Script(func(sqsfake.Call) sqsfake.Fault { return sqsfake.BlackHole })
		for _, d := range ds[:12] {
			r.Settle(d, accept)
		}
		r.Extend(ds, until(time.Minute))
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		began := time.Now()
		err := r.Close(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "12 settled") || !strings.Contains(err.Error(), "18 not given back") {
			f.Errorf("close: %v", err)
		}
		if d := time.Since(began); d != 3*time.Second {
			f.Errorf("closed after %v, want 3s", d)
		}
		for range 12 {
			if e := <-s.settled; !errors.Is(e.err, transport.ErrLeaseLost) {
				f.Errorf("settled: %v", e.err)
			}
		}
		f.wire.Script(nil)
		time.Sleep(time.Minute)
		f.atServer(q, "30", "0")
	})
}

func TestCloseWithoutUse(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, "", nil)
		r, _ := open(f, f.client, q, nil)
		closeNow(f, r)
		if _, err := r.Receive(f.Context()); !errors.Is(err, transport.ErrClosed) {
			f.Errorf("receive after close: %v", err)
		}
		r, _ = open(f, f.client, q, nil)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := r.Close(ctx); err != nil {
			f.Errorf("close with nothing held: %v", err)
		}
	})
}

// Without permission to give anything back Close doesn't go on trying.
func TestCloseDenied(t *testing.T) {
	virtual(t, func(f *fake) {
		_, r, s, ds := f.held("", 20, nil)
		f.wire.Script(func(sqsfake.Call) sqsfake.Fault { return sqsfake.Fail(403, "AccessDenied") })
		r.Settle(ds[0], accept)
		began := time.Now()
		if err := r.Close(context.Background()); err == nil || !strings.Contains(err.Error(), "1 settled without") || !strings.Contains(err.Error(), "19 not given back") {
			f.Errorf("close: %v", err)
		}
		if e := <-s.settled; !errors.Is(e.err, transport.ErrLeaseLost) {
			f.Errorf("settled: %v", e.err)
		}
		if d := time.Since(began); d > time.Second {
			f.Errorf("closed after %v", d)
		}
	})
}

// 100 stops at once, each in the middle of its work.
func TestManyStopsAtOnce(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, "", nil)
		for i := range 600 {
			put(f, f.client, q, "", fmt.Sprint(i))
		}
		var rs []transport.Receiver
		accepted := 0
		for range 100 {
			r, _ := open(f, f.client, q, &Options{WaitTime: time.Second})
			r.Grant(10)
			ds, err := r.Receive(f.Context())
			if err != nil {
				f.Fatal(err)
			}
			for _, d := range ds[:len(ds)/3] {
				r.Settle(d, accept)
				accepted++
			}
			rs = append(rs, r)
		}
		var wg sync.WaitGroup
		for _, r := range rs {
			wg.Go(func() { closeNow(f, r) })
		}
		wg.Wait()
		f.atServer(q, fmt.Sprint(600-accepted), "0")
	})
}

// A stop at a random moment of polls, deletes and extensions, on a slow network
// that also loses replies: nothing is invisible afterwards, and nothing is lost.
func TestStopAtRandomMoments(t *testing.T) {
	for seed := range uint64(rounds(t, 10)) {
		for _, kind := range []string{"", ".fifo"} {
			t.Run(fmt.Sprintf("%d%s", seed, kind), func(t *testing.T) {
				virtual(t, func(f *fake) { stopAtRandom(f, kind, seed) })
			})
		}
	}
}

func stopAtRandom(f *fake, kind string, seed uint64) {
	const n = 120
	rng := rand.New(rand.NewPCG(seed, 7))
	q := newQueue(f, f.client, kind, nil)
	for i := range n {
		put(f, f.client, q, fmt.Sprint("g", i%20), fmt.Sprint(i))
	}
	w := &worker{t: f, rng: rand.New(rand.NewPCG(seed, 8)), accepted: make(chan string, n), lease: 4 * time.Second}
	w.r, w.s = open(f, f.client, q, &Options{VisibilityTimeout: 4 * time.Second, WaitTime: time.Second})
	lossy := seed%2 == 1 && kind == ".fifo" // on standard queues a lost receive is lost until its timeout
	f.wire.Script(func(c sqsfake.Call) sqsfake.Fault {
		switch {
		case c.Op == "GetQueueAttributes":
			return nil
		case lossy && rng.IntN(10) == 0:
			return sqsfake.LoseReply
		}
		return slow(time.Duration(rng.Int64N(int64(40*time.Millisecond))), time.Duration(rng.Int64N(int64(40*time.Millisecond))))
	})
	w.r.Grant(40)
	stop := make(chan struct{})
	at := time.Duration(rng.Int64N(int64(6 * time.Second)))
	time.AfterFunc(at, func() { close(stop) })
	w.run(stop)
	f.wire.Script(nil)
	done := len(w.accepted)
	v, i := counts(f, f.client, q)
	if i != "0" {
		f.Errorf("stopped after %v: %s invisible", at, i)
	}
	// An accept that wasn't confirmed may have been carried out: it is the
	// reply that was lost.
	if left := fmt.Sprint(n - done); v != left && !lossy {
		f.Errorf("stopped after %v: %d accepted, %s visible, want %s", at, done, v, left)
	}
	seen := map[string]bool{}
	close(w.accepted)
	for b := range w.accepted {
		if seen[b] {
			f.Errorf("%s was accepted twice", b)
		}
		seen[b] = true
	}
	if len(w.s.lost) > 0 {
		f.Errorf("%d leases lost: %v", len(w.s.lost), w.s.lostErr)
	}
}
