package sqs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/transport"
)

// A receive whose reply was lost has taken its messages. On a FIFO queue the
// next one, with the same attempt id, brings them; nothing is stuck.
func TestReceiveAgainAfterLostReply(t *testing.T) {
	for name, fault := range map[string]sqsfake.Fault{"lost": sqsfake.LoseReply, "cut": sqsfake.CutReply} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(f *fake) {
				q := newQueue(f, f.client, ".fifo", nil)
				put(f, f.client, q, "g", "0", "1", "2")
				r, s := open(f, f.client, q, nil)
				r.Grant(20)
				f.script("ReceiveMessage", once(fault))
				began := time.Now()
				if _, err := r.Receive(f.Context()); !is[*transport.TemporaryError](err) {
					f.Fatalf("got %v, want a temporary error", err)
				}
				f.atServer(q, "0", "3")
				ds := receive(f, r, 3)
				if bodies(ds) != "0 1 2" || time.Since(began) > time.Second {
					f.Errorf("got %s after %v", bodies(ds), time.Since(began))
				}
				for _, d := range ds {
					r.Settle(d, accept)
				}
				s.await(f, 3)
				// The id was good for that once.
				put(f, f.client, q, "g", "3")
				if got := bodies(receive(f, r, 1)); got != "3" {
					f.Errorf("got %s, want 3", got)
				}
				closeNow(f, r)
				f.atServer(q, "1", "0")
			})
		})
	}
}

// A stop right after a lost reply gives back what that receive took.
func TestCloseRecoversLostReply(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, ".fifo", nil)
		put(f, f.client, q, "g", "0", "1", "2")
		r, _ := open(f, f.client, q, nil)
		r.Grant(20)
		f.script("ReceiveMessage", once(sqsfake.LoseReply))
		if _, err := r.Receive(f.Context()); err == nil {
			f.Fatal("the reply wasn't lost")
		}
		closeNow(f, r)
		f.atServer(q, "3", "0")
	})
}

// Receive waits for its poll when its context ends, and gives what it brings:
// a cancelled poll would swallow it.
func TestReceiveIsNeverCancelled(t *testing.T) {
	for _, kind := range []string{"", ".fifo"} {
		t.Run("queue"+kind, func(t *testing.T) {
			virtual(t, func(f *fake) {
				q := newQueue(f, f.client, kind, nil)
				r, _ := open(f, f.client, q, nil)
				r.Grant(20)
				ctx, cancel := context.WithCancel(context.Background())
				type result struct {
					ds  []*transport.Delivery
					err error
				}
				got := make(chan result)
				go func() {
					ds, err := r.Receive(ctx)
					got <- result{ds, err}
				}()
				synctest.Wait()
				cancel()
				time.Sleep(6 * time.Second) // virtual
				put(f, f.client, q, "g", "0")
				if res := <-got; bodies(res.ds) != "0" {
					f.Errorf("got %v, %v", res.ds, res.err)
				}
				if _, err := r.Receive(ctx); !errors.Is(err, context.Canceled) {
					f.Errorf("got %v, want the context's error, and no new poll", err)
				}
				if n := f.wire.Calls("ReceiveMessage"); n != 1 {
					f.Errorf("%d receives, want 1", n)
				}
				closeNow(f, r)
				f.atServer(q, "1", "0")
			})
		})
	}
}

// Without messages there are three receives a minute, and one at a time.
func TestIdleReceives(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, "", nil)
		r, _ := open(f, f.client, q, nil)
		r.Grant(256)
		for began := time.Now(); time.Since(began) < 10*time.Minute; {
			if ds, err := r.Receive(f.Context()); len(ds) > 0 || err != nil {
				f.Fatalf("got %v, %v", ds, err)
			}
		}
		if n := f.wire.Calls("ReceiveMessage"); n > 30 {
			f.Errorf("%d receives in 10 minutes, want at most 30", n)
		}
		closeNow(f, r)
	})
}

