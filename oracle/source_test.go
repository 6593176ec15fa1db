package oracle

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// scripted is a broker that does what the test says.
type scripted struct {
	transport.Receiver
	sink    transport.Sink
	ds      []*transport.Delivery
	granted int
}

func (s *scripted) Traits() transport.Traits { return transport.Traits{Ordered: true, MaxReceive: 7} }

func (s *scripted) Open(_ context.Context, sink transport.Sink) (transport.Receiver, error) {
	s.sink = sink
	return s, nil
}
func (s *scripted) Grant(n int) { s.granted += n }
func (s *scripted) Receive(context.Context) ([]*transport.Delivery, error) {
	return s.ds, nil
}
func (s *scripted) Settle(d *transport.Delivery, o transport.Outcome) {
	var err error
	if o.Kind == transport.Abandon {
		err = errors.New("refused")
	}
	s.sink.Settled(d, o, err)
}
func (s *scripted) Extend([]*transport.Delivery, time.Time) {}
func (s *scripted) Close(context.Context) error             { return nil }

// limited and deep have the optional interfaces.
type limited struct{ *scripted }

func (limited) Limits() transport.Limits { return transport.Limits{MaxReceives: 3} }

type deep struct{ limited }

func (deep) Depth(context.Context) (int64, error) { return 42, nil }

type opener struct {
	transport.Source
	as func() transport.Receiver
	s  *scripted
}

func (o opener) Open(_ context.Context, sink transport.Sink) (transport.Receiver, error) {
	o.s.sink = sink
	return o.as(), nil
}

// told is the consumer's sink; it looks at the log when it is told.
type told struct {
	settled, lost int
	log           *Log
	heldThen      int
}

func (t *told) Settled(*transport.Delivery, transport.Outcome, error) {
	t.settled++
	t.heldThen = held(t.log)
}
func (t *told) Lost(ds []*transport.Delivery, _ error) { t.lost += len(ds) }

func held(l *Log) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

func TestSourceCountsWhatIsHeld(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	var slab transport.Slab
	lease := transport.NewLease()
	broker := &scripted{}
	for i := range 6 {
		d := slab.New(lease, nil)
		d.ID = string(rune('a' + i))
		broker.ds = append(broker.ds, d)
	}
	l := New()
	sink := &told{log: l}
	src := l.Source(broker)
	if src.Traits() != broker.Traits() {
		t.Error("other traits")
	}
	r, err := src.Open(ctx, sink)
	if err != nil {
		t.Fatal(err)
	}
	want := func(n int, after string) {
		t.Helper()
		if got := held(l); got != n {
			t.Errorf("%d held after %s, want %d", got, after, n)
		}
	}
	r.Grant(4)
	want(4, "a grant: the broker may send them at any time")
	if ds, err := r.Receive(ctx); len(ds) != 6 || err != nil {
		t.Fatal(ds, err)
	}
	want(6, "two more than were granted")
	r.Settle(broker.ds[0], transport.Outcome{Kind: transport.Accept})
	want(5, "an accept")
	if sink.heldThen != 5 {
		t.Errorf("the consumer was told while %d counted as held: it would grant too early", sink.heldThen)
	}
	r.Settle(broker.ds[1], transport.Outcome{Kind: transport.Abandon})
	want(4, "an abandon")
	broker.sink.Lost(broker.ds[2:4], transport.ErrLeaseLost)
	want(2, "two lost leases")
	r.Grant(1)
	want(2, "a grant that over-delivery has used up")
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	want(0, "the close")
	r.Settle(broker.ds[4], transport.Outcome{Kind: transport.Accept})
	want(0, "a late settlement")
	if sink.settled != 3 || sink.lost != 2 || broker.granted != 5 {
		t.Errorf("not passed on: %+v, granted %d", sink, broker.granted)
	}
	v := l.Check(Rules{ConsumerOnly: true, Credit: 5})
	if v.MostHeld != 6 || v.Counts[Credit] != 1 || v.Returned != 1 || v.LeaseLost != 2 {
		t.Errorf("got %+v", v)
	}
}

// A reject decides a message as a confirmed copy does: its key goes on, and it
// isn't lost.
func TestRejectDecides(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	var slab transport.Slab
	broker, l := &scripted{}, New()
	lease := transport.NewLease()
	for _, id := range []string{"a", "b"} {
		d := slab.New(lease, nil)
		d.ID, d.Key = id, "k"
		broker.ds = append(broker.ds, d)
		l.Record(Published, &d.Message)
	}
	r, err := l.Source(broker).Open(ctx, &told{log: l})
	if err != nil {
		t.Fatal(err)
	}
	run := l.Start(&broker.ds[0].Message, 1)
	run.End(Failed)
	r.Settle(broker.ds[0], transport.Outcome{Kind: transport.Reject})
	run = l.Start(&broker.ds[1].Message, 1)
	run.End(Succeeded)
	r.Settle(broker.ds[1], transport.Outcome{Kind: transport.Accept})
	if v := l.Check(Rules{}); v.Err() != nil || v.DeadLettered != 1 || v.Succeeded != 1 {
		t.Errorf("%+v: %v", v, v.Err())
	}
}

func TestSourceKeepsOptionalInterfaces(t *testing.T) {
	t.Parallel()
	s := &scripted{}
	type can struct{ limits, depth bool }
	for _, c := range []struct {
		r    transport.Receiver
		want can
	}{
		{s, can{}},
		{limited{s}, can{limits: true}},
		{deep{limited{s}}, can{true, true}},
		{struct {
			transport.Receiver
			transport.Depther
		}{s, deep{}}, can{depth: true}},
	} {
		r, err := New().Source(opener{s, func() transport.Receiver { return c.r }, s}).Open(context.Background(), &told{})
		if err != nil {
			t.Fatal(err)
		}
		lim, hasLimits := r.(transport.Limited)
		dep, hasDepth := r.(transport.Depther)
		if got := (can{hasLimits, hasDepth}); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%T: got %+v, want %+v", c.r, got, c.want)
		}
		if hasLimits && lim.Limits().MaxReceives != 3 {
			t.Error("other limits")
		}
		if hasDepth {
			if n, err := dep.Depth(context.Background()); n != 42 || err != nil {
				t.Error(n, err)
			}
		}
	}
}
