package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/transport"
)

const sendOp = "SendMessageBatch"

// publisher gives a queue and its publisher.
func (f *fake) publisher(kind string, o *PublisherOptions) (queue string, p transport.Publisher) {
	f.Helper()
	q := newQueue(f, f.client, kind, nil)
	p, err := Publisher(f.client, q, o)
	if err != nil {
		f.Fatal(err)
	}
	return q, p
}

// messages gives n messages, numbered for each of the keys in turn.
func messages(n int, keys ...string) []transport.Message {
	ms := make([]transport.Message, n)
	for i := range ms {
		ms[i] = transport.Message{Key: keys[i%len(keys)], Body: fmt.Append(nil, i/len(keys))}
	}
	return ms
}

// drain accepts everything on the queue, and gives the bodies of each key in
// order.
func (f *fake) drain(queue string) map[string]string {
	f.Helper()
	r, s := open(f, f.client, queue, &Options{WaitTime: time.Second})
	r.Grant(1000)
	out := map[string]string{}
	for {
		ds, err := r.Receive(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		if len(ds) == 0 {
			break
		}
		for _, d := range ds {
			out[d.Key] += " " + string(d.Body)
			r.Settle(d, accept)
		}
		s.await(f, len(ds))
	}
	closeNow(f, r)
	return out
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprint(&b, " ", i)
	}
	return b.String()
}

func TestPublishFillsCalls(t *testing.T) {
	big := func(n int) []transport.Message {
		ms := messages(n, "")
		for i := range ms {
			ms[i].Body = []byte(strings.Repeat("x", 400_000))
		}
		return ms
	}
	for _, c := range []struct {
		name, kind string
		o          *PublisherOptions
		ms         []transport.Message
		calls      int
	}{
		{"ten a call", "", nil, messages(25, "a"), 3},
		{"bytes", "", nil, big(5), 3},
		{"keyless on FIFO", ".fifo", nil, messages(25, ""), 3},
		{"one of a group a call", ".fifo", nil, messages(12, "a", "b", "c"), 4},
		{"many of a group a call", ".fifo", &PublisherOptions{GroupBatches: true}, messages(25, "a"), 3},
		{"none", "", nil, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			virtual(t, func(f *fake) {
				q, p := f.publisher(c.kind, c.o)
				if err := p.Publish(f.Context(), c.ms...); err != nil {
					f.Fatal(err)
				}
				if n := f.wire.Calls(sendOp); n != c.calls {
					f.Errorf("%d calls, want %d", n, c.calls)
				}
				f.atServer(q, fmt.Sprint(len(c.ms)), "0")
			})
		})
	}
}

// Whatever fails on the way, everything arrives, on a FIFO queue once and in
// order.
func TestPublishThroughFaults(t *testing.T) {
	for name, fault := range map[string]func(rng *rand.Rand) sqsfake.Fault{
		"failed entries": func(rng *rand.Rand) sqsfake.Fault {
			var bad [maxBatch]bool
			for i := range bad {
				bad[i] = rng.IntN(10) < 3
			}
			return sqsfake.FailEntries("InternalError", false, func(i int) bool { return bad[i] })
		},
		"lost replies": func(rng *rand.Rand) sqsfake.Fault {
			return [...]sqsfake.Fault{sqsfake.LoseReply, sqsfake.CutReply, nil, nil, nil}[rng.IntN(5)]
		},
		"throttled": func(rng *rand.Rand) sqsfake.Fault {
			return [...]sqsfake.Fault{sqsfake.Fail(400, "ThrottlingException"), nil}[rng.IntN(2)]
		},
		"slow": func(rng *rand.Rand) sqsfake.Fault { return sqsfake.Delay(time.Duration(rng.IntN(1e9))) },
	} {
		for _, kind := range []string{"", ".fifo"} {
			t.Run(name+kind, func(t *testing.T) {
				virtual(t, func(f *fake) {
					q, p := f.publisher(kind, nil)
					rng := rand.New(rand.NewPCG(1, 1))
					f.script(sendOp, func(int) sqsfake.Fault { return fault(rng) })
					keys := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}
					if err := p.Publish(f.Context(), messages(240, keys...)...); err != nil {
						f.Fatal(err)
					}
					f.wire.Script(nil)
					for key, got := range f.drain(q) {
						have := strings.Fields(got)
						if kind == "" {
							slices.Sort(have)
							have = slices.Compact(have)
							if len(have) != 20 {
								f.Errorf("key %s: %d messages", key, len(have))
							}
							continue
						}
						if got != numbers(20) {
							f.Errorf("key %s: got%s", key, got)
						}
					}
				})
			})
		}
	}
}

