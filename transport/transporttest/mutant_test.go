package transporttest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// mutant is a way of breaking the contract, on top of a transport that keeps it.
// The functions that are nil leave the good one's.
type mutant struct {
	name string
	// opts are the queue's.
	opts memory.QueueOptions
	// caught names scenarios that have to fail.
	caught []string

	grant   func(r transport.Receiver, n int)
	receive func(ctx context.Context, r transport.Receiver) ([]*transport.Delivery, error)
	settle  func(r transport.Receiver, s transport.Sink, d *transport.Delivery, o transport.Outcome)
	extend  func(r transport.Receiver, ds []*transport.Delivery, until time.Time)
	close   func(ctx context.Context, r transport.Receiver) error
	publish func(ctx context.Context, p transport.Publisher, ms []transport.Message) error
	traits  func(t *transport.Traits)
	sink    func(s transport.Sink) transport.Sink
	open    func(ctx context.Context) context.Context
	noCut   bool
}

var (
	fifo   = memory.QueueOptions{FIFO: true, CountsOnReturn: true}
	leased = memory.QueueOptions{FIFO: true, Lease: time.Second, CountsOnReturn: true}
)

var mutants = []mutant{
	{
		name: "asks for more than granted", caught: []string{"credit/a strict ceiling", "credit/grants add up"},
		grant: func(r transport.Receiver, n int) { r.Grant(n + 1) },
	}, {
		name: "fetches before a grant", caught: []string{"credit/nothing before a grant"},
		receive: func(ctx context.Context, r transport.Receiver) ([]*transport.Delivery, error) {
			r.Grant(1)
			return r.Receive(ctx)
		},
	}, {
		name: "swaps deliveries", caught: []string{"order/one key", "order/across epochs", "close/gives back in order"},
		receive: func(ctx context.Context, r transport.Receiver) ([]*transport.Delivery, error) {
			ds, err := r.Receive(ctx)
			if len(ds) > 1 {
				ds[0], ds[1] = ds[1], ds[0]
			}
			return ds, err
		},
	}, {
		name: "claims an order that it doesn't keep", caught: []string{"order/many keys", "order/while publishing", "publish/many in one call"},
		opts:   memory.QueueOptions{Shuffle: true},
		traits: func(t *transport.Traits) { t.Ordered = true },
	}, {
		name: "claims exclusive groups", caught: []string{"groups/one holder", "groups/handed over at close"},
		traits: func(t *transport.Traits) { t.GroupsExclusive = true },
	}, {
		name: "forgets accepts", caught: []string{"settle/accepted is gone", "settle/from eight goroutines", "close/flushes first"},
		settle: func(r transport.Receiver, s transport.Sink, d *transport.Delivery, o transport.Outcome) {
			s.Settled(d, o, nil)
		},
	}, {
		name: "accepts a zero outcome", caught: []string{"settle/no outcome is no accept"},
		settle: func(r transport.Receiver, s transport.Sink, d *transport.Delivery, o transport.Outcome) {
			if o.Kind == 0 {
				o.Kind = transport.Accept
			}
			r.Settle(d, o)
		},
	}, {
		name: "reports a settlement twice", caught: []string{"settle/accepted is gone"},
		settle: func(r transport.Receiver, s transport.Sink, d *transport.Delivery, o transport.Outcome) {
			r.Settle(d, o)
			s.Settled(d, o, nil)
		},
	}, {
		name: "doesn't report a settlement", caught: []string{"settle/accepted is gone"},
		settle: func(transport.Receiver, transport.Sink, *transport.Delivery, transport.Outcome) {},
	}, {
		name: "accepts what it hands out", caught: []string{"close/gives back in order", "close/races settlements", "loss/comes again in order"},
		receive: func(ctx context.Context, r transport.Receiver) ([]*transport.Delivery, error) {
			ds, err := r.Receive(ctx)
			for _, d := range ds {
				r.Settle(d, accept)
			}
			return ds, err
		},
		settle: func(_ transport.Receiver, s transport.Sink, d *transport.Delivery, o transport.Outcome) {
			s.Settled(d, o, nil)
		},
		sink: func(s transport.Sink) transport.Sink { return deaf{s} },
	}, {
		name: "doesn't close", caught: []string{"close/gives back in order", "close/with an ended context", "close/ends receiving"},
		close: func(context.Context, transport.Receiver) error { return nil },
	}, {
		name: "succeeds after close", caught: []string{"close/refuses settlements afterwards"},
		sink: func(s transport.Sink) transport.Sink { return optimist{s} },
	}, {
		name: "loses what a stopped receive brings", caught: []string{"concurrency/stop during a receive"},
		receive: func(ctx context.Context, r transport.Receiver) ([]*transport.Delivery, error) {
			ds, err := r.Receive(ctx)
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(500 * time.Microsecond): // as if the reply took a while
				return ds, err
			}
		},
	}, {
		name: "doesn't count", caught: []string{"counts/abandoned", "abandon/reset"},
		receive: func(ctx context.Context, r transport.Receiver) ([]*transport.Delivery, error) {
			ds, err := r.Receive(ctx)
			for _, d := range ds {
				d.Count = 0
			}
			return ds, err
		},
	}, {
		name: "counts what it says it doesn't", caught: []string{"counts/returned", "counts/closed"},
		opts:   memory.QueueOptions{CountsOnReturn: true},
		traits: func(t *transport.Traits) { t.CountsOnReturn = false },
	}, {
		name: "doesn't extend", caught: []string{"leases/extended stays"}, opts: leased,
		extend: func(transport.Receiver, []*transport.Delivery, time.Time) {},
	}, {
		name: "keeps a lost lease to itself", caught: []string{"leases/extending a lapsed lease"}, opts: leased,
		sink: func(s transport.Sink) transport.Sink { return secretive{s} },
	}, {
		name: "reports a lost lease twice", caught: []string{"leases/extending a lapsed lease"}, opts: leased,
		sink: func(s transport.Sink) transport.Sink { return chatty{s} },
	}, {
		name: "claims leases that expire", caught: []string{"order/one key"},
		traits: func(t *transport.Traits) { t.LeaseExpires = true },
	}, {
		name: "ignores the delay of an abandon", caught: []string{"abandon/delayed", "abandon/group delayed"}, opts: fifo,
		settle: func(r transport.Receiver, _ transport.Sink, d *transport.Delivery, o transport.Outcome) {
			o.Delay = 0
			r.Settle(d, o)
		},
	}, {
		name: "accepts what is abandoned", caught: []string{"counts/abandoned", "abandon/group"}, opts: fifo,
		settle: func(r transport.Receiver, _ transport.Sink, d *transport.Delivery, o transport.Outcome) {
			if o.Kind == transport.Abandon {
				o.Kind = transport.Accept
			}
			r.Settle(d, o)
		},
	}, {
		name: "drops what is rejected", caught: []string{"deadletter/rejected is moved", "deadletter/reason"},
		settle: func(r transport.Receiver, _ transport.Sink, d *transport.Delivery, o transport.Outcome) {
			if o.Kind == transport.Reject {
				o.Kind = transport.Accept
			}
			r.Settle(d, o)
		},
	}, {
		name: "drops the reason", caught: []string{"deadletter/reason"},
		settle: func(r transport.Receiver, _ transport.Sink, d *transport.Delivery, o transport.Outcome) {
			o.Reason = ""
			r.Settle(d, o)
		},
	}, {
		name: "doesn't notice a lost link", caught: []string{"loss/ends the epoch", "loss/again and again"}, noCut: true,
	}, {
		name: "always the same epoch", caught: []string{"loss/ends the epoch"},
		receive: func(ctx context.Context, r transport.Receiver) ([]*transport.Delivery, error) {
			ds, err := r.Receive(ctx)
			for _, d := range ds {
				d.Epoch = 1
			}
			return ds, err
		},
	}, {
		name: "takes a lost link for a passing error", caught: []string{"loss/ends the epoch"},
		receive: func(ctx context.Context, r transport.Receiver) ([]*transport.Delivery, error) {
			ds, err := r.Receive(ctx)
			if err != nil && ctx.Err() == nil {
				err = &transport.TemporaryError{Op: "receive", Err: err}
			}
			return ds, err
		},
	}, {
		name: "opens whatever its context says", caught: []string{"concurrency/open with an ended context"},
		open: context.WithoutCancel,
	}, {
		name: "publishes half", caught: []string{"publish/many in one call", "order/one key"},
		publish: func(ctx context.Context, p transport.Publisher, ms []transport.Message) error {
			return p.Publish(ctx, ms[:len(ms)/2]...)
		},
	}, {
		name: "publishes backwards", caught: []string{"order/one key", "publish/from many goroutines"},
		publish: func(ctx context.Context, p transport.Publisher, ms []transport.Message) error {
			for i := range ms {
				if err := p.Publish(ctx, ms[len(ms)-1-i]); err != nil {
					return err
				}
			}
			return nil
		},
	}, {
		name: "drops headers and fields", caught: []string{"publish/fields", "publish/headers"},
		publish: func(ctx context.Context, p transport.Publisher, ms []transport.Message) error {
			for _, m := range ms {
				if err := p.Publish(ctx, transport.Message{Key: m.Key, Body: m.Body}); err != nil {
					return err
				}
			}
			return nil
		},
	}, {
		name: "ignores delay and TTL", caught: []string{"publish/delay", "publish/ttl"},
		publish: func(ctx context.Context, p transport.Publisher, ms []transport.Message) error {
			for _, m := range ms {
				m.Delay, m.TTL = 0, 0
				if err := p.Publish(ctx, m); err != nil {
					return err
				}
			}
			return nil
		},
	}, {
		name: "drops keys", caught: []string{"order/many keys", "publish/fields"},
		publish: func(ctx context.Context, p transport.Publisher, ms []transport.Message) error {
			for _, m := range ms {
				m.Key = ""
				if err := p.Publish(ctx, m); err != nil {
					return err
				}
			}
			return nil
		},
	},
}

