package memory

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/transport"
)

func TestLeaseLapsesExactlyAtItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, &QueueOptions{Lease: 10 * time.Second})
		send(t, q, 1)
		a, sink := mustOpen(t, q, 1)
		old := receive(t, a, 1)
		start := time.Now()
		b, _ := mustOpen(t, q, 1)
		again := receive(t, b, 1)
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("came again after %v, want 10s", d)
		}
		if transport.LeaseOf(old[0]).Live(time.Now()) {
			t.Error("the lease is live although the message came again")
		}
		if again[0].Count != 1 {
			t.Errorf("count %d, want 1", again[0].Count)
		}
		settle(a, transport.Accept, old...)
		if err := sink.result(t, old[0]); !errors.Is(err, transport.ErrLeaseLost) {
			t.Errorf("late accept: %v", err)
		}
		settle(b, transport.Accept, again...)
		mustClose(t, a)
		mustClose(t, b)
		if s := q.Stats(); s.Accepted() != 1 || s.Lapsed != 1 || s.InFlight != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestLapsedIsReportedOnceWhenItIsExtended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, &QueueOptions{Lease: time.Second})
		send(t, q, 2)
		r, sink := mustOpen(t, q, 2)
		ds := receive(t, r, 2)
		<-time.After(2 * time.Second)
		until := time.Now().Add(time.Second)
		r.Extend(ds[:1], until)
		r.Extend(ds, until)
		r.Extend(ds, until)
		if got := sink.lostIDs(); len(got) != 2 {
			t.Errorf("lost %v, want each once", got)
		}
		mustClose(t, r)
	})
}

func TestLeaseMaxBoundsExtensions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, &QueueOptions{Lease: 2 * time.Second, LeaseMax: 5 * time.Second})
		send(t, q, 1)
		r, _ := mustOpen(t, q, 1)
		if l := r.(transport.Limited).Limits(); l != (transport.Limits{Lease: 2 * time.Second, LeaseMax: 5 * time.Second}) {
			t.Errorf("limits %+v", l)
		}
		start := time.Now()
		ds := receive(t, r, 1)
		for _, c := range []struct{ after, want time.Duration }{{time.Second, 3 * time.Second}, {3 * time.Second, 5 * time.Second}} {
			r.Extend(ds, start.Add(c.after+2*time.Second))
			if got := transport.LeaseOf(ds[0]).Deadline().Sub(start); got != c.want {
				t.Errorf("deadline after %v, want %v", got, c.want)
			}
		}
		r.Grant(1)
		receive(t, r, 1)
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("came again after %v, want 5s", d)
		}
		mustClose(t, r)
	})
}

// A lease that is extended while the broker's alarm is due moves both.
func TestExtendMovesTheAlarm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, &QueueOptions{Lease: 3 * time.Second})
		send(t, q, 3)
		r, sink := mustOpen(t, q, 3)
		start := time.Now()
		ds := receive(t, r, 3)
		r.Extend(ds[:1], start.Add(10*time.Second))
		settle(r, transport.Accept, ds[1])
		r.Grant(2)
		wantIDs(t, receive(t, r, 1), "2")
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("the one that wasn't extended came again after %v, want 3s", d)
		}
		<-time.After(6*time.Second + 999*time.Millisecond)
		settle(r, transport.Accept, ds[0])
		if err := sink.result(t, ds[0]); err != nil {
			t.Errorf("accept just before the new deadline: %v", err)
		}
		mustClose(t, r)
		if s := q.Stats(); s.Accepted() != 2 || s.Ready != 1 {
			t.Errorf("stats %+v, want 2 accepted and 1 given back", s)
		}
	})
}

func TestManualClock(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b := New(&BrokerOptions{Now: func() time.Time { return now }})
	q, err := b.Queue("q", &QueueOptions{Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	send(t, q, 1)
	publish(t, q, transport.Message{ID: "late", Delay: 2 * time.Hour}, transport.Message{ID: "short", TTL: time.Minute})
	r, _ := mustOpen(t, q, 1)
	ds := receive(t, r, 1)
	wantIDs(t, ds, "0")
	if !ds[0].Enqueued.Equal(now) || !transport.LeaseOf(ds[0]).Deadline().Equal(now.Add(time.Hour)) {
		t.Errorf("enqueued %v, deadline %v, want by the clock given", ds[0].Enqueued, transport.LeaseOf(ds[0]).Deadline())
	}
	now = now.Add(time.Hour)
	b.Tick()
	if s := q.Stats(); s.Ready != 1 || s.Expired != 1 || s.Lapsed != 1 || s.Delayed != 1 {
		t.Errorf("after an hour: %+v", s)
	}
	now = now.Add(time.Hour)
	b.Tick()
	if s := q.Stats(); s.Ready != 2 || s.Delayed != 0 {
		t.Errorf("after two hours: %+v", s)
	}
	mustClose(t, r)
}