// A message that fails for good takes those behind it in its group along, and
// nothing else.
func TestPublishStopsAGroupAtAFailure(t *testing.T) {
	for _, batches := range []bool{false, true} {
		t.Run(fmt.Sprint(batches), func(t *testing.T) {
			virtual(t, func(f *fake) {
				q, p := f.publisher(".fifo", &PublisherOptions{GroupBatches: batches})
				f.wire.Script(func(c sqsfake.Call) sqsfake.Fault {
					if c.Op != sendOp {
						return nil
					}
					var in struct {
						Entries []struct{ MessageBody, MessageGroupID string }
					}
					if err := json.Unmarshal(c.Body, &in); err != nil {
						t.Error(err)
					}
					return sqsfake.FailEntries("InvalidMessageContents", true, func(i int) bool {
						return in.Entries[i].MessageBody == "2" && in.Entries[i].MessageGroupID == "a"
					})
				})
				err := p.Publish(f.Context(), messages(10, "a", "b")...)
				var pe *transport.PublishError
				if !errors.As(err, &pe) || !is[*transport.FatalError](err) {
					f.Fatalf("got %v", err)
				}
				want := []int{4, 6, 8}
				if batches {
					want = []int{4} // the others were in the same call
				}
				if !slices.Equal(pe.Unconfirmed, want) {
					f.Errorf("unconfirmed %v, want %v", pe.Unconfirmed, want)
				}
				f.wire.Script(nil)
				if got := f.drain(q); got["b"] != numbers(5) || !batches && got["a"] != numbers(2) {
					f.Errorf("got %v", got)
				}
			})
		})
	}
}

// Passing faults are retried for so long; then, and when the context ends,
// Publish says what isn't confirmed.
func TestPublishGivesUp(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     *PublisherOptions
		fault sqsfake.Fault
		limit time.Duration
		want  time.Duration
		calls int
	}{
		{"default", nil, sqsfake.Fail(400, "RequestThrottled"), time.Hour, 30 * time.Second, 20},
		{"black hole", nil, sqsfake.BlackHole, time.Hour, 30 * time.Second, 10},
		{"context", nil, sqsfake.Drop, 5 * time.Second, 5 * time.Second, 10},
		{"context in a call", nil, sqsfake.BlackHole, 3 * time.Second, 3 * time.Second, 1},
		{"no retry", &PublisherOptions{RetryFor: -1}, sqsfake.FailText(500, "oops"), time.Hour, 0, 1},
		{"denied", nil, sqsfake.Fail(403, "AccessDenied"), time.Hour, 0, 1},
		{"no queue", nil, sqsfake.Fail(400, "QueueDoesNotExist"), time.Hour, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			virtual(t, func(f *fake) {
				_, p := f.publisher("", c.o)
				f.script(sendOp, func(int) sqsfake.Fault { return c.fault })
				ctx, cancel := context.WithTimeout(context.Background(), c.limit)
				defer cancel()
				began := time.Now()
				err := p.Publish(ctx, messages(3, "a")...)
				var pe *transport.PublishError
				if !errors.As(err, &pe) || len(pe.Unconfirmed) != 3 {
					f.Errorf("got %v", err)
				}
				if d := time.Since(began); d < c.want || d > c.want+16*time.Second {
					f.Errorf("gave up after %v, want %v", d, c.want)
				}
				if n := f.wire.Calls(sendOp); n < 1 || n > c.calls {
					f.Errorf("%d calls, want at most %d", n, c.calls)
				}
			})
		})
	}
}