// A receive waits for room for ten, or for half of a smaller credit, and never
// asks for more than was granted.
func TestReceiveAsksForWhatWasGranted(t *testing.T) {
	for _, c := range []struct{ credit, hold, want int }{
		{1, 0, 1}, {3, 0, 3}, {3, 2, 1}, {9, 0, 9}, {10, 0, 10}, {10, 5, 5}, {12, 3, 9}, {256, 0, 10}, {30, 20, 10},
	} {
		t.Run(fmt.Sprint(c.credit, "-", c.hold), func(t *testing.T) {
			virtual(t, func(f *fake) {
				q := newQueue(f, f.client, "", nil)
				for i := range 300 {
					put(f, f.client, q, "", fmt.Sprint(i))
				}
				r, s := open(f, f.client, q, nil)
				r.Grant(c.credit)
				var held []*transport.Delivery
				for len(held) < c.credit/10*10 || len(held) == 0 {
					held = append(held, receive(f, r, 1)...)
				}
				n := len(held)
				for _, d := range held[c.hold:] {
					r.Settle(d, accept)
				}
				s.await(f, n-c.hold)
				r.Grant(n - c.hold)
				if got := len(receive(f, r, 1)); got != c.want {
					f.Errorf("got %d, want %d", got, c.want)
				}
				closeNow(f, r)
			})
		})
	}
}

func TestReceiveWaitsForCredit(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, "", nil)
		for i := range 30 {
			put(f, f.client, q, "", fmt.Sprint(i))
		}
		r, s := open(f, f.client, q, nil)
		r.Grant(20)
		ds := append(receive(f, r, 1), receive(f, r, 1)...)
		got := make(chan int)
		go func() { got <- len(receive(f, r, 1)) }()
		for i := range 10 {
			synctest.Wait()
			if n := f.wire.Calls("ReceiveMessage"); n != 2 {
				f.Fatalf("%d receives with %d free, want 2", n, i)
			}
			r.Settle(ds[i], accept)
			s.await(f, 1)
			r.Grant(1)
		}
		if n := <-got; n != 10 {
			f.Errorf("got %d, want 10", n)
		}
		closeNow(f, r)
	})
}

// Several polls share the credit.
func TestPollersKeepTheCredit(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, "", nil)
		for i := range 100 {
			put(f, f.client, q, "", fmt.Sprint(i))
		}
		r, _ := open(f, f.client, q, &Options{Pollers: 4})
		r.Grant(25)
		ds := receive(f, r, 20)
		time.Sleep(time.Second)
		f.atServer(q, "80", "20")
		if len(ds) != 20 || f.wire.Calls("ReceiveMessage") != 2 {
			f.Errorf("%d deliveries in %d receives, want 20 in 2", len(ds), f.wire.Calls("ReceiveMessage"))
		}
		r.Grant(75)
		receive(f, r, 20)
		time.Sleep(time.Second)
		closeNow(f, r)
		f.atServer(q, "100", "0")
	})
}

// Passing faults of a receive are temporary; a queue that is gone ends the
// epoch.
func TestReceiveErrors(t *testing.T) {
	for name, c := range map[string]struct {
		fault sqsfake.Fault
		fatal bool
		ends  bool
	}{
		"throttled":     {sqsfake.Fail(400, "RequestThrottled"), false, false},
		"generic":       {sqsfake.Fail(400, "ThrottlingException"), false, false},
		"over limit":    {sqsfake.Fail(403, "OverLimit"), false, false},
		"500":           {sqsfake.FailText(500, "oops"), false, false},
		"503":           {sqsfake.FailText(503, "busy"), false, false},
		"dropped":       {sqsfake.Drop, false, false},
		"black hole":    {sqsfake.BlackHole, false, false},
		"denied":        {sqsfake.Fail(403, "AccessDeniedException"), true, false},
		"expired token": {sqsfake.Fail(403, "ExpiredToken"), true, false},
		"no queue":      {sqsfake.Fail(400, "QueueDoesNotExist"), true, true},
		"old name":      {sqsfake.Fail(400, "AWS.SimpleQueueService.NonExistentQueue"), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(f *fake) {
				q := newQueue(f, f.client, "", nil)
				put(f, f.client, q, "", "0")
				r, _ := open(f, f.client, q, nil)
				r.Grant(20)
				f.script("ReceiveMessage", once(c.fault))
				began := time.Now()
				_, err := r.Receive(f.Context())
				if d := time.Since(began); err == nil || d > 26*time.Second {
					f.Fatalf("got %v after %v", err, d)
				}
				if is[*transport.TemporaryError](err) == c.ends || is[*transport.FatalError](err) != c.fatal {
					f.Errorf("got %T: %v", err, err)
				}
				if !c.ends {
					if got := bodies(receive(f, r, 1)); got != "0" {
						f.Errorf("got %s", got)
					}
				}
				f.wire.Script(nil)
				closeNow(f, r)
			})
		})
	}
}

