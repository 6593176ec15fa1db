package oracle

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"sync"
	"testing"

	"github.com/keylanes/keylanes/transport"
)

// sent is a publisher that keeps what it is given, and fails as it is told.
type sent struct {
	ms     []transport.Message
	err    error
	closed bool
}

func (s *sent) Publish(_ context.Context, ms ...transport.Message) error {
	s.ms = append(s.ms, ms...)
	return s.err
}

func (s *sent) Close(context.Context) error {
	s.closed = true
	return nil
}

func kinds(l *Log) []string {
	var out []string
	for _, e := range entries(l) {
		out = append(out, e.kind.String()+" "+e.id)
	}
	return out
}

func TestMiddlewareRecordsEveryEnd(t *testing.T) {
	t.Parallel()
	l := New()
	boom := errors.New("boom")
	h := l.Middleware()(transport.HandlerFunc(func(_ context.Context, d *transport.Delivery) error {
		switch d.ID {
		case "fails":
			return boom
		case "panics":
			panic("boom")
		case "exits":
			runtime.Goexit()
		}
		return nil
	}))
	for _, id := range []string{"works", "fails", "panics", "exits"} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				if r := recover(); (r != nil) != (id == "panics") {
					t.Errorf("%s: recovered %v", id, r)
				}
			}()
			d := &transport.Delivery{Message: transport.Message{ID: id}}
			ctx := context.WithValue(context.Background(), transport.AttemptKey(), 3)
			if err := h.Handle(ctx, d); (err == boom) != (id == "fails") {
				t.Errorf("%s: got %v", id, err)
			}
		}()
		<-done
	}
	want := []string{"started works", "succeeded works", "started fails", "failed fails",
		"started panics", "panicked panics", "started exits", "panicked exits"}
	if got := kinds(l); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if es := entries(l); es[0].attempt != 3 || es[0].run == 0 || es[0].run != es[1].run || es[2].run == es[0].run {
		t.Errorf("runs and attempts: %+v", es[:3])
	}
}

func TestPublisherStampsAndRecords(t *testing.T) {
	t.Parallel()
	l, to := New(), &sent{}
	p := l.Publisher(to)
	ms := []transport.Message{
		{ID: "a"},
		{ID: "brokers-own", Headers: map[string]any{Header: "b", "x": 1}},
		{Headers: map[string]any{"x": 2}},
		{},
	}
	if err := p.Publish(context.Background(), ms...); err != nil {
		t.Fatal(err)
	}
	if ms[0].Headers != nil || len(ms[2].Headers) != 1 {
		t.Error("the caller's messages were changed")
	}
	ids := map[string]bool{}
	for i := range to.ms {
		id := Identity(&to.ms[i])
		if id == "" || ids[id] {
			t.Errorf("message %d has identity %q", i, id)
		}
		ids[id] = true
		if to.ms[i].ID != ms[i].ID {
			t.Errorf("message %d: the id became %q", i, to.ms[i].ID)
		}
	}
	if !ids["a"] || !ids["b"] || to.ms[1].Headers["x"] != 1 || to.ms[2].Headers["x"] != 2 {
		t.Errorf("got %v", to.ms)
	}
	if v := l.Check(Rules{Remaining: 4}); v.Published != 4 || !v.OK() {
		t.Errorf("got %v", v)
	}
	if err := p.Close(context.Background()); err != nil || !to.closed {
		t.Error("not closed")
	}
}

func TestUnconfirmedIsRecorded(t *testing.T) {
	t.Parallel()
	ms := []transport.Message{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	for _, c := range []struct {
		name   string
		err    error
		owed   int // published
		copies int // dead-letter copies
	}{
		{"fine", nil, 3, 3},
		{"one listed", &transport.PublishError{Unconfirmed: []int{1}, Err: errors.New("refused")}, 2, 2},
		{"listed out of range", &transport.PublishError{Unconfirmed: []int{-1, 7, 2}, Err: errors.New("refused")}, 2, 2},
		{"another error", transport.ErrClosed, 0, 0},
	} {
		l := New()
		to := &sent{err: c.err}
		if err := l.Publisher(to).Publish(context.Background(), ms...); !errors.Is(err, c.err) {
			t.Errorf("%s: got %v", c.name, err)
		}
		if v := l.Check(Rules{Remaining: -1}); v.Published != c.owed || v.Unconfirmed != 3-c.owed {
			t.Errorf("%s: %v", c.name, v)
		}
		dead := New()
		if err := dead.DeadLetter(to).Publish(context.Background(), ms...); !errors.Is(err, c.err) {
			t.Errorf("%s: got %v", c.name, err)
		}
		if v := dead.Check(Rules{ConsumerOnly: true}); v.DeadLettered != c.copies || v.Counts[Unseen] != c.copies {
			t.Errorf("%s: want %d copies: %v", c.name, c.copies, v)
		}
	}
}

// Many goroutines at once: every record is kept, and what a run says about
// itself stays together. Run it with -race.
func TestConcurrentRecording(t *testing.T) {
	t.Parallel()
	l := New()
	const lanes, each = 8, 2000
	var wg sync.WaitGroup
	for lane := range lanes {
		wg.Add(1)
		go func() {
			defer wg.Done()
			h := l.Middleware()(transport.HandlerFunc(func(context.Context, *transport.Delivery) error { return nil }))
			for i := range each {
				d := &transport.Delivery{Message: *message1(string(rune('a'+lane)), i)}
				l.Record(Published, &d.Message)
				l.Received(1)
				if err := h.Handle(context.Background(), d); err != nil {
					t.Error(err)
				}
				l.Settled(1)
				if i%500 == 0 {
					l.Check(Rules{Remaining: -1})
				}
			}
		}()
	}
	wg.Wait()
	v := l.Check(Rules{Credit: lanes})
	if !v.OK() || v.Succeeded != lanes*each || l.Len() != 3*lanes*each {
		t.Errorf("%d records: %v", l.Len(), v)
	}
}

func BenchmarkRun(b *testing.B) {
	b.ReportAllocs()
	l, m := New(), message1("key", 1)
	for b.Loop() {
		l.Start(m, 1).End(Succeeded)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/record")
}

func BenchmarkRunParallel(b *testing.B) {
	b.ReportAllocs()
	l := New()
	b.SetParallelism(4)
	b.RunParallel(func(p *testing.PB) {
		m := message1("key", 1)
		m.Headers = map[string]any{Header: "0000001"}
		for p.Next() {
			l.Start(m, 1).End(Succeeded)
		}
	})
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/record")
}

func BenchmarkMiddleware(b *testing.B) {
	b.ReportAllocs()
	l := New()
	h := l.Middleware()(transport.HandlerFunc(func(context.Context, *transport.Delivery) error { return nil }))
	d := &transport.Delivery{Message: *message1("key", 1)}
	ctx := context.Background()
	for b.Loop() {
		if err := h.Handle(ctx, d); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/record")
}

func BenchmarkStreamedRun(b *testing.B) {
	b.ReportAllocs()
	l, err := Create(b.TempDir() + "/log")
	if err != nil {
		b.Fatal(err)
	}
	m := message1("key", 1)
	for b.Loop() {
		l.Start(m, 1).End(Succeeded)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/record")
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCheck is the cost of judging, for each record.
func BenchmarkCheck(b *testing.B) {
	l := New()
	for i := range 100_000 {
		m := message1(string(rune('a'+i%26)), i)
		l.Record(Published, m)
		l.Start(m, 1).End(Succeeded)
	}
	for b.Loop() {
		if v := l.Check(Rules{}); !v.OK() {
			b.Fatal(v)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(300_000*b.N), "ns/record")
}
