package memory

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/transport"
)

var (
	errDown   = errors.New("down")
	temporary = &transport.TemporaryError{Op: "test", Err: errDown}
)

// on gives a fault that replies to the nth operation of a kind, counted from 1,
// with r, and to no other.
func on(kind OpKind, nth int, r Reply) Fault {
	n := 0
	return func(op Op) Reply {
		if op.Kind != kind {
			return Reply{}
		}
		if n++; n == nth {
			return r
		}
		return Reply{}
	}
}

func TestFaultOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, &QueueOptions{Fault: on(OpOpen, 1, Reply{Err: errDown, Delay: time.Second})})
		start := time.Now()
		if _, err := q.Source().Open(t.Context(), &sinkLog{}); !errors.Is(err, errDown) || time.Since(start) != time.Second {
			t.Errorf("open: %v after %v", err, time.Since(start))
		}
		r, _ := mustOpen(t, q, 0)
		mustClose(t, r)
		q.SetFault(on(OpOpen, 1, Reply{Delay: time.Hour}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := q.Source().Open(ctx, &sinkLog{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a slow open: %v, want that ctx ended", err)
		}
		if n := q.Stats().Receivers; n != 0 {
			t.Errorf("%d receivers are attached, want none", n)
		}
	})
}

func TestFaultReceive(t *testing.T) {
	t.Parallel()
	q := newTestQueue(t, &QueueOptions{Fault: on(OpReceive, 1, Reply{Err: temporary})})
	send(t, q, 2)
	r, sink := mustOpen(t, q, 2)
	var te *transport.TemporaryError
	if ds, err := r.Receive(t.Context()); len(ds) > 0 || !errors.As(err, &te) {
		t.Fatalf("received %v, %v, want a temporary error", ids(ds), err)
	}
	ds := receive(t, r, 2) // the epoch lives
	q.SetFault(on(OpReceive, 1, Reply{Err: errDown}))
	if ds, err := r.Receive(t.Context()); len(ds) > 0 || !errors.Is(err, errDown) || errors.As(err, &te) {
		t.Fatalf("received %v, %v, want the error that ends the epoch", ids(ds), err)
	}
	if got := sink.lostIDs(); !slices.Equal(got, []string{"0", "1"}) {
		t.Errorf("lost %v, want both", got)
	}
	settle(r, transport.Accept, ds[0])
	if err := sink.result(t, ds[0]); !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("accept after the epoch: %v", err)
	}
	mustClose(t, r)
	if q.Depth() != 2 {
		t.Errorf("depth %d, want 2", q.Depth())
	}
}

func TestFaultReceiveReplyLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, &QueueOptions{FIFO: true, Lease: time.Minute, Fault: on(OpReceive, 1, Reply{Lost: true})})
		send(t, q, 3, "k")
		r, sink := mustOpen(t, q, 3)
		var te *transport.TemporaryError
		if ds, err := r.Receive(t.Context()); len(ds) > 0 || !errors.As(err, &te) {
			t.Fatalf("received %v, %v, want a temporary error", ids(ds), err)
		}
		if q.InFlight() != 3 {
			t.Errorf("%d in flight, want 3: the broker handed them out", q.InFlight())
		}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		ds, err := r.Receive(ctx)
		if err != nil || time.Since(start) != time.Minute {
			t.Errorf("received %v after %v, want the lease's minute", err, time.Since(start))
		}
		wantIDs(t, ds, "0", "1", "2")
		if got := sink.lostIDs(); len(got) > 0 {
			t.Errorf("lost %v, which nobody had received", got)
		}
		mustClose(t, r)
	})
}

func TestFaultReceiveReplyLostEndsALinkWithoutLeases(t *testing.T) {
	t.Parallel()
	q := newTestQueue(t, &QueueOptions{CountsOnLoss: true, Fault: on(OpReceive, 1, Reply{Lost: true})})
	send(t, q, 2)
	r, sink := mustOpen(t, q, 2)
	if ds, err := r.Receive(t.Context()); len(ds) > 0 || !errors.Is(err, ErrLinkLost) {
		t.Fatalf("received %v, %v, want ErrLinkLost", ids(ds), err)
	}
	mustClose(t, r)
	if got := sink.lostIDs(); len(got) > 0 {
		t.Errorf("lost %v, which nobody had received", got)
	}
	r, _ = mustOpen(t, q, 2)
	ds := receive(t, r, 2)
	wantIDs(t, ds, "0", "1")
	if ds[0].Count != 1 {
		t.Errorf("count %d, want 1: CountsOnLoss", ds[0].Count)
	}
	mustClose(t, r)
}

func TestFaultOverDelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, &QueueOptions{Fault: on(OpReceive, 1, Reply{More: 3})})
		send(t, q, 10)
		r, _ := mustOpen(t, q, 2)
		ds, err := r.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantIDs(t, ds, "0", "1", "2", "3", "4")
		r.Grant(3)
		nothing(t, r) // it came off
		r.Grant(1)
		wantIDs(t, receive(t, r, 1), "5")
		mustClose(t, r)
	})
}

func TestFaultDuplicate(t *testing.T) {
	t.Parallel()
	for _, o := range []QueueOptions{{}, {FIFO: true, Lease: time.Hour}, {Shuffle: true}} {
		o.Fault = on(OpReceive, 2, Reply{Again: 2})
		q := newTestQueue(t, &o)
		send(t, q, 3, "k")
		r, sink := mustOpen(t, q, 10)
		first := receive(t, r, 3)
		settle(r, transport.Accept, first[1])
		again, err := r.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantIDs(t, again, first[1].ID, first[2].ID)
		if again[0] == first[1] || again[0].Count < 1 {
			t.Errorf("the duplicate has count %d, or is the delivery itself", again[0].Count)
		}
		settle(r, transport.Accept, again[0])
		if err := sink.result(t, again[0]); err != nil {
			t.Errorf("accept of a duplicate: %v", err)
		}
		mustClose(t, r) // two held, and a duplicate
		if q.Depth() != 3 {
			t.Errorf("depth %d, want 3", q.Depth())
		}
	}
}

func TestFaultSettleIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tries []int
		q := newTestQueue(t, &QueueOptions{Lease: time.Minute, Fault: func(op Op) Reply {
			if op.Kind != OpSettle {
				return Reply{}
			}
			if tries = append(tries, op.Try); op.Try <= 3 {
				return Reply{Err: temporary}
			}
			return Reply{}
		}})
		send(t, q, 1)
		r, sink := mustOpen(t, q, 1)
		ds := receive(t, r, 1)
		settle(r, transport.Accept, ds...)
		mustClose(t, r) // waits for it
		if err := sink.result(t, ds[0]); err != nil {
			t.Errorf("accept: %v", err)
		}
		if !slices.Equal(tries, []int{1, 2, 3, 4}) {
			t.Errorf("tries %v", tries)
		}
		if s := q.Stats(); s.Accepted() != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestFaultSettleIsTriedUntilTheLeaseLapses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, &QueueOptions{Lease: 5 * time.Second, Fault: func(op Op) Reply {
			if op.Kind == OpSettle && op.Epoch == 1 {
				return Reply{Err: temporary}
			}
			return Reply{}
		}})
		send(t, q, 1)
		r, sink := mustOpen(t, q, 1)
		ds := receive(t, r, 1)
		settle(r, transport.Accept, ds...)
		other, _ := mustOpen(t, q, 1)
		again := receive(t, other, 1) // after five seconds
		settle(other, transport.Accept, again...)
		<-time.After(lastPause)
		synctest.Wait()
		if err := sink.result(t, ds[0]); !errors.Is(err, transport.ErrLeaseLost) {
			t.Errorf("accept: %v, want ErrLeaseLost", err)
		}
		mustClose(t, r)
		mustClose(t, other)
	})
}

func TestFaultSettleReplyLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, &QueueOptions{Fault: on(OpSettle, 1, Reply{Lost: true})})
		send(t, q, 1)
		r, sink := mustOpen(t, q, 1)
		ds := receive(t, r, 1)
		settle(r, transport.Accept, ds...)
		if s := q.Stats(); s.Accepted() != 1 {
			t.Errorf("stats %+v, want that the broker has done it", s)
		}
		mustClose(t, r)
		if err := sink.result(t, ds[0]); err != nil {
			t.Errorf("the repeated accept: %v, want nil: it was done", err)
		}
		if q.Depth() != 0 {
			t.Errorf("depth %d", q.Depth())
		}
	})
}

