package amqp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/transport"
)

// publisher sends to one address over one connection, which it makes when it is
// first needed and again after it was lost.
type publisher struct {
	o         PublisherOptions
	name, op  string
	endpoints []endpoint
	good      atomic.Int32
	window    chan struct{} // a place for each message that isn't confirmed yet

	dialing chan struct{} // capacity 1: held by who opens or closes the link

	over    context.Context // ends when Close's patience does, and with it every call
	endCall context.CancelCauseFunc

	mu     sync.Mutex
	link   *link
	closed bool
	active int           // calls of Publish
	idle   chan struct{} // closed when closed and active is 0
}

// Publisher gives a confirmed, pipelined publisher to a queue or address. url is
// as for Queue. Messages are durable and of priority 4 unless told otherwise; a
// Key becomes the group-id.
//
// Publish sends everything that it is given without waiting for the single
// confirmations, as far as Window and the broker's credit go. When the
// connection is lost it sends what wasn't confirmed again, in order, on the next
// one: such a message may then be in the queue twice, unless the broker
// deduplicates by Message.ID (Artemis does), and a broker that is still busy with
// the lost connection may put it behind its successors. What the broker refused, and what
// couldn't be confirmed in time, is named in a *transport.PublishError.
//
// Nothing is dialled before the first Publish. Errors: *transport.OptionError.
func Publisher(url, name string, o *PublisherOptions) (transport.Publisher, error) {
	p := &publisher{name: name, dialing: make(chan struct{}, 1), idle: make(chan struct{})}
	p.over, p.endCall = context.WithCancelCause(context.Background())
	if o != nil {
		p.o = *o
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := p.o.check(); err != nil {
		return nil, err
	}
	var err error
	if p.endpoints, err = p.o.endpoints("PublisherOptions", url); err != nil {
		return nil, err
	}
	p.op = fmt.Sprintf("publish to %q at %s", name, p.endpoints[0].address)
	p.window = make(chan struct{}, p.o.Window)
	return p, nil
}

func (o *PublisherOptions) check() error {
	if err := o.Connection.check("PublisherOptions"); err != nil {
		return err
	}
	if o.Window == 0 {
		o.Window = windowNorm
	}
	if o.Window < 1 || o.Window > windowMax {
		return &transport.OptionError{Field: "PublisherOptions.Window", Value: o.Window, Want: fmt.Sprintf("must be 1 to %d, or 0 for %d", windowMax, windowNorm)}
	}
	if o.Priority != nil {
		v := *o.Priority // a copy: the caller may change its own
		o.Priority = &v
		if v > 9 {
			return &transport.OptionError{Field: "PublisherOptions.Priority", Value: v, Want: "must be 0 to 9"}
		}
	}
	if o.RetryFor >= 0 {
		if err := within("PublisherOptions.RetryFor", &o.RetryFor, 30*time.Second, time.Millisecond, time.Hour); err != nil {
			return err
		}
	}
	if o.Capabilities == nil {
		o.Capabilities = []string{queueCap}
	}
	o.Capabilities = slices.Clone(o.Capabilities)
	return checkCapabilities("PublisherOptions.Capabilities", o.Capabilities)
}

var errRetryFor = errors.New("no success within RetryFor")

// Publish sends ms in order and returns when the broker has confirmed all.
func (p *publisher) Publish(ctx context.Context, ms ...transport.Message) error {
	if len(ms) == 0 {
		return nil
	}
	if !p.enter() {
		return &transport.PublishError{Unconfirmed: indexes(len(ms)), Err: fmt.Errorf("%s: %w", p.op, transport.ErrClosed)}
	}
	defer p.leave()
	b := batch{p: p, pending: indexes(len(ms)), msgs: make([]*goamqp.Message, len(ms))}
	now := time.Now()
	for i := range ms {
		var err error
		if b.msgs[i], err = p.o.toAMQP(&ms[i], now); err != nil {
			return &transport.PublishError{Unconfirmed: b.pending, Err: fmt.Errorf("message %d: %w", i, err)}
		}
		b.delayed = b.delayed || ms[i].Delay > 0
	}
	if p.o.RetryFor > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.o.RetryFor, errRetryFor)
		defer cancel()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.over, func() { cancel(context.Cause(p.over)) })()
	return b.run(ctx)
}

