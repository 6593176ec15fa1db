package oracle

import (
	"context"
	"errors"
	"maps"
	"strconv"

	"github.com/keylanes/keylanes/transport"
)

// Header names the header that holds a message's identity.
const Header = "keylanes-oracle-id"

// Identity is what a log knows m by: its Header, else its ID; empty when it has
// neither.
func Identity(m *transport.Message) string {
	if m.Headers != nil {
		if id, ok := m.Headers[Header].(string); ok && id != "" {
			return id
		}
	}
	return m.ID
}

// Middleware records the start and the end of every run. List it last, so that
// it is innermost, next to the handler: a middleware that fails without
// calling it then isn't taken for a run. A handler's panic and Goexit pass
// through untouched.
func (l *Log) Middleware() transport.Middleware {
	return func(next transport.Handler) transport.Handler {
		return transport.HandlerFunc(func(ctx context.Context, d *transport.Delivery) error {
			run := l.Start(&d.Message, transport.Attempt(ctx))
			end := Panicked // unless it returns
			defer func() { run.End(end) }()
			err := next.Handle(ctx, d)
			if end = Succeeded; err != nil {
				end = Failed
			}
			return err
		})
	}
}

// Publisher wraps p: it gives every message its Header, records the published
// order, and what wasn't confirmed. Closing it closes p.
func (l *Log) Publisher(p transport.Publisher) transport.Publisher {
	return &publisher{log: l, next: p}
}

// DeadLetter wraps the publisher of dead-letter copies: a copy that was
// confirmed decides its message. The copy must carry the message's Header, or
// have its ID. Closing it closes p.
func (l *Log) DeadLetter(p transport.Publisher) transport.Publisher {
	return &deadLetter{log: l, next: p}
}

type publisher struct {
	log  *Log
	next transport.Publisher
}

// Publish implements transport.Publisher.
func (p *publisher) Publish(ctx context.Context, ms ...transport.Message) error {
	stamped := make([]transport.Message, len(ms)) // the caller's are left alone
	for i := range ms {
		stamped[i] = ms[i]
		p.log.stamp(&stamped[i])
		p.log.Record(Published, &stamped[i])
	}
	err := p.next.Publish(ctx, stamped...)
	for _, i := range unconfirmed(err, len(ms)) {
		p.log.Record(Unconfirmed, &stamped[i])
	}
	return err
}

// Close implements transport.Publisher.
func (p *publisher) Close(ctx context.Context) error { return p.next.Close(ctx) }

// stamp gives m the header that identifies it.
func (l *Log) stamp(m *transport.Message) {
	id := Identity(m)
	if id == "" {
		l.mu.Lock()
		l.stamps++
		id = l.processes[0].name + "-" + strconv.FormatUint(l.stamps, 10)
		l.mu.Unlock()
	}
	headers := make(map[string]any, len(m.Headers)+1)
	maps.Copy(headers, m.Headers)
	headers[Header] = id
	m.Headers = headers
}

type deadLetter struct {
	log  *Log
	next transport.Publisher
}

// Publish implements transport.Publisher.
func (p *deadLetter) Publish(ctx context.Context, ms ...transport.Message) error {
	err := p.next.Publish(ctx, ms...)
	failed := make(map[int]bool)
	for _, i := range unconfirmed(err, len(ms)) {
		failed[i] = true
	}
	for i := range ms {
		if !failed[i] {
			p.log.Record(DeadLettered, &ms[i])
		}
	}
	return err
}

// Close implements transport.Publisher.
func (p *deadLetter) Close(ctx context.Context) error { return p.next.Close(ctx) }

// unconfirmed lists the indexes of the messages, of n, that err says nothing
// good about.
func unconfirmed(err error, n int) []int {
	if err == nil {
		return nil
	}
	var pe *transport.PublishError
	if errors.As(err, &pe) {
		in := make([]int, 0, len(pe.Unconfirmed))
		for _, i := range pe.Unconfirmed {
			if i >= 0 && i < n {
				in = append(in, i)
			}
		}
		return in
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
