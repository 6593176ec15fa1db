package sqs

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// The tests of this file run on a real server.

func TestServerReceivesInOrderAndAccepts(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", ".fifo"} {
		t.Run("queue"+kind, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, serverURL(t))
			q := newQueue(t, c, kind, nil)
			put(t, c, q, "g", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
			r, s := open(t, c, q, nil)
			r.Grant(256)
			ds := receive(t, r, 10)
			if kind != "" {
				if got, want := bodies(ds), "0 1 2 3 4 5 6 7 8 9"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
			for _, d := range ds {
				if d.Key != "g" || d.Group != "g" || d.Count != 0 || d.ID == "" || d.Epoch != 1 || d.Enqueued.IsZero() {
					t.Errorf("delivery %v: group %q enqueued %v", d, d.Group, d.Enqueued)
				}
				if (d.Sequence != "") != (kind != "") {
					t.Errorf("sequence %q on queue%s", d.Sequence, kind)
				}
				if left := time.Until(transport.LeaseOf(d).Deadline()); left <= 0 || left > 30*time.Second {
					t.Errorf("the lease ends in %v", left)
				}
				r.Settle(d, accept)
			}
			s.await(t, 10)
			closeNow(t, r)
			if v, i := counts(t, c, q); v != "0" || i != "0" {
				t.Errorf("%s visible, %s invisible", v, i)
			}
		})
	}
}

func TestServerCloseGivesBackInOrder(t *testing.T) {
	t.Parallel()
	c := newClient(t, serverURL(t))
	q := newQueue(t, c, ".fifo", nil)
	for g := range 5 {
		for i := range 10 {
			put(t, c, q, fmt.Sprint("g", g), fmt.Sprint(i))
		}
	}
	r, _ := open(t, c, q, nil)
	r.Grant(100)
	receive(t, r, 50)
	closeNow(t, r)
	if v, i := countsAfterStop(t, c, q); v != "50" || i != "0" {
		t.Errorf("%s visible, %s invisible, want 50 and 0", v, i)
	}
	r, s := open(t, c, q, nil)
	r.Grant(100)
	next := map[string]int{}
	for _, d := range receive(t, r, 50) {
		if string(d.Body) != fmt.Sprint(next[d.Group]) {
			t.Errorf("group %s: got %s, want %d", d.Group, d.Body, next[d.Group])
		}
		next[d.Group]++
		if d.Count != 1 {
			t.Errorf("count %d, want 1", d.Count)
		}
		r.Settle(d, accept)
	}
	s.await(t, 50)
	closeNow(t, r)
}

func TestServerExtendKeepsMessages(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", ".fifo"} {
		t.Run("queue"+kind, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, serverURL(t))
			q := newQueue(t, c, kind, map[string]string{"VisibilityTimeout": "2"})
			put(t, c, q, "g", "0", "1", "2")
			r, s := open(t, c, q, &Options{VisibilityTimeout: 2 * time.Second})
			r.Grant(20)
			ds := receive(t, r, 3)
			// Three times the visibility timeout, as the tree would do it.
			tick := time.NewTicker(700 * time.Millisecond)
			defer tick.Stop()
			for range 9 {
				<-tick.C
				r.Extend(ds, time.Now().Add(2*time.Second))
			}
			if v, i := counts(t, c, q); v != "0" || i != "3" {
				t.Errorf("%s visible, %s invisible, want 0 and 3", v, i)
			}
			for _, d := range ds {
				r.Settle(d, accept)
			}
			s.await(t, 3)
			closeNow(t, r)
			if v, i := counts(t, c, q); v != "0" || i != "0" {
				t.Errorf("%s visible, %s invisible", v, i)
			}
		})
	}
}

func TestServerAbandonGroup(t *testing.T) {
	t.Parallel()
	c := newClient(t, serverURL(t))
	q := newQueue(t, c, ".fifo", nil)
	put(t, c, q, "g", "0", "1", "2", "3", "4")
	r, s := open(t, c, q, nil)
	r.Grant(20)
	ds := receive(t, r, 5)
	for i := len(ds) - 1; i > 0; i-- {
		r.Settle(ds[i], giveUp)
	}
	r.Settle(ds[0], transport.Outcome{Kind: transport.Abandon, Delay: 1500 * time.Millisecond})
	s.await(t, 5)
	began := time.Now()
	r.Grant(5)
	ds = receive(t, r, 5)
	if got := bodies(ds); got != "0 1 2 3 4" {
		t.Errorf("got %s", got)
	}
	if d := time.Since(began); d < time.Second {
		t.Errorf("came again after %v, want about 2 s", d)
	}
	closeNow(t, r)
}

// atOnce bounds how many subscriptions a soak has at the same time: a server that
// is too slow to answer in time hides messages by itself.
const atOnce = 20

// Stops at random moments of polls, deletes and extensions: nothing is invisible
// afterwards, and nothing is lost.
func TestServerStopAtRandomMoments(t *testing.T) {
	t.Parallel()
	url := serverURL(t)
	var wg sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for seed := range uint64(rounds(t, 10)) {
		for _, kind := range []string{"", ".fifo"} {
			room <- struct{}{}
			const n = 120
			c := newClient(t, url)
			q := newQueue(t, c, kind, nil)
			for i := range n {
				put(t, c, q, fmt.Sprint("g", i%20), fmt.Sprint(i))
			}
			w := &worker{t: t, rng: rand.New(rand.NewPCG(seed, 8)), accepted: make(chan string, n), lease: 10 * time.Second}
			w.r, w.s = open(t, c, q, &Options{VisibilityTimeout: 10 * time.Second, WaitTime: time.Second})
			w.r.Grant(40)
			stop := make(chan struct{})
			at := time.Duration(rand.New(rand.NewPCG(seed, 7)).Int64N(int64(4 * time.Second)))
			wg.Go(func() {
				defer func() { <-room }()
				time.AfterFunc(at, func() { close(stop) })
				w.run(stop)
				if v, i := countsAfterStop(t, c, q); i != "0" || v != fmt.Sprint(n-len(w.accepted)) {
					t.Errorf("queue%s, seed %d, stopped after %v with %d accepted: %s visible, %s invisible", kind, seed, at, len(w.accepted), v, i)
				}
				if len(w.s.lost) > 0 {
					t.Errorf("queue%s, seed %d: %d leases lost: %v", kind, seed, len(w.s.lost), w.s.lostErr)
				}
			})
		}
	}
	wg.Wait()
}