func TestQueueDeletedInAPoll(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, "", nil)
		r, s := open(f, f.client, q, nil)
		r.Grant(20)
		put(f, f.client, q, "", "0")
		ds := receive(f, r, 1)
		time.AfterFunc(3*time.Second, func() { f.deleteQueue(q) })
		_, err := r.Receive(f.Context())
		if !is[*transport.FatalError](err) || is[*transport.TemporaryError](err) {
			f.Errorf("got %v, want a fatal error", err)
		}
		r.Settle(ds[0], accept)
		if e := <-s.settled; !errors.Is(e.err, transport.ErrLeaseLost) {
			f.Errorf("settled: %v", e.err)
		}
		closeNow(f, r)
	})
}

// A message without a body, and attributes that don't parse, are handed out.
func TestReceiveOddMessages(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, "", nil)
		put(f, f.client, q, "", "0")
		r, s := open(f, f.client, q, nil)
		r.Grant(20)
		f.script("ReceiveMessage", once(sqsfake.EditReply(func(out map[string]any) {
			m := out["Messages"].([]any)[0].(map[string]any)
			delete(m, "Body")
			m["Attributes"] = map[string]any{"ApproximateReceiveCount": "many", "SentTimestamp": "yesterday"}
			m["MessageAttributes"] = map[string]any{
				"n":             map[string]any{"DataType": "Number", "StringValue": "1e"},
				"b":             map[string]any{"DataType": "String.bool", "StringValue": "perhaps"},
				"t":             map[string]any{"DataType": "String.time", "StringValue": "noon"},
				"huge":          map[string]any{"DataType": "Number", "StringValue": "99999999999999999999"},
				"keylanes.body": map[string]any{"DataType": "String", "StringValue": "base64"},
			}
		})))
		d := receive(f, r, 1)[0]
		if len(d.Body) != 0 || d.Count != -1 || !d.Enqueued.IsZero() || d.Headers["n"] != "1e" || d.Headers["b"] != "perhaps" ||
			d.Headers["t"] != "noon" || d.Headers["huge"] != 99999999999999999999.0 {
			f.Errorf("got %+v", d.Message)
		}
		r.Settle(d, accept)
		s.await(f, 1)
		closeNow(f, r)
	})
}

// A process that was suspended past the timeout hands nothing out.
func TestReceiveDropsWhatLapsedMeanwhile(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, "", map[string]string{"VisibilityTimeout": "30"})
		put(f, f.client, q, "", "0")
		r, _ := open(f, f.client, q, nil)
		r.Grant(20)
		release := make(chan struct{})
		f.script("ReceiveMessage", once(sqsfake.Hold(release)))
		r.(*receiver).opts.CallTimeout = time.Hour // so that the reply does come
		time.AfterFunc(31*time.Second, func() { close(release) })
		ds, err := r.Receive(f.Context())
		if len(ds) != 0 || err != nil {
			f.Errorf("got %v, %v", ds, err)
		}
		if got := receive(f, r, 1)[0]; got.Count != 1 {
			f.Errorf("count %d, want 1", got.Count)
		}
		closeNow(f, r)
	})
}

func TestNoStatusIsUnclassified(t *testing.T) {
	t.Parallel()
	for status := 300; status < 600; status++ {
		err := &statusError{status}
		c := classify(err)
		want := classPassing
		switch status {
		case http.StatusTooManyRequests:
			want = classThrottled
		case http.StatusForbidden, http.StatusUnauthorized:
			want = classDenied
		}
		if c != want {
			t.Errorf("%d: class %d, want %d", status, c, want)
		}
	}
}

type statusError struct{ status int }

func (e *statusError) Error() string       { return fmt.Sprint("status ", e.status) }
func (e *statusError) HTTPStatusCode() int { return e.status }
