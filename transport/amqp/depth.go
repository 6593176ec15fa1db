package amqp

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// ErrNoDepth says that the broker isn't one that can be asked for a queue's depth.
var ErrNoDepth = errors.New("only Artemis can be asked for a queue's depth")

// Depth asks how many messages wait in the queue and are with no consumer. Only
// Artemis answers; the user needs the permission to send to activemq.management
// and to manage. Each call opens a connection of its own, so that it can never
// hold up the deliveries: call it every few seconds at most.
func (r *receiver) Depth(ctx context.Context) (int64, error) { return r.depth(ctx) }

func (s *source) depth(ctx context.Context, e endpoint) (int64, error) {
	op := fmt.Sprintf("ask for the depth of %q at %s", s.name, e.address)
	l, err := s.o.dial(ctx, e, nil)
	if err != nil {
		return 0, classify(op, err)
	}
	n, err := askDepth(ctx, l, s.name)
	if err != nil {
		l.abort(err)
		return 0, classify(op, err)
	}
	return n, l.close(ctx)
}

func askDepth(ctx context.Context, l *link, name string) (n int64, err error) {
	if !isArtemis(l.conn) {
		return 0, ErrNoDepth
	}
	m, err := openManagement(ctx, l)
	if err != nil {
		return 0, err
	}
	// The queue of a fully qualified name is its second half.
	if _, queue, ok := strings.Cut(name, "::"); ok {
		name = queue
	}
	waiting, err := m.number(ctx, "queue."+name, "messageCount")
	if err != nil {
		return 0, err
	}
	out, err := m.number(ctx, "queue."+name, "deliveringCount") // a part of messageCount
	return max(waiting-out, 0), err
}