// What SQS can't take is refused before anything is sent.
func TestPublishRefuses(t *testing.T) {
	many := map[string]any{}
	for i := range 11 {
		many[fmt.Sprint("h", i)] = i
	}
	for name, c := range map[string]struct {
		kind  string
		m     transport.Message
		field string
	}{
		"ttl":              {"", transport.Message{TTL: 1}, "Message.TTL"},
		"negative delay":   {"", transport.Message{Delay: -1}, "Message.Delay"},
		"long delay":       {"", transport.Message{Delay: 15*time.Minute + 1}, "Message.Delay"},
		"delay on FIFO":    {".fifo", transport.Message{Delay: time.Second}, "Message.Delay"},
		"key with a space": {"", transport.Message{Key: "a b"}, "Message.Key"},
		"key with ü":       {".fifo", transport.Message{Key: "ü"}, "Message.Key"},
		"long key":         {".fifo", transport.Message{Key: strings.Repeat("k", 129)}, "Message.Key"},
		"reserved key":     {".fifo", transport.Message{Key: "keylanes.keyless.x"}, "Message.Key"},
		"11 headers":       {"", transport.Message{Headers: many}, "Message.Headers"},
		"empty header":     {"", transport.Message{Headers: map[string]any{"a": ""}}, "Message.Headers[a]"},
		"empty bytes":      {"", transport.Message{Headers: map[string]any{"a": []byte{}}}, "Message.Headers[a]"},
		"NaN":              {"", transport.Message{Headers: map[string]any{"a": math.NaN()}}, "Message.Headers[a]"},
		"huge number":      {"", transport.Message{Headers: map[string]any{"a": 1e200}}, "Message.Headers[a]"},
		"struct":           {"", transport.Message{Headers: map[string]any{"a": struct{}{}}}, "Message.Headers[a]"},
		"control":          {"", transport.Message{Headers: map[string]any{"a": "\x00"}}, "Message.Headers[a]"},
		"no name":          {"", transport.Message{Headers: map[string]any{"": "x"}}, "Message.Headers"},
		"space in a name":  {"", transport.Message{Headers: map[string]any{"a b": "x"}}, "Message.Headers"},
		"AWS name":         {"", transport.Message{Headers: map[string]any{"AWS.x": "x"}}, "Message.Headers"},
		"two dots":         {"", transport.Message{Headers: map[string]any{"a..b": "x"}}, "Message.Headers"},
		"own name":         {"", transport.Message{Headers: map[string]any{"content-type": "x"}}, "Message.Headers"},
		"too large":        {"", transport.Message{Body: make([]byte, 1<<20)}, "Message.Body"}, // binary: a third more
		"one byte more":    {"", transport.Message{Body: []byte(strings.Repeat("x", 1<<20+1))}, "Message.Body"},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(f *fake) {
				_, p := f.publisher(c.kind, nil)
				if c.m.Body == nil {
					c.m.Body = []byte("x")
				}
				err := p.Publish(f.Context(), transport.Message{Body: []byte("good")}, c.m)
				var oe *transport.OptionError
				var pe *transport.PublishError
				if !errors.As(err, &oe) || oe.Field != c.field || !errors.As(err, &pe) || len(pe.Unconfirmed) != 2 {
					f.Errorf("got %v", err)
				}
				if n := f.wire.Calls(sendOp); n != 0 {
					f.Errorf("%d calls", n)
				}
			})
		})
	}
}

