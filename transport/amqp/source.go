package amqp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/transport"
)

// source is a template for receivers of one address.
type source struct {
	o         Options
	name      string
	endpoints []endpoint
	good      atomic.Int32 // index of the endpoint that worked last
}

// Queue gives a source of the deliveries of a queue (anycast, competing
// consumers). url is amqp://user:password@host:port or amqps://…, optionally
// with ?hostname= for a virtual host. A fully qualified name, "address::queue",
// attaches to that queue of the address: so a topic's subscription is consumed.
//
// Nothing is dialled before Open. Errors: *transport.OptionError.
func Queue(url, name string, o *Options) (transport.Source, error) {
	s, err := newSource(url, name, o)
	if err != nil {
		return nil, err
	}
	// A fully qualified name says what it is; the capability would be read as
	// a claim about the address, which may well be a topic.
	if s.o.Capabilities == nil && !strings.Contains(name, "::") {
		s.o.Capabilities = []string{queueCap}
	}
	return s, nil
}

// Address gives a source of the deliveries of a raw AMQP address, without
// asking for a queue: for brokers with address schemes of their own (RabbitMQ:
// "/queues/orders"), or with the capabilities that Options give. It is
// otherwise like Queue.
func Address(url, address string, o *Options) (transport.Source, error) {
	s, err := newSource(url, address, o)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func newSource(url, name string, o *Options) (*source, error) {
	s := &source{name: name}
	if o != nil {
		s.o = *o
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := s.o.check("Options"); err != nil {
		return nil, err
	}
	if s.o.SilentAfter >= 0 {
		if err := within("Options.SilentAfter", &s.o.SilentAfter, 5*time.Minute, 100*time.Millisecond, 1<<62); err != nil {
			return nil, err
		}
	}
	if err := checkCapabilities("Options.Capabilities", s.o.Capabilities); err != nil {
		return nil, err
	}
	if len(s.o.Selector) > selectorMax || !utf8.ValidString(s.o.Selector) {
		return nil, &transport.OptionError{Field: "Options.Selector", Value: strings.ToValidUTF8(cutString(s.o.Selector, 40), "?"), Want: fmt.Sprintf("must be UTF-8 of at most %d bytes", selectorMax)}
	}
	if err := checkLinkProperties(s.o.LinkProperties); err != nil {
		return nil, err
	}
	s.o.LinkProperties = maps.Clone(s.o.LinkProperties)
	s.o.Capabilities = slices.Clone(s.o.Capabilities)
	var err error
	s.endpoints, err = s.o.endpoints("Options", url)
	return s, err
}

// Traits says what AMQP 1.0 can do.
func (s *source) Traits() transport.Traits {
	return transport.Traits{
		Ordered:    true,
		Abandon:    transport.AbandonReset,
		DeadLetter: transport.DeadLetterNative,
		MaxReceive: maxReceive,
	}
}

// String names the source without its password.
func (s *source) String() string { return fmt.Sprintf("amqp %s at %s", s.name, s.endpoints[0].address) }

// Open connects, begins a session and attaches to the address.
func (s *source) Open(ctx context.Context, sink transport.Sink) (transport.Receiver, error) {
	var r *receiver
	err := s.o.eachEndpoint(ctx, s.endpoints, &s.good, func(e endpoint) error {
		var err error
		r, err = s.openAt(ctx, e, sink)
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (s *source) openAt(ctx context.Context, e endpoint, sink transport.Sink) (*receiver, error) {
	op := fmt.Sprintf("receive from %q at %s", s.name, e.address)
	r := newReceiver(op, sink, max(s.o.SilentAfter, 0))
	r.depth = func(ctx context.Context) (int64, error) { return s.depth(ctx, e) }
	l, err := s.o.dial(ctx, e, r.hook)
	if err != nil {
		return nil, classify(op, err)
	}
	opts := &goamqp.ReceiverOptions{
		Credit:             -1, // by hand
		SourceCapabilities: s.o.Capabilities,
		Properties:         s.o.LinkProperties,
	}
	if s.o.Selector != "" {
		opts.Filters = []goamqp.LinkFilter{goamqp.NewSelectorFilter(s.o.Selector)}
	}
	attach, cancel := context.WithTimeoutCause(ctx, s.o.OpenTimeout, errOpenTimeout)
	defer cancel()
	if l.receiver, err = l.session.NewReceiver(attach, s.name, opts); err != nil {
		err = because(attach, err)
		l.abort(err)
		return nil, classify(op, err)
	}
	r.link = l
	return r, nil
}

// eachEndpoint tries the endpoints in turn, what worked last first. The error is
// fatal only when every endpoint's is.
func (c *Connection) eachEndpoint(ctx context.Context, es []endpoint, good *atomic.Int32, try func(endpoint) error) error {
	start := int(good.Load())
	var passing, fatal error
	for i := range es {
		k := (start + i) % len(es)
		err := try(es[k])
		if err == nil {
			good.Store(int32(k))
			return nil
		}
		if isFatal(err) {
			fatal = firstOf(fatal, err)
		} else {
			passing = firstOf(passing, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return firstOf(passing, fatal)
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
