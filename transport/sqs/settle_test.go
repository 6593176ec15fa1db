package sqs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/transport"
)

// held opens a queue of n messages and receives them all. On a FIFO queue each
// has a group of its own.
func (f *fake) held(kind string, n int, o *Options) (queue string, r transport.Receiver, s *sink, ds []*transport.Delivery) {
	f.Helper()
	q := newQueue(f, f.client, kind, nil)
	for i := range n {
		put(f, f.client, q, fmt.Sprint("g", i), fmt.Sprint(i))
	}
	r, s = open(f, f.client, q, o)
	r.Grant(n + 20)
	return q, r, s, receive(f, r, n)
}

// A full call leaves at once, the rest 10 ms after its first.
func TestSettleLingers(t *testing.T) {
	virtual(t, func(f *fake) {
		_, r, s, ds := f.held("", 25, nil)
		began := time.Now()
		for _, d := range ds {
			r.Settle(d, accept)
		}
		synctest.Wait()
		if n := f.wire.Calls("DeleteMessageBatch"); n != 2 {
			f.Errorf("%d calls at once, want 2", n)
		}
		s.await(f, 25)
		if d := time.Since(began); d != 10*time.Millisecond || f.wire.Calls("DeleteMessageBatch") != 3 {
			f.Errorf("%d calls after %v, want 3 after 10ms", f.wire.Calls("DeleteMessageBatch"), d)
		}
		closeNow(f, r)
	})
}

func TestSettleWithoutLinger(t *testing.T) {
	virtual(t, func(f *fake) {
		_, r, s, ds := f.held("", 1, &Options{Linger: -1})
		began := time.Now()
		r.Settle(ds[0], accept)
		s.await(f, 1)
		if d := time.Since(began); d != 0 {
			f.Errorf("settled after %v", d)
		}
		closeNow(f, r)
	})
}

// Faults that pass are retried for each entry, and the others of its call are
// done meanwhile.
func TestSettleRetriesEntries(t *testing.T) {
	for _, kind := range []string{"", ".fifo"} {
		for name, o := range map[string]transport.Outcome{"accept": accept, "return": giveUp} {
			t.Run(name+kind, func(t *testing.T) {
				virtual(t, func(f *fake) {
					q, r, s, ds := f.held(kind, 10, nil)
					op := map[string]string{"accept": "DeleteMessageBatch", "return": "ChangeMessageVisibilityBatch"}[name]
					f.script(op, func(n int) sqsfake.Fault {
						if n < 3 {
							return sqsfake.FailEntries("InternalError", false, func(i int) bool { return i%3 == 0 })
						}
						return nil
					})
					began := time.Now()
					for _, d := range ds {
						r.Settle(d, o)
					}
					s.await(f, 6)
					if d := time.Since(began); d > 10*time.Millisecond {
						f.Errorf("the others were settled after %v", d)
					}
					s.await(f, 4)
					if n := f.wire.Calls(op); n < 3 || n > 7 {
						f.Errorf("%d calls", n)
					}
					if name == "accept" {
						f.atServer(q, "0", "0")
					} else {
						f.atServer(q, "10", "0")
					}
					closeNow(f, r)
				})
			})
		}
	}
}

// With 30 % of all entries failing, 500 messages are settled, in calls that
// don't run hot.
func TestSettleThroughManyFailures(t *testing.T) {
	virtual(t, func(f *fake) {
		q, r, s, ds := f.held("", 500, &Options{VisibilityTimeout: 5 * time.Minute})
		rng := rand.New(rand.NewPCG(1, 2))
		f.script("DeleteMessageBatch", func(int) sqsfake.Fault {
			bad := map[int]bool{}
			for i := range maxBatch {
				bad[i] = rng.IntN(10) < 3
			}
			return sqsfake.FailEntries("InternalError", false, func(i int) bool { return bad[i] })
		})
		for _, d := range ds {
			r.Settle(d, accept)
		}
		s.await(f, 500)
		f.atServer(q, "0", "0")
		if n := f.wire.Calls("DeleteMessageBatch"); n > 200 {
			f.Errorf("%d calls for 500 messages", n)
		}
		closeNow(f, r)
	})
}

// Calls that fail as a whole, in each of the ways there are, are retried.
func TestSettleRetriesCalls(t *testing.T) {
	for name, fault := range map[string]sqsfake.Fault{
		"throttled": sqsfake.Fail(400, "RequestThrottled"), "generic": sqsfake.Fail(400, "ThrottlingException"),
		"500": sqsfake.FailText(500, "oops"), "503": sqsfake.FailText(503, "busy"), "unknown": sqsfake.Fail(400, "NeverHeardOf"),
		"dropped": sqsfake.Drop, "lost reply": sqsfake.LoseReply, "cut reply": sqsfake.CutReply, "black hole": sqsfake.BlackHole,
		"denied":      sqsfake.Fail(403, "AccessDenied"),
		"unmentioned": sqsfake.EditReply(func(out map[string]any) { delete(out, "Successful") }),
		"odd ids": sqsfake.EditReply(func(out map[string]any) {
			out["Successful"] = []any{map[string]any{"Id": "77"}, map[string]any{"Id": "-1"}, map[string]any{"Id": "x"}, map[string]any{}}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(f *fake) {
				q, r, s, ds := f.held("", 10, nil)
				f.script("DeleteMessageBatch", once(fault))
				for _, d := range ds {
					r.Settle(d, accept)
				}
				s.await(f, 10)
				f.atServer(q, "0", "0")
				if n := f.wire.Calls("DeleteMessageBatch"); n != 2 {
					f.Errorf("%d calls, want 2", n)
				}
				closeNow(f, r)
			})
		})
	}
}

