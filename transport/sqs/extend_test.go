package sqs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/transport"
)

const changeOp = "ChangeMessageVisibilityBatch"

// keep extends ds as the tree does, every so often, until stop is closed.
func keep(r transport.Receiver, ds []*transport.Delivery, every, lease time.Duration, stop <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.Extend(ds, until(lease))
		case <-stop:
			return
		}
	}
}

// 64 messages stay invisible for 15 s with a timeout of 2 s, in at most 120
// calls.
func TestExtendCalls(t *testing.T) {
	virtual(t, func(f *fake) {
		q, r, s, ds := f.held("", 64, &Options{VisibilityTimeout: 2 * time.Second})
		stop := make(chan struct{})
		go keep(r, ds, time.Second, 2*time.Second, stop)
		time.Sleep(15 * time.Second)
		close(stop)
		f.atServer(q, "0", "64")
		if n := f.wire.Calls(changeOp); n > 120 {
			f.Errorf("%d calls, want at most 120", n)
		}
		for _, d := range ds {
			r.Settle(d, accept)
		}
		s.await(f, 64)
		closeNow(f, r)
	})
}

// The deadline counts from before the request, and moves when it succeeded.
func TestExtendMovesTheDeadline(t *testing.T) {
	virtual(t, func(f *fake) {
		_, r, _, ds := f.held("", 1, nil)
		f.script(changeOp, once(sqsfake.Delay(3*time.Second)))
		lease := transport.LeaseOf(ds[0])
		old := lease.Deadline()
		sent := time.Now().Add(defaultLinger)
		r.Extend(ds, until(time.Minute))
		time.Sleep(2 * time.Second)
		if !lease.Deadline().Equal(old) {
			f.Error("the deadline moved before the reply")
		}
		time.Sleep(2 * time.Second)
		if got := lease.Deadline(); got.Sub(sent) != time.Minute {
			f.Errorf("the deadline is %v after the request was sent, want 1m0s", got.Sub(sent))
		}
		// An earlier time changes nothing.
		r.Extend(ds, until(30*time.Second))
		time.Sleep(time.Second)
		if got := lease.Deadline(); got.Sub(sent) != time.Minute || f.wire.Calls(changeOp) != 1 {
			f.Errorf("the deadline is %v after the request was sent, want 1m0s", got.Sub(sent))
		}
		closeNow(f, r)
	})
}

// Entries that fail are tried again by themselves.
func TestExtendRetriesEntries(t *testing.T) {
	virtual(t, func(f *fake) {
		_, r, _, ds := f.held("", 10, nil)
		f.script(changeOp, func(n int) sqsfake.Fault {
			switch n {
			case 1:
				return sqsfake.FailEntries("InternalError", false, func(i int) bool { return i < 3 })
			case 2:
				return sqsfake.Fail(400, "RequestThrottled")
			case 3:
				return sqsfake.LoseReply
			}
			return nil
		})
		r.Extend(ds, until(time.Minute))
		time.Sleep(5 * time.Second)
		for _, d := range ds {
			if left := time.Until(transport.LeaseOf(d).Deadline()); left < 50*time.Second {
				f.Errorf("%v: %v left", d, left)
			}
		}
		if n := f.wire.Calls(changeOp); n != 4 {
			f.Errorf("%d calls, want 4", n)
		}
		closeNow(f, r)
	})
}

// When the broker says that a receipt is no longer good, the lease is lost, once,
// and a later settlement is refused.
func TestExtendLost(t *testing.T) {
	for _, code := range []string{"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue", "QueueDoesNotExist"} {
		t.Run(code, func(t *testing.T) {
			virtual(t, func(f *fake) {
				_, r, s, ds := f.held("", 3, nil)
				f.script(changeOp, once(sqsfake.FailEntries(code, true, func(i int) bool { return i == 1 })))
				r.Extend(ds, until(time.Minute))
				<-s.onLost
				if len(s.lost) != 1 || s.lost[0] != ds[1] || !errors.Is(s.lostErr, transport.ErrLeaseLost) || !transport.LeaseOf(ds[1]).Lost() {
					f.Errorf("lost %v: %v", s.lost, s.lostErr)
				}
				r.Extend(ds, until(2*time.Minute))
				r.Settle(ds[1], accept)
				if e := <-s.settled; !errors.Is(e.err, transport.ErrLeaseLost) {
					f.Errorf("settled: %v", e.err)
				}
				time.Sleep(time.Minute)
				if len(s.lost) != 1 {
					f.Errorf("lost %d times", len(s.lost))
				}
				closeNow(f, r)
			})
		})
	}
}