func indexes(n int) []int {
	is := make([]int, n)
	for i := range is {
		is[i] = i
	}
	return is
}

func (p *publisher) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.active++
	return true
}

func (p *publisher) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active--; p.active == 0 && p.closed {
		close(p.idle)
	}
}

// Close lets the calls of Publish end, then ends link, session and connection.
// When ctx ends first it ends them at once, and those calls report what they
// couldn't confirm.
func (p *publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		if p.active == 0 {
			close(p.idle)
		}
	}
	p.mu.Unlock()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, closeBound)
		defer cancel()
	}
	var err error
	select {
	case <-p.idle:
	case <-ctx.Done():
		err = fmt.Errorf("%s: close: %w", p.op, context.Cause(ctx))
		p.endCall(transport.ErrClosed)
		<-p.idle // soon: every wait of theirs watches that context
	}
	l := p.take(nil)
	switch {
	case l == nil:
		return err
	case err != nil:
		l.abort(transport.ErrClosed)
		return err
	default:
		// Every message is confirmed or reported by now: a link that doesn't end
		// well takes nothing with it.
		_ = l.close(ctx)
		return nil
	}
}

// take removes the link, if it is the given one or that is nil.
func (p *publisher) take(l *link) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l != nil && p.link != l {
		return nil
	}
	l, p.link = p.link, nil
	return l
}

// current gives the link, opening one when there is none.
func (p *publisher) current(ctx context.Context) (*link, error) {
	p.mu.Lock()
	l := p.link
	p.mu.Unlock()
	if l != nil {
		return l, nil
	}
	select {
	case p.dialing <- struct{}{}:
		defer func() { <-p.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	l = p.link
	p.mu.Unlock()
	if l != nil { // somebody else was quicker
		return l, nil
	}
	err := p.o.eachEndpoint(ctx, p.endpoints, &p.good, func(e endpoint) (err error) {
		l, err = p.openAt(ctx, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.link = l
	p.mu.Unlock()
	return l, nil
}

func (p *publisher) openAt(ctx context.Context, e endpoint) (*link, error) {
	op := fmt.Sprintf("publish to %q at %s", p.name, e.address)
	l, err := p.o.dial(ctx, e, nil)
	if err != nil {
		return nil, classify(op, err)
	}
	attach, cancel := context.WithTimeoutCause(ctx, p.o.OpenTimeout, errOpenTimeout)
	defer cancel()
	l.sender, err = l.session.NewSender(attach, p.name, &goamqp.SenderOptions{TargetCapabilities: p.o.Capabilities})
	if err != nil {
		err = because(attach, err)
		l.abort(err)
		return nil, classify(op, err)
	}
	return l, nil
}

// drop gives up a link that failed, once, whoever notices first.
func (p *publisher) drop(l *link, err error) {
	if l := p.take(l); l != nil {
		l.abort(err)
	}
}

const (
	backoffMin = 20 * time.Millisecond
	backoffMax = time.Second
	// resendAfter is how long what was under way on a lost connection is given
	// to arrive. The broker may still be working on bytes that it got before:
	// what is sent again at once then overtakes it, and the second copy may get
	// past the broker's check for duplicates.
	resendAfter = 250 * time.Millisecond
)

// backoff waits before try n, at least for least, with full jitter so that many
// publishers don't come back to a broker at the same time.
func backoff(ctx context.Context, n int, least time.Duration) error {
	d := backoffMax
	if n < 6 {
		d = min(backoffMin<<n, backoffMax)
	}
	t := time.NewTimer(least + rand.N(d) + 1)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