// A delete that is repeated after a lost reply and finds its handle used up was
// carried out. On a first try the same reply says that the lease is gone.
func TestSettleInvalidHandle(t *testing.T) {
	all := func(int) bool { return true }
	for _, c := range []struct {
		name  string
		first sqsfake.Fault
		lost  bool
	}{
		{"after a lost reply", sqsfake.LoseReply, false},
		{"after a timeout", sqsfake.BlackHole, false},
		{"after an entry's internal error", sqsfake.FailEntries("InternalError", false, all), false},
		{"after throttling", sqsfake.Fail(400, "RequestThrottled"), true},
		{"at once", nil, true},
	} {
		for _, code := range []string{"ReceiptHandleIsInvalid", "com.amazonaws.sqs#ReceiptHandleIsInvalid", "AWS.SimpleQueueService.MessageNotInflight"} {
			t.Run(c.name+" "+code, func(t *testing.T) {
				virtual(t, func(f *fake) {
					_, r, s, ds := f.held(".fifo", 3, nil)
					f.script("DeleteMessageBatch", func(n int) sqsfake.Fault {
						if n == 1 && c.first != nil {
							return c.first
						}
						return sqsfake.FailEntries(code, true, all)
					})
					for _, d := range ds {
						r.Settle(d, accept)
					}
					for range ds {
						e := <-s.settled
						if errors.Is(e.err, transport.ErrLeaseLost) != c.lost || (e.err != nil) != c.lost {
							f.Errorf("settled: %v", e.err)
						}
					}
					f.wire.Script(nil)
					closeNow(f, r)
				})
			})
		}
	}
}

// What AWS says of a FIFO receipt that expired ends the settlement at once.
func TestSettleExpiredHandle(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, ".fifo", nil)
		put(f, f.client, q, "g", "0")
		r, s := open(f, f.client, q, nil)
		r.Grant(20)
		d := receive(f, r, 1)[0]
		// The broker's clock and ours disagree: the lease lives here only.
		transport.LeaseOf(d).Extend(until(time.Hour))
		time.Sleep(31 * time.Second)
		r.Settle(d, accept)
		if e := <-s.settled; !errors.Is(e.err, transport.ErrLeaseLost) || !strings.Contains(e.err.Error(), "expired") {
			f.Errorf("settled: %v", e.err)
		}
		if n := f.wire.Calls("DeleteMessageBatch"); n != 1 {
			f.Errorf("%d calls, want 1", n)
		}
		closeNow(f, r)
		f.atServer(q, "1", "0")
	})
}

// A lease that lapsed, in a process that slept for instance, is never accepted:
// on a standard queue the delete would say that it succeeded.
func TestSettleLapsed(t *testing.T) {
	for _, o := range []transport.Outcome{accept, giveUp, abandon} {
		t.Run(o.Kind.String(), func(t *testing.T) {
			virtual(t, func(f *fake) {
				q, r, s, ds := f.held("", 1, nil)
				time.Sleep(30 * time.Second)
				began := time.Now()
				r.Settle(ds[0], o)
				if e := <-s.settled; !errors.Is(e.err, transport.ErrLeaseLost) || time.Since(began) > 0 {
					f.Errorf("settled after %v: %v", time.Since(began), e.err)
				}
				if n := f.wire.Calls("DeleteMessageBatch") + f.wire.Calls("ChangeMessageVisibilityBatch"); n != 0 {
					f.Errorf("%d calls, want none", n)
				}
				closeNow(f, r)
				f.atServer(q, "1", "0")
			})
		})
	}
}

// An outage that outlasts the lease ends in an error, about when the lease
// does, and costs a few calls a second.
func TestSettleThroughOutage(t *testing.T) {
	for name, fault := range map[string]sqsfake.Fault{"throttled": sqsfake.Fail(400, "RequestThrottled"), "dropped": sqsfake.Drop, "black hole": sqsfake.BlackHole} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(f *fake) {
				_, r, s, ds := f.held("", 200, nil)
				f.script("DeleteMessageBatch", func(int) sqsfake.Fault { return fault })
				began := time.Now()
				for _, d := range ds {
					r.Settle(d, accept)
				}
				for range ds {
					if e := <-s.settled; !errors.Is(e.err, transport.ErrLeaseLost) {
						f.Fatalf("settled: %v", e.err)
					}
				}
				if d := time.Since(began); d < 29*time.Second || d > 33*time.Second {
					f.Errorf("gave up after %v", d)
				}
				if n := f.wire.Calls("DeleteMessageBatch"); n > 45 {
					f.Errorf("%d calls in 30 s", n)
				}
				closeNow(f, r)
			})
		})
	}
}