// Extensions that hang, or fail, are bounded: the deadline holds, and the loss
// is reported when it passes.
func TestExtendThroughOutage(t *testing.T) {
	for name, fault := range map[string]sqsfake.Fault{
		"throttled": sqsfake.Fail(400, "RequestThrottled"), "dropped": sqsfake.Drop, "black hole": sqsfake.BlackHole, "denied": sqsfake.Fail(403, "AccessDenied"),
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(f *fake) {
				_, r, s, ds := f.held("", 64, nil)
				f.script(changeOp, func(int) sqsfake.Fault { return fault })
				began := time.Now()
				time.Sleep(15 * time.Second)
				r.Extend(ds, until(30*time.Second))
				for range ds {
					<-s.onLost
				}
				if d := time.Since(began); d < 30*time.Second || d > 31*time.Second {
					f.Errorf("reported after %v, want 30s", d)
				}
				if n := f.wire.Calls(changeOp); n > 25 {
					f.Errorf("%d calls in 15 s", n)
				}
				f.wire.Script(nil)
				closeNow(f, r)
			})
		})
	}
}

// An outage that ends before the leases do loses none.
func TestExtendAfterOutage(t *testing.T) {
	virtual(t, func(f *fake) {
		_, r, s, ds := f.held("", 300, nil)
		f.script(changeOp, func(int) sqsfake.Fault { return sqsfake.Fail(400, "ThrottlingException") })
		time.Sleep(10 * time.Second)
		r.Extend(ds, until(30*time.Second))
		time.Sleep(15 * time.Second)
		f.wire.Script(nil)
		time.Sleep(4 * time.Second)
		for _, d := range ds {
			if left := time.Until(transport.LeaseOf(d).Deadline()); left < 5*time.Second {
				f.Fatalf("%v: %v left", d, left)
			}
		}
		if len(s.lost) > 0 {
			f.Errorf("lost %d", len(s.lost))
		}
		closeNow(f, r)
	})
}

// A message is kept for 12 hours from its receive and not longer; SQS never has
// to refuse.
func TestExtendTo12Hours(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, ".fifo", map[string]string{"VisibilityTimeout": "600"})
		put(f, f.client, q, "g", "0", "1")
		r, s := open(f, f.client, q, nil)
		r.Grant(20)
		began := time.Now()
		ds := receive(f, r, 2)
		refused := 0
		f.script(changeOp, func(int) sqsfake.Fault {
			return sqsfake.EditReply(func(out map[string]any) { refused += len(out["Failed"].([]any)) })
		})
		stop := make(chan struct{})
		go keep(r, ds, 5*time.Minute, 10*time.Minute, stop)
		<-s.onLost
		<-s.onLost
		close(stop)
		if d := time.Since(began); d > 12*time.Hour || d < 12*time.Hour-11*time.Minute {
			f.Errorf("lost after %v", d)
		}
		if refused > 0 {
			f.Errorf("SQS refused %d extensions", refused)
		}
		r.Settle(ds[0], accept)
		if e := <-s.settled; !errors.Is(e.err, transport.ErrLeaseLost) {
			f.Errorf("settled: %v", e.err)
		}
		f.wire.Script(nil)
		closeNow(f, r)
	})
}

// SQS counts the 12 hours by its own clock: when it refuses near the end, the
// lease lives on to its deadline.
func TestExtendRefusedNear12Hours(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, "", map[string]string{"VisibilityTimeout": "43200"})
		put(f, f.client, q, "", "0")
		r, s := open(f, f.client, q, nil)
		r.Grant(20)
		began := time.Now()
		ds := receive(f, r, 1)
		time.Sleep(time.Second)
		r.Extend(ds, until(12*time.Hour)) // there is nothing to have
		time.Sleep(time.Hour)
		if n := f.wire.Calls(changeOp); n != 0 {
			f.Errorf("%d calls, want none", n)
		}
		<-s.onLost
		if d := time.Since(began); d != 12*time.Hour {
			f.Errorf("lost after %v, want 12h", d)
		}
		closeNow(f, r)
	})
}

