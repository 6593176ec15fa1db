package memory

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/transport"
)

func withDeadLetter(t *testing.T, o QueueOptions) (q, dead *Queue) {
	t.Helper()
	b := New(nil)
	dead, err := b.Queue("dead", nil)
	if err != nil {
		t.Fatal(err)
	}
	o.DeadLetter = dead
	q, err = b.Queue("q", &o)
	if err != nil {
		t.Fatal(err)
	}
	return q, dead
}

func TestTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, o := range []*QueueOptions{nil, {FIFO: true}, {Shuffle: true}} {
			q := newTestQueue(t, o)
			publish(t, q,
				transport.Message{ID: "head", Key: "k", TTL: time.Second},
				transport.Message{ID: "held", Key: "k", TTL: time.Minute},
				transport.Message{ID: "stays", Key: "k"},
			)
			<-time.After(2 * time.Second)
			r, _ := mustOpen(t, q, 10)
			ds := receive(t, r, 2)
			got := ids(ds)
			slices.Sort(got)
			if !slices.Equal(got, []string{"held", "stays"}) {
				t.Errorf("%+v: received %v", o, got)
			}
			<-time.After(2 * time.Minute) // a held message doesn't expire
			if q.InFlight() != 2 {
				t.Errorf("%+v: %d in flight, want 2", o, q.InFlight())
			}
			mustClose(t, r)
			if s := q.Stats(); s.Expired != 2 || s.Ready != 1 || s.Accepted() != 0 {
				t.Errorf("%+v: stats %+v, want the held one to expire when it comes back", o, s)
			}
		}
	})
}

func TestMaxReceivesMovesToDeadLetter(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]QueueOptions{
		"plain": {MaxReceives: 3}, "fifo": {MaxReceives: 3, FIFO: true, CountsOnReturn: true, Lease: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q, dead := withDeadLetter(t, o)
				send(t, q, 2, "k")
				r, _ := mustOpen(t, q, 1)
				if l := r.(transport.Limited).Limits(); l.MaxReceives != 3 {
					t.Errorf("limits %+v", l)
				}
				for i := range 3 {
					ds := receive(t, r, 1)
					wantIDs(t, ds, "0")
					if ds[0].Count != i {
						t.Errorf("count %d, want %d", ds[0].Count, i)
					}
					settle(r, transport.Abandon, ds...)
					r.Grant(1)
				}
				wantIDs(t, receive(t, r, 1), "1")
				ms := dead.Messages()
				if len(ms) != 1 || ms[0].ID != "0" || ms[0].Headers[HeaderReason] != ReasonMaxReceives || ms[0].Headers[HeaderQueue] != "q" {
					t.Errorf("dead letters %v", ms)
				}
				mustClose(t, r)
			})
		})
	}
}

func TestRejectWithoutDeadLetterIsRefused(t *testing.T) {
	t.Parallel()
	q := newTestQueue(t, nil)
	send(t, q, 1)
	r, sink := mustOpen(t, q, 1)
	ds := receive(t, r, 1)
	settle(r, transport.Reject, ds...)
	if sink.result(t, ds[0]) == nil {
		t.Error("the reject succeeded")
	}
	if q.InFlight() != 1 {
		t.Errorf("%d in flight, want 1: it stays held", q.InFlight())
	}
	mustClose(t, r)
	if q.Depth() != 1 {
		t.Errorf("depth %d after close, want 1", q.Depth())
	}
}

func TestRejectKeepsHeadersAndDoesNotShareThem(t *testing.T) {
	t.Parallel()
	q, dead := withDeadLetter(t, QueueOptions{})
	publish(t, q, transport.Message{ID: "x", Key: "k", Body: []byte("b"), Headers: map[string]any{"a": 1}})
	r, _ := mustOpen(t, q, 1)
	d := receive(t, r, 1)[0]
	r.Settle(d, transport.Outcome{Kind: transport.Reject, Reason: "why", Description: "at length"})
	if len(d.Headers) != 1 {
		t.Errorf("the delivery's own headers changed: %v", d.Headers)
	}
	m := dead.Messages()[0]
	want := map[string]any{"a": 1, HeaderReason: "why", HeaderDescription: "at length", HeaderQueue: "q"}
	if len(m.Headers) != len(want) || m.Key != "k" || string(m.Body) != "b" {
		t.Errorf("dead letter %v with headers %v", m, m.Headers)
	}
	for k, v := range want {
		if m.Headers[k] != v {
			t.Errorf("header %s is %v, want %v", k, m.Headers[k], v)
		}
	}
	mustClose(t, r)
	if s := q.Stats(); s.DeadLettered != 1 || s.Accepted() != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestDedup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, &QueueOptions{Dedup: time.Minute})
		id := func(s string) transport.Message { return transport.Message{ID: s} }
		publish(t, q, id("a"), id("b"), id("a"), id(""), id(""))
		if q.Depth() != 4 {
			t.Errorf("depth %d, want 4", q.Depth())
		}
		<-time.After(time.Minute - 1)
		publish(t, q, id("a"))
		if q.Depth() != 4 {
			t.Errorf("depth %d within the minute, want 4", q.Depth())
		}
		<-time.After(1)
		publish(t, q, id("a"))
		if q.Depth() != 5 {
			t.Errorf("depth %d after the minute, want 5", q.Depth())
		}
	})
}

func TestPublishRefusesNegativeDurations(t *testing.T) {
	t.Parallel()
	q := newTestQueue(t, nil)
	for _, m := range []transport.Message{{Delay: -1}, {TTL: -1}} {
		if err := q.Publisher().Publish(t.Context(), transport.Message{}, m); err == nil {
			t.Errorf("%+v was published", m)
		}
	}
	if q.Depth() != 0 {
		t.Errorf("%d were published all the same", q.Depth())
	}
}

func TestMessagesGivesWhatIsReadyInOrder(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]*QueueOptions{"plain": nil, "fifo": {FIFO: true}, "shuffle": {Shuffle: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newTestQueue(t, o)
			send(t, q, 70, "a", "b", "")
			r, _ := mustOpen(t, q, 5)
			ds := receive(t, r, 5)
			left := map[string]bool{}
			for i := range q.Messages() {
				left[q.Messages()[i].ID] = true
			}
			for _, d := range ds {
				if left[d.ID] {
					t.Errorf("%s is held, and listed as ready", d.ID)
				}
			}
			settle(r, transport.Return, ds...)
			var got, want []uint64
			q.mu.Lock()
			q.shelf.each(func(e *entry) { got = append(got, e.seq) })
			q.mu.Unlock()
			for i := range 70 {
				want = append(want, uint64(i+1))
			}
			if o != nil && o.Shuffle {
				slices.Sort(got)
			}
			if !slices.Equal(got, want) {
				t.Errorf("listed %v, want each once and in order", got)
			}
			mustClose(t, r)
		})
	}
}