func TestSuiteCatches(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for _, name := range m.caught {
				good := m.opts
				synctest.Test(t, func(t *testing.T) {
					// Without the mutation the scenario passes: it is the
					// mutation that is caught.
					if fs, skipped := try(t, (&mutant{opts: good}).harness(), name); len(fs) > 0 && m.traits == nil {
						t.Errorf("%s fails without the mutation: %v", name, fs)
					} else if skipped != "" && m.traits == nil {
						t.Errorf("%s is skipped without the mutation: %s", name, skipped)
					}
				})
				synctest.Test(t, func(t *testing.T) {
					fs, skipped := try(t, m.harness(), name)
					if len(fs) == 0 {
						t.Errorf("%s didn't catch it (skipped: %q)", name, skipped)
					}
				})
			}
		})
	}
}

// harness is memory with the mutation.
func (m *mutant) harness() Harness {
	return Harness{
		Bubble: true, Lease: time.Second, Timeout: 3 * time.Second,
		Fields:       Fields{ID: true, ContentType: true, CorrelationID: true, ReplyTo: true, Enqueued: true},
		Headers:      map[string]any{"a": "b"},
		PublishDelay: true, PublishTTL: true,
		Reason: func(d *transport.Delivery) (string, string) {
			r, _ := d.Headers[memory.HeaderReason].(string)
			s, _ := d.Headers[memory.HeaderDescription].(string)
			return r, s
		},
		New: func(t testing.TB, need Need) *Queue {
			b := memory.New(nil)
			dead, err := b.Queue("dead", nil)
			if err != nil {
				t.Fatal(err)
			}
			o := m.opts
			if o.Lease > 0 && !need.ShortLease {
				o.Lease = time.Hour
			}
			o.DeadLetter = dead
			q, err := b.Queue("q", &o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(q.Delete)
			out := &Queue{Source: badSource{m, q.Source()}, Publisher: badPublisher{m, q.Publisher()}, DeadLetters: dead.Source(), CutLink: q.CutLinks}
			if m.noCut {
				out.CutLink = func() {}
			}
			return out
		},
	}
}

type badSource struct {
	m *mutant
	transport.Source
}

func (s badSource) Traits() transport.Traits {
	t := s.Source.Traits()
	if s.m.traits != nil {
		s.m.traits(&t)
	}
	return t
}

func (s badSource) Open(ctx context.Context, sink transport.Sink) (transport.Receiver, error) {
	if s.m.open != nil {
		ctx = s.m.open(ctx)
	}
	inner := sink
	if s.m.sink != nil {
		inner = s.m.sink(sink)
	}
	r, err := s.Source.Open(ctx, inner)
	if err != nil {
		return nil, err
	}
	return badReceiver{s.m, sink, r}, nil
}

type badReceiver struct {
	m    *mutant
	sink transport.Sink
	transport.Receiver
}

func (r badReceiver) Grant(n int) {
	if r.m.grant != nil {
		r.m.grant(r.Receiver, n)
		return
	}
	r.Receiver.Grant(n)
}

func (r badReceiver) Receive(ctx context.Context) ([]*transport.Delivery, error) {
	if r.m.receive != nil {
		return r.m.receive(ctx, r.Receiver)
	}
	return r.Receiver.Receive(ctx)
}

func (r badReceiver) Settle(d *transport.Delivery, o transport.Outcome) {
	if r.m.settle != nil {
		r.m.settle(r.Receiver, r.sink, d, o)
		return
	}
	r.Receiver.Settle(d, o)
}

func (r badReceiver) Extend(ds []*transport.Delivery, until time.Time) {
	if r.m.extend != nil {
		r.m.extend(r.Receiver, ds, until)
		return
	}
	r.Receiver.Extend(ds, until)
}

func (r badReceiver) Close(ctx context.Context) error {
	if r.m.close != nil {
		return r.m.close(ctx, r.Receiver)
	}
	return r.Receiver.Close(ctx)
}

type badPublisher struct {
	m *mutant
	transport.Publisher
}

func (p badPublisher) Publish(ctx context.Context, ms ...transport.Message) error {
	if p.m.publish != nil {
		return p.m.publish(ctx, p.Publisher, ms)
	}
	return p.Publisher.Publish(ctx, ms...)
}

// deaf drops every report.
type deaf struct{ transport.Sink }

func (deaf) Settled(*transport.Delivery, transport.Outcome, error) {}

// optimist reports every settlement as a success.
type optimist struct{ transport.Sink }

func (o optimist) Settled(d *transport.Delivery, out transport.Outcome, _ error) {
	o.Sink.Settled(d, out, nil)
}

// secretive reports no lost lease.
type secretive struct{ transport.Sink }

func (secretive) Lost([]*transport.Delivery, error) {}

// chatty reports every lost lease twice.
type chatty struct{ transport.Sink }

func (c chatty) Lost(ds []*transport.Delivery, err error) {
	c.Sink.Lost(ds, err)
	c.Sink.Lost(ds, err)
}

// leaky leaves a goroutine behind for as long as stop isn't closed.
type leaky struct {
	transport.Source
	stop chan struct{}
}

func (l leaky) Open(ctx context.Context, s transport.Sink) (transport.Receiver, error) {
	go func() { <-l.stop }()
	return l.Source.Open(ctx, s)
}

// It looks at every goroutine of the process, so it isn't parallel.
func TestSuiteCatchesALeftoverGoroutine(t *testing.T) {
	h := (&mutant{}).harness()
	h.Bubble = false
	h.Quiet = time.Millisecond
	if fs, _ := try(t, h, "leaks/no goroutine left"); len(fs) > 0 {
		t.Fatalf("fails without a leak: %v", fs)
	}
	stop := make(chan struct{})
	defer close(stop)
	good := h.New
	h.New = func(t testing.TB, need Need) *Queue {
		q := good(t, need)
		q.Source = leaky{q.Source, stop}
		return q
	}
	if fs, _ := try(t, h, "leaks/no goroutine left"); len(fs) == 0 {
		t.Error("a goroutine was left, and the scenario didn't fail")
	}
}
