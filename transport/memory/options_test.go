package memory

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

func TestOptionsOutOfBounds(t *testing.T) {
	t.Parallel()
	elsewhere, err := New(nil).Queue("dead", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field string
		o     QueueOptions
	}{
		{"Lease", QueueOptions{Lease: -1}},
		{"LeaseMax", QueueOptions{LeaseMax: -1}},
		{"LeaseMax", QueueOptions{LeaseMax: time.Second}},
		{"LeaseMax", QueueOptions{LeaseMax: time.Second, Lease: time.Second + 1}},
		{"Shuffle", QueueOptions{FIFO: true, Shuffle: true}},
		{"MaxReceive", QueueOptions{MaxReceive: -1}},
		{"MaxReceive", QueueOptions{MaxReceive: 10_001}},
		{"Poll", QueueOptions{Poll: -1}},
		{"Dedup", QueueOptions{Dedup: -1}},
		{"MaxReceives", QueueOptions{MaxReceives: -1}},
		{"MaxReceives", QueueOptions{MaxReceives: 1}},
		{"DeadLetter", QueueOptions{DeadLetter: elsewhere}},
	} {
		q, err := New(nil).Queue("q", &c.o)
		var oe *transport.OptionError
		if q != nil || !errors.As(err, &oe) {
			t.Errorf("%+v: queue %v, error %v, want an OptionError", c.o, q, err)
			continue
		}
		if oe.Field != "QueueOptions."+c.field || oe.Want == "" {
			t.Errorf("%+v: the error names %q (%q), want QueueOptions.%s", c.o, oe.Field, oe.Want, c.field)
		}
	}
}

func TestOptionsAtTheirBounds(t *testing.T) {
	t.Parallel()
	for _, o := range []QueueOptions{
		{Lease: 1}, {Lease: time.Second, LeaseMax: time.Second}, {MaxReceive: 1}, {MaxReceive: 10_000}, {Poll: 1}, {Dedup: 1},
	} {
		if _, err := New(nil).Queue("q", &o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestQueueNames(t *testing.T) {
	t.Parallel()
	b := New(nil)
	if _, err := b.Queue("", nil); err == nil {
		t.Error("a queue without a name was made")
	}
	q, err := b.Queue("q", &QueueOptions{FIFO: true})
	if err != nil {
		t.Fatal(err)
	}
	if same, err := b.Queue("q", nil); same != q || err != nil {
		t.Errorf("got %v, %v, want the queue that exists", same, err)
	}
	if _, err := b.Queue("q", &QueueOptions{}); err == nil {
		t.Error("options for a queue that exists were taken")
	}
	q.Delete()
	if again, err := b.Queue("q", &QueueOptions{}); err != nil || again == q {
		t.Errorf("after Delete: %v, %v, want a new queue", again, err)
	}
}

func TestTraitsSayWhatTheQueueDoes(t *testing.T) {
	t.Parallel()
	b := New(nil)
	dead, err := b.Queue("dead", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    QueueOptions
		want transport.Traits
	}{
		"amqp": {QueueOptions{}, transport.Traits{Ordered: true, Abandon: transport.AbandonReset, MaxReceive: 64}},
		"fifo": {
			QueueOptions{FIFO: true, Lease: time.Second, CountsOnReturn: true, MaxReceive: 10, DeadLetter: dead},
			transport.Traits{
				Ordered: true, GroupsExclusive: true, LeaseExpires: true, CountsOnReturn: true, AbandonDelay: true,
				Abandon: transport.AbandonGroup, DeadLetter: transport.DeadLetterWithReason, MaxReceive: 10,
			},
		},
		"standard": {
			QueueOptions{Shuffle: true, Lease: time.Second},
			transport.Traits{LeaseExpires: true, AbandonDelay: true, Abandon: transport.AbandonSingle, MaxReceive: 64},
		},
	} {
		q, err := b.Queue(name, &c.o)
		if err != nil {
			t.Fatal(err)
		}
		if got := q.Source().Traits(); got != c.want {
			t.Errorf("%s: traits %+v, want %+v", name, got, c.want)
		}
	}
}

func TestDeletedQueue(t *testing.T) {
	t.Parallel()
	q := newTestQueue(t, nil)
	send(t, q, 2)
	r, sink := mustOpen(t, q, 1)
	ds := receive(t, r, 1)
	src, pub := q.Source(), q.Publisher()
	q.Delete()
	q.Delete()
	if _, err := r.Receive(t.Context()); !errors.Is(err, errDeleted) {
		t.Errorf("receive: %v, want that the queue was deleted", err)
	}
	settle(r, transport.Accept, ds[0])
	if err := sink.result(t, ds[0]); !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("settle: %v, want ErrLeaseLost", err)
	}
	mustClose(t, r)
	var fatal *transport.FatalError
	if _, err := src.Open(t.Context(), sink); !errors.As(err, &fatal) || !strings.Contains(err.Error(), fatal.Fix) {
		t.Errorf("open: %v, want a FatalError that names the fix", err)
	}
	if err := pub.Publish(t.Context(), transport.Message{}); !errors.As(err, &fatal) {
		t.Errorf("publish: %v, want a FatalError", err)
	}
	if s := q.Stats(); s.Ready+s.InFlight+s.Delayed+s.Receivers != 0 {
		t.Errorf("something is left: %+v", s)
	}
}