// Entries are matched by position: the same message id may come twice.
func TestSettleSameIDTwice(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, "", nil)
		put(f, f.client, q, "", "0", "1", "2")
		r, s := open(f, f.client, q, nil)
		r.Grant(20)
		f.script("ReceiveMessage", once(sqsfake.EditReply(func(out map[string]any) {
			for _, m := range out["Messages"].([]any) {
				m.(map[string]any)["MessageId"] = "same"
			}
		})))
		ds := receive(f, r, 3)
		f.script("DeleteMessageBatch", once(sqsfake.FailEntries("InternalError", false, func(i int) bool { return i == 1 })))
		for _, d := range ds {
			r.Settle(d, accept)
		}
		first := map[string]bool{}
		for range 2 {
			first[string((<-s.settled).d.Body)] = true
		}
		if first["1"] || len(first) != 2 {
			f.Errorf("settled first: %v, want 0 and 2", first)
		}
		if e := <-s.settled; string(e.d.Body) != "1" || e.err != nil {
			f.Errorf("settled last: %v, %v", e.d, e.err)
		}
		closeNow(f, r)
		f.atServer(q, "0", "0")
	})
}

// What isn't an outcome of SQS's never accepts, and is reported once.
func TestSettleRefuses(t *testing.T) {
	virtual(t, func(f *fake) {
		q, r, s, ds := f.held("", 4, nil)
		one := func(what string, lost bool) {
			f.Helper()
			e := <-s.settled
			if e.err == nil || errors.Is(e.err, transport.ErrLeaseLost) != lost {
				f.Errorf("%s: %v", what, e.err)
			}
		}
		r.Settle(ds[0], transport.Outcome{})
		one("zero outcome", false)
		r.Settle(ds[1], transport.Outcome{Kind: transport.Reject, Reason: "bad"})
		one("reject", false)
		r.Settle(ds[2], accept)
		s.await(f, 1)
		r.Settle(ds[2], accept)
		one("twice", true)
		other, _ := open(f, f.client, q, nil)
		other.Grant(10)
		r.(*receiver).sink = s
		other.(*receiver).sink = s
		other.Settle(ds[3], accept)
		one("another epoch", true)
		closeNow(f, r)
		r.Settle(ds[3], accept)
		one("closed", true)
		r.Grant(5) // refused, harmless
		closeNow(f, other)
		f.atServer(q, "1", "2")
		if n := f.wire.Calls("DeleteMessageBatch"); n != 1 {
			f.Errorf("%d calls, want 1", n)
		}
	})
}

// An abandon is delayed at the broker, in whole seconds, and within the 12
// hours.
func TestAbandonDelay(t *testing.T) {
	for _, c := range []struct{ delay, want time.Duration }{
		{0, 0}, {time.Nanosecond, time.Second}, {1500 * time.Millisecond, 2 * time.Second}, {time.Hour, time.Hour},
		{24 * time.Hour, 12*time.Hour - ceilingMargin}, {-time.Second, 0},
	} {
		t.Run(c.delay.String(), func(t *testing.T) {
			virtual(t, func(f *fake) {
				_, r, s, ds := f.held(".fifo", 1, nil)
				r.Settle(ds[0], transport.Outcome{Kind: transport.Abandon, Delay: c.delay})
				s.await(f, 1)
				began := time.Now()
				r.Grant(1)
				d := receive(f, r, 1)[0]
				if got := time.Since(began); got > c.want || got < c.want-time.Second {
					f.Errorf("came again after %v, want %v", got, c.want)
				}
				if d.Count != 1 {
					f.Errorf("count %d", d.Count)
				}
				closeNow(f, r)
			})
		})
	}
}

// Changes of visibility of one group keep their order: the head, given back
// last, isn't sent while a successor is still tried.
func TestReturnsOfAGroupKeepTheirOrder(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, ".fifo", nil)
		put(f, f.client, q, "g", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
		put(f, f.client, q, "h", "a")
		r, s := open(f, f.client, q, nil)
		r.Grant(30)
		ds := receive(f, r, 11)
		f.script("ChangeMessageVisibilityBatch", func(n int) sqsfake.Fault {
			if n <= 2 {
				return sqsfake.FailEntries("InternalError", false, func(i int) bool { return i == 3 })
			}
			return nil
		})
		for i := 9; i > 0; i-- {
			r.Settle(ds[i], giveUp)
		}
		r.Settle(ds[10], giveUp) // fills the call
		r.Settle(ds[0], giveUp)
		var order []string
		for range 11 {
			e := <-s.settled
			if e.err != nil {
				f.Fatal(e.err)
			}
			order = append(order, string(e.d.Body))
		}
		if last := order[len(order)-1]; last != "0" {
			f.Errorf("given back in the order %v, want 0 last", order)
		}
		r.Grant(11)
		if got := bodies(receive(f, r, 10)); got != "0 1 2 3 4 5 6 7 8 9" {
			f.Errorf("came again as %s", got)
		}
		closeNow(f, r)
	})
}
