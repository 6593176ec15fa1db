package amqp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/transport"
)

// batch is one call of Publish; it belongs to the caller's goroutine.
type batch struct {
	p       *publisher
	msgs    []*goamqp.Message
	delayed bool

	pending []int // not confirmed yet, in order
	refused []int // what another try doesn't help
	err     error // first refusal
	astray  bool  // the last try lost messages under way
}

// sent is a message on its way.
type sent struct {
	index   int
	receipt goamqp.SendReceipt
}

// run sends until all is confirmed or refused, or ctx ends.
func (b *batch) run(ctx context.Context) error {
	for try := 0; ; try++ {
		before := len(b.pending)
		err := b.try(ctx)
		if err == nil && len(b.pending) == 0 {
			break
		}
		if isFatal(err) || b.p.o.RetryFor < 0 || ctx.Err() != nil {
			return b.failed(err)
		}
		if len(b.pending) < before {
			try = 0 // a broker that takes something isn't one to stay away from
		}
		var least time.Duration
		if b.astray {
			least = resendAfter
		}
		if werr := backoff(ctx, try, least); werr != nil {
			return b.failed(fmt.Errorf("%w (%w)", err, werr))
		}
	}
	if len(b.refused) > 0 {
		return b.failed(nil)
	}
	return nil
}

func (b *batch) failed(err error) error {
	is := append(b.refused, b.pending...)
	slices.Sort(is)
	if b.err != nil {
		err = b.err
	}
	return &transport.PublishError{Unconfirmed: is, Err: err}
}

func (b *batch) refuse(index int, err error) {
	b.refused = append(b.refused, index)
	if b.err == nil {
		b.err = fmt.Errorf("%s: message %d: %w", b.p.op, index, err)
	}
}

// try sends what is pending over the current link. It gives the error that
// ended the link, or ctx's.
func (b *batch) try(ctx context.Context) error {
	b.astray = false
	l, err := b.p.current(ctx)
	if err != nil {
		return err
	}
	if b.delayed && !isArtemis(l.conn) {
		all := b.pending
		b.pending = nil
		for _, i := range all {
			b.refuse(i, &transport.OptionError{Field: "Message.Delay", Value: "(set)", Want: "must be 0: this broker isn't known to delay messages"})
		}
		return nil
	}
	f := flight{b: b, ctx: ctx, l: l}
	next := 0
	for next < len(b.pending) && f.err == nil {
		if f.place(); f.err != nil {
			break
		}
		if f.send(b.pending[next]) {
			next++
		}
	}
	for f.q.len() > 0 {
		f.confirm()
	}
	b.astray = len(f.left) > 0
	b.pending = append(f.left, b.pending[next:]...)
	if f.broken {
		b.p.drop(l, f.err)
	}
	return classify(b.p.op, f.err)
}

// flight is one try over one link.
type flight struct {
	b   *batch
	ctx context.Context
	l   *link
	q   ring[sent] // on their way, oldest first; each holds a place of the window

	left   []int // sent, and not confirmed by this link
	err    error // why the flight ended early
	broken bool  // the link can't be used any more
}

func (f *flight) end(err error, broken bool) {
	f.err = firstOf(f.err, err)
	f.broken = f.broken || broken
}

// place takes a place in the window. While it is full and some places are this
// flight's own, they are freed by confirming; otherwise two calls that hold
// half of it each would wait for each other.
func (f *flight) place() {
	for f.err == nil {
		if f.q.len() > 0 {
			select {
			case f.b.p.window <- struct{}{}:
				return
			default:
				f.confirm()
			}
			continue
		}
		select {
		case f.b.p.window <- struct{}{}:
			return
		case <-f.ctx.Done():
			f.end(context.Cause(f.ctx), false)
		}
	}
}

// send hands one message to the link. It reports whether that message is dealt
// with: sent, or refused.
func (f *flight) send(index int) bool {
	m := f.b.msgs[index]
	r, err := f.l.sender.SendWithReceipt(f.ctx, m, nil)
	if err == nil {
		f.q.push(sent{index, r})
		return true
	}
	<-f.b.p.window
	switch {
	case f.ctx.Err() != nil:
		// A message of several frames may have been cut in the middle: whatever
		// followed on this link would be taken for the rest of it.
		f.end(context.Cause(f.ctx), len(m.Data[0]) > smallBody)
		return false
	case linkGone(err):
		f.end(err, true)
		return false
	default: // too large, or not to be encoded
		f.b.refuse(index, err)
		return true
	}
}

// smallBody is a payload that fits one frame with headers to spare.
const smallBody = 256

// confirm waits for the oldest outcome.
func (f *flight) confirm() {
	s, _ := f.q.pop()
	state, err := s.receipt.Wait(f.ctx)
	<-f.b.p.window
	if err != nil {
		f.left = append(f.left, s.index)
		if f.ctx.Err() != nil {
			f.end(context.Cause(f.ctx), false)
			return
		}
		f.end(err, true)
		return
	}
	// go-amqp's own Send takes everything but a reject for success.
	switch st := state.(type) {
	case *goamqp.StateAccepted:
	case *goamqp.StateRejected:
		if st.Error != nil {
			f.b.refuse(s.index, fmt.Errorf("rejected: %w", st.Error))
			return
		}
		f.b.refuse(s.index, errRejected)
	case *goamqp.StateReleased, *goamqp.StateModified:
		f.b.refuse(s.index, errReleased)
	default:
		f.b.refuse(s.index, fmt.Errorf("the broker answered with %T", state))
	}
}

var (
	errRejected = errors.New("the broker rejected it and gave no reason")
	errReleased = errors.New("the broker gave it back: no queue takes it, or it may not be sent now")
)

func linkGone(err error) bool {
	var (
		conn    *goamqp.ConnError
		session *goamqp.SessionError
		link    *goamqp.LinkError
	)
	return errors.As(err, &conn) || errors.As(err, &session) || errors.As(err, &link)
}

// isArtemis goes by what the broker says of itself.
func isArtemis(c *goamqp.Conn) bool {
	return c.Properties()["product"] == "apache-activemq-artemis"
}
