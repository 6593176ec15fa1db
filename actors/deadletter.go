package actors

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/transport"
)

// copyTimeout bounds one attempt to publish a dead-letter copy.
const copyTimeout = 30 * time.Second

// copy publishes an item's dead-letter copy, on a goroutine of its own: neither
// lanes nor the router wait for a broker. The credit bounds how many there are.
func (r *router) copy(it *plan.Item) {
	t, ctx := r.t, r.copyCtx
	m := deadLetter(it, t.opts.Name)
	go func() {
		t.send(t.router, &copied{item: it, err: publish(ctx, t.opts.DeadLetter, m)})
	}()
}

func publish(ctx context.Context, p transport.Publisher, m transport.Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the dead-letter publisher panicked: %v", v)
		}
	}()
	if ctx.Err() != nil {
		return errCopyStopped
	}
	ctx, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	return p.Publish(ctx, m)
}

// deadLetter makes the copy: the message as it was, and why it is here.
func deadLetter(it *plan.Item, source string) transport.Message {
	d := it.D.Message
	m := transport.Message{
		ID: d.ID, Key: d.Key, ContentType: d.ContentType, CorrelationID: d.CorrelationID, ReplyTo: d.ReplyTo,
		Body: d.Body, Headers: make(map[string]any, len(d.Headers)+5),
	}
	maps.Copy(m.Headers, d.Headers)
	dir := it.Directive()
	m.Headers[transport.HeaderReason] = dir.Reason
	m.Headers[transport.HeaderDescription] = dir.Description
	m.Headers[transport.HeaderAttempts] = int64(it.Attempt - 1)
	m.Headers[transport.HeaderKey] = d.Key
	m.Headers[transport.HeaderSource] = source
	return m
}

func (r *router) copied(m *copied) {
	it, d := m.item, m.item.D
	if m.err != nil {
		r.tries[it]++
		if !r.draining {
			r.t.event(Event{Kind: EventDeadLetterFailed, Lane: -1, Key: d.Key, ID: d.ID, Err: m.err, Count: r.tries[it]})
		}
		r.apply(r.planner.Copied(r.now(), it, false, r.tries[it]))
		r.forgetTries()
		return
	}
	delete(r.tries, it)
	r.deadLettered++
	dir := it.Directive()
	r.t.observe(Observation{Kind: ObserveDeadLettered, Delivery: d, Lane: -1, Attempt: it.Attempt - 1, Reason: dir.Reason})
	r.t.event(Event{Kind: EventDeadLettered, Lane: -1, Key: d.Key, ID: d.ID, Reason: dir.Reason + ": " + dir.Description})
	r.confirmed = it
	r.apply(r.planner.Copied(r.now(), it, true, 0))
	r.confirmed = nil
}

// forgetTries forgets the failed copies of what is being copied no more.
func (r *router) forgetTries() {
	for it := range r.tries {
		if s := it.State(); s != plan.CopyWait && s != plan.Copying {
			delete(r.tries, it)
		}
	}
}
