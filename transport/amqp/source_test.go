package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

func accept(t *testing.T, r transport.Receiver, s *sink, ds ...*transport.Delivery) {
	t.Helper()
	for _, d := range ds {
		r.Settle(d, transport.Outcome{Kind: transport.Accept})
	}
	for range ds {
		if o := s.outcome(t); o.err != nil {
			t.Fatal(o.err)
		}
	}
}

// empty fails unless nothing is on the queue any more.
func empty(t *testing.T, url, queue string) {
	t.Helper()
	r, _ := open(t, url, queue, nil)
	defer closeNow(t, r)
	r.Grant(10)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if ds, err := r.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) || len(ds) > 0 {
		t.Fatalf("the queue still gives %v (%v)", bodies(ds), err)
	}
}

func TestReceiveAcceptInOrder(t *testing.T) {
	t.Parallel()
	url, queue := brokerURL(t), queueName(t)
	publish(t, url, queue, nil, numbered(2000)...)
	r, s := open(t, url, queue, nil)
	r.Grant(256)
	for i := 0; i < 2000; {
		for _, d := range receive(t, r, 1) {
			if string(d.Body) != fmt.Sprint(i) || d.ID != fmt.Sprint("m", i) || d.Key != fmt.Sprint("k", i%7) || d.Count != 0 {
				t.Fatalf("delivery %d is %v with body %q", i, d, d.Body)
			}
			accept(t, r, s, d)
			r.Grant(1)
			i++
		}
	}
	closeNow(t, r)
	empty(t, url, queue)
}

// A fresh Open after a Close gets what was held, in order and uncounted, ahead
// of what was never handed out.
func TestCloseGivesBackInOrder(t *testing.T) {
	t.Parallel()
	url, queue := brokerURL(t), queueName(t)
	publish(t, url, queue, nil, numbered(100)...)
	r, s := open(t, url, queue, nil)
	r.Grant(50) // credit stays open for none, 30 are with the client unread
	ds := receive(t, r, 20)
	for _, i := range []int{7, 2, 11} {
		accept(t, r, s, ds[i])
	}
	closeNow(t, r)

	r2, s2 := open(t, url, queue, nil)
	r2.Grant(100)
	got := receive(t, r2, 97)
	var want []string
	for i := range 100 {
		if !slices.Contains([]int{7, 2, 11}, i) {
			want = append(want, fmt.Sprint(i))
		}
	}
	if !slices.Equal(bodies(got), want) {
		t.Fatalf("got %v", bodies(got))
	}
	for _, d := range got {
		if d.Count != 0 {
			t.Fatalf("%v was counted", d)
		}
	}
	accept(t, r2, s2, got...)
	closeNow(t, r2)
	empty(t, url, queue)
}

// Abandon with credit open, then the end of the epoch: everything comes back in
// order, and only the abandoned one is counted.
func TestAbandonThenReset(t *testing.T) {
	t.Parallel()
	url, queue := brokerURL(t), queueName(t)
	publish(t, url, queue, nil, numbered(40)...)
	r, s := open(t, url, queue, nil)
	r.Grant(30)
	ds := receive(t, r, 10)
	accept(t, r, s, ds[:3]...)
	r.Settle(ds[3], transport.Outcome{Kind: transport.Abandon})
	if o := s.outcome(t); o.err != nil || o.d != ds[3] {
		t.Fatal(o)
	}
	closeNow(t, r)
	r2, s2 := open(t, url, queue, nil)
	r2.Grant(64)
	got := receive(t, r2, 37)
	for i, d := range got {
		count := 0
		if i == 0 {
			count = 1
		}
		if string(d.Body) != fmt.Sprint(i+3) || d.Count != count {
			t.Fatalf("delivery %d is %v with body %q", i, d, d.Body)
		}
	}
	accept(t, r2, s2, got...)
	closeNow(t, r2)
	empty(t, url, queue)
}

func TestSettleAfterClose(t *testing.T) {
	t.Parallel()
	url, queue := brokerURL(t), queueName(t)
	publish(t, url, queue, nil, numbered(3)...)
	r, s := open(t, url, queue, nil)
	r.Grant(3)
	ds := receive(t, r, 3)
	closeNow(t, r)
	if !transport.LeaseOf(ds[0]).Lost() {
		t.Error("the lease outlived its link")
	}
	r.Settle(ds[0], transport.Outcome{Kind: transport.Accept})
	if o := s.outcome(t); !errors.Is(o.err, transport.ErrLeaseLost) {
		t.Errorf("settled with %v", o.err)
	}
	r.Grant(5)
	if ds, err := r.Receive(testCtx(t)); err == nil || len(ds) > 0 {
		t.Errorf("received %v, %v", ds, err)
	}
	// Another epoch's delivery is refused too.
	r2, s2 := open(t, url, queue, nil)
	defer closeNow(t, r2)
	r2.Settle(ds[1], transport.Outcome{Kind: transport.Accept})
	if o := s2.outcome(t); !errors.Is(o.err, transport.ErrLeaseLost) {
		t.Errorf("settled with %v", o.err)
	}
}

func TestCreditOne(t *testing.T) {
	t.Parallel()
	url, queue := brokerURL(t), queueName(t)
	publish(t, url, queue, nil, numbered(50)...)
	r, s := open(t, url, queue, nil)
	defer closeNow(t, r)
	for i := range 50 {
		r.Grant(1)
		ds := receive(t, r, 1)
		if len(ds) != 1 || string(ds[0].Body) != fmt.Sprint(i) {
			t.Fatalf("%d: %v", i, bodies(ds))
		}
		accept(t, r, s, ds...)
	}
}

func TestZeroOutcomeIsRefused(t *testing.T) {
	t.Parallel()
	url, queue := brokerURL(t), queueName(t)
	publish(t, url, queue, nil, numbered(1)...)
	r, s := open(t, url, queue, nil)
	r.Grant(1)
	d := receive(t, r, 1)[0]
	r.Settle(d, transport.Outcome{})
	if o := s.outcome(t); o.err == nil {
		t.Error("the zero outcome was taken for one")
	}
	accept(t, r, s, d)
	r.Settle(d, transport.Outcome{Kind: transport.Accept})
	if o := s.outcome(t); o.err == nil {
		t.Error("a second settlement was taken")
	}
	closeNow(t, r)
	empty(t, url, queue)
}
