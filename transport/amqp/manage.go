package amqp

import (
	"context"
	"encoding/json"
	"fmt"

	goamqp "github.com/Azure/go-amqp"
)

// management asks Artemis' management, over both links of a connection of its
// own; one call at a time.
type management struct{ l *link }

func openManagement(ctx context.Context, l *link) (m management, err error) {
	if l.receiver, err = l.session.NewReceiver(ctx, "", &goamqp.ReceiverOptions{DynamicAddress: true, Credit: 4}); err != nil {
		return m, err
	}
	l.sender, err = l.session.NewSender(ctx, "activemq.management", nil)
	return management{l}, err
}

// The properties that say what is asked for.
const (
	askAttribute = "_AMQ_Attribute"
	askOperation = "_AMQ_OperationName"
)

// ask gets one attribute of a resource, or what one of its operations returns,
// with args as a JSON array. The answer goes into into.
func (m management) ask(ctx context.Context, resource, how, name string, args []any, into any) error {
	text, err := json.Marshal(append([]any{}, args...)) // never null, which it doesn't take
	if err != nil {
		return err
	}
	replyTo := m.l.receiver.Address()
	err = m.l.sender.Send(ctx, &goamqp.Message{
		Properties:            &goamqp.MessageProperties{ReplyTo: &replyTo},
		ApplicationProperties: map[string]any{"_AMQ_ResourceName": resource, how: name},
		Value:                 string(text),
	}, nil)
	if err != nil {
		return err
	}
	reply, err := m.l.receiver.Receive(ctx, nil)
	if err != nil {
		return err
	}
	if err := m.l.receiver.AcceptMessage(ctx, reply); err != nil {
		return err
	}
	said, _ := reply.Value.(string)
	// An array of one element.
	var answer []json.RawMessage
	ok, _ := reply.ApplicationProperties["_AMQ_OperationSucceeded"].(bool)
	if !ok || json.Unmarshal([]byte(said), &answer) != nil || len(answer) != 1 || json.Unmarshal(answer[0], into) != nil {
		return fmt.Errorf("management answered %q for %s", cutString(said, 200), name)
	}
	return nil
}

func (m management) number(ctx context.Context, resource, attribute string) (n int64, err error) {
	err = m.ask(ctx, resource, askAttribute, attribute, nil, &n)
	return n, err
}

// document asks for an operation whose answer is JSON in a string.
func (m management) document(ctx context.Context, operation string, args []any, into any) error {
	var text string
	if err := m.ask(ctx, "broker", askOperation, operation, args, &text); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("management answered %q for %s: %w", cutString(text, 200), operation, err)
	}
	return nil
}