// A settlement waits for the reply of an extension that is being sent: the other
// way round the extension could arrive last.
func TestSettleWaitsForExtension(t *testing.T) {
	for name, o := range map[string]transport.Outcome{"accept": accept, "return": giveUp} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(f *fake) {
				q, r, s, ds := f.held("", 1, nil)
				f.script(changeOp, once(sqsfake.Delay(time.Second)))
				r.Extend(ds, until(time.Hour))
				time.Sleep(500 * time.Millisecond)
				r.Settle(ds[0], o)
				time.Sleep(400 * time.Millisecond)
				if n := f.wire.Calls("DeleteMessageBatch") + f.wire.Calls(changeOp); n != 1 {
					f.Errorf("%d calls before the extension's reply, want 1", n)
				}
				s.await(f, 1)
				if name == "accept" {
					f.atServer(q, "0", "0")
				} else {
					f.atServer(q, "1", "0")
				}
				if n := f.server.Stale(); n != 0 {
					f.Errorf("%d stale handles", n)
				}
				closeNow(f, r)
			})
		})
	}
}

// An extension that isn't being sent yet is dropped by a settlement.
func TestSettleDropsExtension(t *testing.T) {
	virtual(t, func(f *fake) {
		q, r, s, ds := f.held("", 5, nil)
		r.Extend(ds, until(time.Hour))
		for _, d := range ds {
			r.Settle(d, accept)
		}
		s.await(f, 5)
		time.Sleep(time.Second)
		if n := f.wire.Calls(changeOp); n != 0 {
			f.Errorf("%d extensions, want none", n)
		}
		closeNow(f, r)
		f.atServer(q, "0", "0")
	})
}

// 1,000 leases near their end, on a slow and jittery network, while deletes and
// returns race with extensions: no handle is used after its end, each lease is
// renewed before its deadline, and calls stay within held/10 per half timeout.
func TestExtendRacesWithSettle(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			virtual(t, func(f *fake) {
				const n, lease = 1000, 4 * time.Second
				q, r, s, ds := f.held(".fifo", n, &Options{VisibilityTimeout: lease})
				jitter := rand.New(rand.NewPCG(seed, 1))
				f.wire.Script(func(c sqsfake.Call) sqsfake.Fault {
					if c.Op != changeOp && c.Op != "DeleteMessageBatch" {
						return nil
					}
					return slow(time.Duration(jitter.Int64N(int64(30*time.Millisecond))), time.Duration(jitter.Int64N(int64(30*time.Millisecond))))
				})
				stop := make(chan struct{})
				done := make(chan struct{})
				go func() {
					keep(r, ds, lease/2, lease, stop)
					close(done)
				}()
				rng := rand.New(rand.NewPCG(seed, 2))
				kept := 0
				for i, d := range ds {
					at := time.Duration(rng.Int64N(int64(20 * time.Second)))
					o := accept
					if i%10 == 0 {
						o, kept = giveUp, kept+1
					}
					time.AfterFunc(at, func() { r.Settle(d, o) })
				}
				s.await(f, n)
				close(stop)
				<-done
				closeNow(f, r)
				f.atServer(q, fmt.Sprint(kept), "0")
				if len(s.lost) > 0 || f.server.Stale() > 0 {
					f.Errorf("%d lost, %d stale handles", len(s.lost), f.server.Stale())
				}
				// Ten rounds, of fewer and fewer, and 100 returns.
				if calls := f.wire.Calls(changeOp); calls > 10*n/10+kept {
					f.Errorf("%d calls", calls)
				}
			})
		})
	}
}

// slow delays request and reply.
func slow(before, after time.Duration) sqsfake.Fault {
	return func(x *sqsfake.Exchange) (*http.Response, error) {
		time.Sleep(before) // virtual
		resp, err := x.Ask()
		time.Sleep(after)
		return resp, err
	}
}

// A lost lease in a queue of settlements: what waits for a retry when its lease
// lapses ends with an error, and nothing is sent for it.
func TestExtendKeepsRetryingSettlementsAlone(t *testing.T) {
	virtual(t, func(f *fake) {
		_, r, s, ds := f.held("", 1, nil)
		f.script("DeleteMessageBatch", func(int) sqsfake.Fault { return sqsfake.Drop })
		r.Settle(ds[0], accept)
		synctest.Wait()
		r.Extend(ds, until(time.Hour)) // it is settled: left alone
		if e := <-s.settled; !errors.Is(e.err, transport.ErrLeaseLost) {
			f.Errorf("settled: %v", e.err)
		}
		if n := f.wire.Calls(changeOp); n != 0 {
			f.Errorf("%d extensions of what is settled", n)
		}
		f.wire.Script(nil)
		closeNow(f, r)
	})
}