func TestFaultSettleFailsForGood(t *testing.T) {
	t.Parallel()
	q := newTestQueue(t, &QueueOptions{Fault: on(OpSettle, 1, Reply{Err: errDown})})
	send(t, q, 2)
	r, sink := mustOpen(t, q, 2)
	ds := receive(t, r, 2)
	settle(r, transport.Accept, ds...)
	if err := sink.result(t, ds[0]); !errors.Is(err, errDown) {
		t.Errorf("accept: %v", err)
	}
	if err := sink.result(t, ds[1]); err != nil {
		t.Errorf("the other's accept: %v", err)
	}
	if q.InFlight() != 1 {
		t.Errorf("%d in flight, want 1: the broker still holds it", q.InFlight())
	}
	mustClose(t, r)
	if q.Depth() != 1 {
		t.Errorf("depth %d, want 1", q.Depth())
	}
}

func TestFaultSettleCutsTheLink(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reply Reply
		done  bool // the broker has it
		ok    bool // the client hears so
	}{
		"after it was confirmed":                   {Reply{CutLink: true}, true, true},
		"before the broker had it":                 {Reply{CutLink: true, Err: temporary}, false, false},
		"after the broker had it, and unconfirmed": {Reply{CutLink: true, Lost: true}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newTestQueue(t, &QueueOptions{Fault: on(OpSettle, 1, c.reply)})
			send(t, q, 3)
			r, sink := mustOpen(t, q, 3)
			ds := receive(t, r, 3)
			settle(r, transport.Accept, ds[0])
			err := sink.result(t, ds[0])
			if (err == nil) != c.ok || (err != nil && !errors.Is(err, transport.ErrLeaseLost)) {
				t.Errorf("accept: %v", err)
			}
			if got := sink.lostIDs(); !slices.Equal(got, []string{"1", "2"}) {
				t.Errorf("lost %v, want 1 and 2", got)
			}
			if _, err := r.Receive(t.Context()); !errors.Is(err, ErrLinkLost) {
				t.Errorf("receive: %v", err)
			}
			mustClose(t, r)
			want := 3
			if c.done {
				want = 2
			}
			if q.Depth() != want {
				t.Errorf("depth %d, want %d", q.Depth(), want)
			}
		})
	}
}

func TestFaultExtend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// "0" passes at the second try, "1" fails for good, "2" never passes.
		q := newTestQueue(t, &QueueOptions{Lease: 5 * time.Second, Fault: func(op Op) Reply {
			switch {
			case op.Kind != OpExtend:
			case op.Delivery.ID == "0" && op.Try == 1, op.Delivery.ID == "2":
				return Reply{Err: temporary}
			case op.Delivery.ID == "1":
				return Reply{Err: errDown}
			}
			return Reply{}
		}})
		send(t, q, 3)
		r, sink := mustOpen(t, q, 3)
		ds := receive(t, r, 3)
		start := time.Now()
		r.Extend(ds, start.Add(time.Minute))
		if got := sink.lostIDs(); !slices.Equal(got, []string{"1"}) {
			t.Errorf("lost %v at once, want 1", got)
		}
		<-time.After(5 * time.Second)
		if got := sink.lostIDs(); !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("lost %v at the deadline, want 1 and 2", got)
		}
		if got := transport.LeaseOf(ds[0]).Deadline().Sub(start); got != time.Minute {
			t.Errorf("deadline of 0 after %v, want a minute", got)
		}
		r.Grant(3)
		wantIDs(t, receive(t, r, 2), "1", "2")
		mustClose(t, r)
	})
}

func TestFaultExtendReplyLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// The broker extends; the client never hears of it, so it lets go at
		// the old deadline, and the message comes at the new one.
		q := newTestQueue(t, &QueueOptions{Lease: 2 * time.Second, Fault: func(op Op) Reply {
			return Reply{Lost: op.Kind == OpExtend}
		}})
		send(t, q, 1)
		r, sink := mustOpen(t, q, 2)
		start := time.Now()
		ds := receive(t, r, 1)
		r.Extend(ds, start.Add(6*time.Second))
		receive(t, r, 1)
		if d := time.Since(start); d != 6*time.Second {
			t.Errorf("came again after %v, want 6s", d)
		}
		if got := sink.lostIDs(); !slices.Equal(got, []string{"0"}) || transport.LeaseOf(ds[0]).Live(time.Now()) {
			t.Errorf("lost %v, want 0", got)
		}
		mustClose(t, r)
	})
}

