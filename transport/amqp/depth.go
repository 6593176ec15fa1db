package amqp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	goamqp "github.com/Azure/go-amqp"
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
	if l.receiver, err = l.session.NewReceiver(ctx, "", &goamqp.ReceiverOptions{DynamicAddress: true, Credit: 2}); err != nil {
		return 0, err
	}
	if l.sender, err = l.session.NewSender(ctx, "activemq.management", nil); err != nil {
		return 0, err
	}
	// The queue of a fully qualified name is its second half.
	if _, queue, ok := strings.Cut(name, "::"); ok {
		name = queue
	}
	waiting, err := attribute(ctx, l, name, "messageCount")
	if err != nil {
		return 0, err
	}
	out, err := attribute(ctx, l, name, "deliveringCount") // a part of messageCount
	return max(waiting-out, 0), err
}

// attribute asks Artemis' management for a number.
func attribute(ctx context.Context, l *link, queue, name string) (int64, error) {
	replyTo := l.receiver.Address()
	err := l.sender.Send(ctx, &goamqp.Message{
		Properties:            &goamqp.MessageProperties{ReplyTo: &replyTo},
		ApplicationProperties: map[string]any{"_AMQ_ResourceName": "queue." + queue, "_AMQ_Attribute": name},
		Value:                 "[]",
	}, nil)
	if err != nil {
		return 0, err
	}
	m, err := l.receiver.Receive(ctx, nil)
	if err != nil {
		return 0, err
	}
	if err := l.receiver.AcceptMessage(ctx, m); err != nil {
		return 0, err
	}
	text, _ := m.Value.(string)
	var answer []int64
	if ok, _ := m.ApplicationProperties["_AMQ_OperationSucceeded"].(bool); !ok || json.Unmarshal([]byte(text), &answer) != nil || len(answer) != 1 {
		return 0, fmt.Errorf("management answered %q for %s", cutString(text, 200), name)
	}
	return answer[0], nil
}
