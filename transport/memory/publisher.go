package memory

import (
	"bytes"
	"context"
	"maps"
	"sync/atomic"

	"github.com/keylanes/keylanes/transport"
)

type publisher struct {
	q      *Queue
	closed atomic.Bool
}

func (p *publisher) Publish(ctx context.Context, ms ...transport.Message) error {
	if p.closed.Load() {
		return transport.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for i := range ms {
		if d := ms[i].Delay; d < 0 {
			return &transport.OptionError{Field: "Message.Delay", Value: d, Want: "must be at least 0"}
		}
		if d := ms[i].TTL; d < 0 {
			return &transport.OptionError{Field: "Message.TTL", Value: d, Want: "must be at least 0 (0: for ever)"}
		}
	}
	if p.q.fault.Load() == nil {
		return p.q.publish(ms)
	}
	return p.faulty(ctx, ms)
}

// faulty publishes one by one, each as the fault says.
func (p *publisher) faulty(ctx context.Context, ms []transport.Message) error {
	pe := &transport.PublishError{}
	for i := range ms {
		reply := p.q.ask(Op{Kind: OpPublish, Message: &ms[i], Try: 1})
		err := sleep(ctx, reply.Delay)
		if err == nil {
			err = reply.Err
			if err == nil || reply.Lost {
				if e := p.q.publish(ms[i : i+1]); e != nil {
					err = e
				}
			}
		}
		if err != nil {
			if pe.Unconfirmed = append(pe.Unconfirmed, i); pe.Err == nil {
				pe.Err = err
			}
		}
	}
	if pe.Err != nil {
		return pe
	}
	return nil
}

func (p *publisher) Close(context.Context) error {
	p.closed.Store(true)
	return nil
}

// publish stores ms, in order.
func (q *Queue) publish(ms []transport.Message) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.deleted {
		return q.fatal("publish to")
	}
	q.sweep()
	now := q.b.clock()
	for i := range ms {
		if q.dedup.seen(ms[i].ID, now, int64(q.opts.Dedup)) {
			continue
		}
		m := ms[i]
		m.Body, m.Headers = bytes.Clone(m.Body), maps.Clone(m.Headers)
		q.store(&m, now)
	}
	q.changed()
	return nil
}

// dedup remembers ids for a while.
type dedup struct {
	ids  map[string]struct{}
	line []idAt // in order of time
}

type idAt struct {
	id string
	at int64
}

// seen reports whether id was published within window, and remembers it.
func (d *dedup) seen(id string, now, window int64) bool {
	if window == 0 || id == "" {
		return false
	}
	for len(d.line) > 0 && d.line[0].at+window <= now {
		delete(d.ids, d.line[0].id)
		d.line = d.line[1:]
	}
	if _, ok := d.ids[id]; ok {
		return true
	}
	if d.ids == nil {
		d.ids = map[string]struct{}{}
	}
	d.ids[id] = struct{}{}
	d.line = append(d.line, idAt{id, now})
	return false
}
