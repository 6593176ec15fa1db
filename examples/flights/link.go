package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
	"github.com/keylanes/keylanes/transport/memory"
)

// link is a queue and its dead-letter queue on one of the transports.
type link struct {
	name            string // without a password
	source          transport.Source
	publisher, dead transport.Publisher
	release         func() // what the publishers don't; nil: nothing
	// left asks what the queue still holds.
	left func(ctx context.Context) (depth, error)
}

// depth is what a queue holds.
type depth struct {
	waiting   int // may be handed out
	invisible int // held by somebody
	// atLeast: waiting is 0, or 1 for "at least one"; the broker doesn't count.
	atLeast bool
}

// close releases both publishers and the connections.
func (l *link) close(ctx context.Context) error {
	err := errors.Join(l.publisher.Close(ctx), l.dead.Close(ctx))
	if l.release != nil {
		l.release()
	}
	return err
}

// connect makes the link that -transport names.
func connect(ctx context.Context, name string) (*link, error) {
	scheme, _, _ := strings.Cut(name, "://")
	switch scheme {
	case "memory":
		return connectMemory(name)
	case "amqp", "amqps":
		return connectAMQP(ctx, name)
	case "sqs":
		return connectSQS(ctx, name)
	}
	return nil, &transport.OptionError{Field: "-transport", Value: scheme, Want: "must be memory, amqp://…/queue, amqps://…/queue or sqs://…/queue"}
}

func connectMemory(name string) (*link, error) {
	if name != "memory" {
		return nil, &transport.OptionError{Field: "-transport", Value: name, Want: "memory takes no address"}
	}
	broker := memory.New(nil)
	queue, err := broker.Queue("flights", nil)
	if err != nil {
		return nil, err
	}
	dead, err := broker.Queue("flights.dead", nil)
	if err != nil {
		return nil, err
	}
	return &link{
		name: name, source: queue.Source(), publisher: queue.Publisher(), dead: dead.Publisher(),
		left: func(context.Context) (depth, error) {
			s := queue.Stats()
			return depth{waiting: s.Ready + s.Delayed, invisible: s.InFlight}, nil
		},
	}, nil
}

// queueOf takes the queue's name off the path of a url.
func queueOf(name string) (*url.URL, string, error) {
	u, err := url.Parse(name)
	if err != nil {
		// The error would quote the url, password and all.
		return nil, "", &transport.OptionError{Field: "-transport", Value: "a url", Want: "it doesn't parse: escape special characters of a password with %"}
	}
	queue := strings.TrimPrefix(u.Path, "/")
	if queue == "" || u.Host == "" {
		return nil, "", &transport.OptionError{Field: "-transport", Value: u.Redacted(), Want: "must name host, port and queue: " + u.Scheme + "://host:port/queue"}
	}
	return u, queue, nil
}

// answers says so early when nothing listens at u: a subscription would try again
// for ever, as it should in production.
func answers(ctx context.Context, u *url.URL) error {
	port := u.Port()
	if port == "" {
		port = map[string]string{"amqp": "5672", "amqps": "5671", "sqs": "80"}[u.Scheme]
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return fmt.Errorf("-transport %s: no broker answers: %w: is it running? scripts/artemis.sh start and scripts/sqs.sh start run one here", u.Redacted(), err)
	}
	return c.Close()
}

func connectAMQP(ctx context.Context, name string) (*link, error) {
	u, queue, err := queueOf(name)
	if err != nil {
		return nil, err
	}
	broker := *u
	broker.Path = ""
	l := &link{name: u.Redacted()}
	if l.source, err = amqp.Queue(broker.String(), queue, nil); err != nil {
		return nil, err
	}
	if l.publisher, err = amqp.Publisher(broker.String(), queue, nil); err != nil {
		return nil, err
	}
	if l.dead, err = amqp.Publisher(broker.String(), queue+".dead", nil); err != nil {
		return nil, err
	}
	if err := answers(ctx, u); err != nil {
		return nil, err
	}
	l.left = func(ctx context.Context) (depth, error) { return peek(ctx, l.source) }
	return l, nil
}

// peekFor is how long a queue is listened to whose broker doesn't count.
const peekFor = 300 * time.Millisecond

// peek finds out what a queue holds when nobody else is attached. Where the
// broker can't be asked, it takes one message, if there is one, and gives it
// back.
func peek(ctx context.Context, src transport.Source) (d depth, err error) {
	r, err := src.Open(ctx, discard{})
	if err != nil {
		return depth{}, err
	}
	defer func() { err = errors.Join(err, r.Close(ctx)) }()
	if q, ok := r.(transport.Depther); ok {
		n, err := q.Depth(ctx)
		return depth{waiting: int(n)}, err
	}
	r.Grant(1)
	short, cancel := context.WithTimeout(ctx, peekFor)
	defer cancel()
	ds, err := r.Receive(short)
	if err != nil && short.Err() == nil {
		return depth{}, err
	}
	return depth{waiting: len(ds), atLeast: true}, nil
}

// discard is the sink of a receiver that settles nothing.
type discard struct{}

func (discard) Settled(*transport.Delivery, transport.Outcome, error) {}
func (discard) Lost([]*transport.Delivery, error)                     {}