// The largest of what fits is taken.
func TestPublishBounds(t *testing.T) {
	ten := map[string]any{}
	for i := range 10 {
		ten[fmt.Sprint("h", i)] = uint8(i)
	}
	for name, m := range map[string]transport.Message{
		"1 MiB":      {Body: []byte(strings.Repeat("x", 1<<20))},
		"10 headers": {Headers: ten},
		"long key":   {Key: strings.Repeat("k", 128)},
		"punctuated": {Key: "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"},
		"15 min":     {Delay: 15 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(f *fake) {
				q, p := f.publisher("", nil)
				if m.Body == nil {
					m.Body = []byte("x")
				}
				if err := p.Publish(f.Context(), m); err != nil {
					f.Fatal(err)
				}
				time.Sleep(m.Delay)
				if got := f.drain(q); len(got[m.Key]) != len(m.Body)+1 {
					f.Errorf("got %d bytes", len(got[m.Key]))
				}
			})
		})
	}
}

// A message's ID deduplicates; one without is sent once for each Publish.
func TestPublishDeduplicates(t *testing.T) {
	virtual(t, func(f *fake) {
		q, p := f.publisher(".fifo", nil)
		for range 2 {
			err := p.Publish(f.Context(), transport.Message{ID: "1", Key: "a", Body: []byte("x")},
				transport.Message{ID: "ein Ümlaut", Key: "b", Body: []byte("y")}, transport.Message{Key: "c", Body: []byte("z")})
			if err != nil {
				f.Fatal(err)
			}
		}
		if got := fmt.Sprint(f.drain(q)); got != "map[a: x b: y c: z z]" {
			f.Errorf("got %s", got)
		}
	})
}

// Close waits for what is being published, and no longer than its context.
func TestPublisherClose(t *testing.T) {
	virtual(t, func(f *fake) {
		_, p := f.publisher("", nil)
		f.script(sendOp, func(int) sqsfake.Fault { return sqsfake.Delay(3 * time.Second) })
		done := make(chan error)
		go func() { done <- p.Publish(context.Background(), messages(1, "a")...) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			f.Errorf("close: %v", err)
		}
		if err := p.Publish(context.Background(), messages(1, "a")...); !errors.Is(err, transport.ErrClosed) {
			f.Errorf("publish after close: %v", err)
		}
		closed := make(chan error)
		go func() { closed <- p.Close(context.Background()) }()
		if err := <-done; err != nil {
			f.Errorf("publish: %v", err)
		}
		if err := <-closed; err != nil {
			f.Errorf("close: %v", err)
		}
	})
}

// A publisher finds its queue when it is first used, and says what is wrong.
func TestPublisherFindsItsQueue(t *testing.T) {
	virtual(t, func(f *fake) {
		p, err := Publisher(f.client, "later", nil)
		if err != nil {
			f.Fatal(err)
		}
		if err := p.Publish(f.Context(), messages(2, "a")...); !is[*transport.FatalError](err) || !strings.Contains(err.Error(), "create the queue") {
			f.Errorf("got %v", err)
		}
		for range 2 {
			f.create("later")
			if err := p.Publish(f.Context(), messages(2, "a")...); err != nil {
				f.Error(err)
			}
		}
		if n := f.wire.Calls("GetQueueUrl"); n != 2 {
			f.Errorf("%d look-ups, want 2", n)
		}
	})
}

func TestPublisherOptions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o     PublisherOptions
		field string
	}{
		{PublisherOptions{CallTimeout: 99 * time.Millisecond}, "PublisherOptions.CallTimeout"},
		{PublisherOptions{CallTimeout: time.Minute + 1}, "PublisherOptions.CallTimeout"},
		{PublisherOptions{CallTimeout: -1}, "PublisherOptions.CallTimeout"},
		{PublisherOptions{RetryFor: time.Hour + 1}, "PublisherOptions.RetryFor"},
		{PublisherOptions{CallTimeout: 100 * time.Millisecond, RetryFor: time.Hour}, ""},
		{PublisherOptions{CallTimeout: time.Minute, RetryFor: -1}, ""},
	} {
		_, err := Publisher(newClient(t, "http://sqs.test"), "q", &c.o)
		var oe *transport.OptionError
		if errors.As(err, &oe) != (c.field != "") || oe != nil && oe.Field != c.field {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}