func TestFaultClose(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]Reply{
		"fails":     {Err: errDown},
		"link lost": {CutLink: true},
		"too slow":  {Delay: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newTestQueue(t, &QueueOptions{Fault: on(OpClose, 1, reply)})
				send(t, q, 3)
				r, _ := mustOpen(t, q, 3)
				receive(t, r, 3)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := r.Close(ctx); err == nil {
					t.Error("close succeeded")
				}
				if s := q.Stats(); s.Ready != 3 || s.Receivers != 0 {
					t.Errorf("stats %+v, want everything given back", s)
				}
			})
		})
	}
}

func TestCloseWaitsForSettlementsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, &QueueOptions{Fault: func(op Op) Reply {
			if op.Kind == OpSettle {
				return Reply{Delay: time.Minute}
			}
			return Reply{}
		}})
		send(t, q, 2)
		r, sink := mustOpen(t, q, 2)
		ds := receive(t, r, 2)
		settle(r, transport.Accept, ds...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close: %v", err)
		}
		for _, d := range ds {
			if err := sink.result(t, d); !errors.Is(err, transport.ErrLeaseLost) {
				t.Errorf("accept of %v: %v, want ErrLeaseLost", d, err)
			}
		}
		if q.Depth() != 2 {
			t.Errorf("depth %d, want 2", q.Depth())
		}
		r, sink = mustOpen(t, q, 2)
		ds = receive(t, r, 2)
		settle(r, transport.Accept, ds...)
		start := time.Now()
		mustClose(t, r)
		if d := time.Since(start); d != time.Minute {
			t.Errorf("close took %v, want the minute that the reply took", d)
		}
		if err := sink.result(t, ds[1]); err != nil {
			t.Errorf("accept: %v", err)
		}
	})
}

func TestFaultPublish(t *testing.T) {
	t.Parallel()
	q := newTestQueue(t, &QueueOptions{Fault: func(op Op) Reply {
		if op.Kind != OpPublish {
			return Reply{}
		}
		n, _ := strconv.Atoi(op.Message.ID)
		return Reply{Lost: n%3 == 1, Err: map[bool]error{true: errDown}[n%3 > 0]}
	}})
	ms := make([]transport.Message, 6)
	for i := range ms {
		ms[i].ID = strconv.Itoa(i)
	}
	err := q.Publisher().Publish(t.Context(), ms...)
	var pe *transport.PublishError
	if !errors.As(err, &pe) || !slices.Equal(pe.Unconfirmed, []int{1, 2, 4, 5}) || !errors.Is(err, errDown) {
		t.Errorf("publish: %v", err)
	}
	var got []string
	for _, m := range q.Messages() {
		got = append(got, m.ID)
	}
	if !slices.Equal(got, []string{"0", "1", "3", "4"}) {
		t.Errorf("stored %v, want also those whose reply was lost", got)
	}
}

func TestFaultSeesTheOperation(t *testing.T) {
	t.Parallel()
	var ops []Op
	q := newTestQueue(t, &QueueOptions{Lease: time.Hour, Fault: func(op Op) Reply {
		ops = append(ops, op)
		return Reply{}
	}})
	send(t, q, 1)
	r, _ := mustOpen(t, q, 1)
	ds := receive(t, r, 1)
	until := time.Now().Add(time.Hour)
	r.Extend(ds, until)
	r.Settle(ds[0], transport.Outcome{Kind: transport.Abandon})
	mustClose(t, r)
	kinds := []OpKind{OpPublish, OpOpen, OpReceive, OpExtend, OpSettle, OpClose}
	if len(ops) != len(kinds) {
		t.Fatalf("%d operations, want %d", len(ops), len(kinds))
	}
	for i, op := range ops {
		if op.Kind != kinds[i] || op.Queue != q.Name() || op.Try != 1 || op.Kind.String() == "op?" {
			t.Errorf("operation %d is %+v, want kind %v", i, op, kinds[i])
		}
	}
	if ops[0].Message.ID != "0" || ops[2].Epoch != ds[0].Epoch || ops[3].Delivery != ds[0] || !ops[3].Until.Equal(until) ||
		ops[4].Outcome.Kind != transport.Abandon {
		t.Errorf("operations %+v", ops)
	}
}
