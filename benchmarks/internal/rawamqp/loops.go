package rawamqp

import (
	"context"
	"errors"
	"fmt"
	"time"

	goamqp "github.com/Azure/go-amqp"
)

// Dialer is Dial or DialBuffered.
type Dialer func(ctx context.Context, broker string) (*goamqp.Conn, error)

var queueCapability = []string{"queue"}

// session runs f on a session of its own, and ends it: only the end of the
// session makes the broker confirm that it has seen every accept.
func session(ctx context.Context, dial Dialer, broker string, f func(*goamqp.Session) error) error {
	c, err := dial(ctx, broker)
	if err != nil {
		return err
	}
	s, err := c.NewSession(ctx, nil)
	if err != nil {
		return errors.Join(err, c.Close())
	}
	return errors.Join(f(s), s.Close(ctx), c.Close())
}

// Receive receives n messages and accepts each. With step 0 the client gives
// credit by itself; else it is given back by the loop, step at a time.
func Receive(ctx context.Context, dial Dialer, broker, queue string, n, credit, step int) error {
	return session(ctx, dial, broker, func(s *goamqp.Session) error {
		o := &goamqp.ReceiverOptions{Credit: int32(credit), SourceCapabilities: queueCapability}
		if step > 0 {
			o.Credit = -1
		}
		r, err := s.NewReceiver(ctx, queue, o)
		if err != nil {
			return err
		}
		if step > 0 {
			if err := r.IssueCredit(uint32(credit)); err != nil {
				return err
			}
		}
		for i := 1; i <= n; i++ {
			m, err := r.Receive(ctx, nil)
			if err != nil {
				return err
			}
			if err := r.AcceptMessage(ctx, m); err != nil {
				return err
			}
			if step > 0 && i%step == 0 {
				if err := r.IssueCredit(uint32(step)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Message is what is sent: 512 bytes, one of 64 groups.
func Message(i int, body []byte, durable bool) *goamqp.Message {
	group := fmt.Sprint("g", i%64)
	return &goamqp.Message{
		Header:     &goamqp.MessageHeader{Durable: durable, Priority: 4},
		Properties: &goamqp.MessageProperties{GroupID: &group},
		Data:       [][]byte{body},
	}
}

// Pipelined sends n messages, at most window of them unconfirmed, and checks
// every outcome.
func Pipelined(ctx context.Context, dial Dialer, broker, queue string, n, window int, durable bool) error {
	return send(ctx, dial, broker, queue, func(out *goamqp.Sender) error {
		receipts := make(chan goamqp.SendReceipt, window)
		checked := make(chan error, 1)
		go func() {
			var first error
			for r := range receipts {
				st, err := r.Wait(ctx)
				if _, ok := st.(*goamqp.StateAccepted); err == nil && !ok {
					err = fmt.Errorf("the broker answered %T", st)
				}
				if first == nil {
					first = err
				}
			}
			checked <- first
		}()
		body := make([]byte, 512)
		var err error
		for i := 0; i < n && err == nil; i++ {
			var r goamqp.SendReceipt
			if r, err = out.SendWithReceipt(ctx, Message(i, body, durable), nil); err == nil {
				receipts <- r
			}
		}
		close(receipts)
		return errors.Join(err, <-checked)
	})
}

// Sequential sends n messages, each when the one before is confirmed.
func Sequential(ctx context.Context, dial Dialer, broker, queue string, n int, durable bool) error {
	return send(ctx, dial, broker, queue, func(out *goamqp.Sender) error {
		body := make([]byte, 512)
		for i := range n {
			if err := out.Send(ctx, Message(i, body, durable), nil); err != nil {
				return err
			}
		}
		return nil
	})
}

func send(ctx context.Context, dial Dialer, broker, queue string, f func(*goamqp.Sender) error) error {
	return session(ctx, dial, broker, func(s *goamqp.Session) error {
		out, err := s.NewSender(ctx, queue, &goamqp.SenderOptions{TargetCapabilities: queueCapability})
		if err != nil {
			return err
		}
		return f(out)
	})
}

// Delete takes a queue out of an Artemis broker, with everything in it.
func Delete(ctx context.Context, broker, queue string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return session(ctx, Dial, broker, func(s *goamqp.Session) error {
		replies, err := s.NewReceiver(ctx, "", &goamqp.ReceiverOptions{DynamicAddress: true})
		if err != nil {
			return err
		}
		to := replies.Address()
		out, err := s.NewSender(ctx, "activemq.management", nil)
		if err != nil {
			return err
		}
		if err := out.Send(ctx, &goamqp.Message{
			Properties:            &goamqp.MessageProperties{ReplyTo: &to},
			ApplicationProperties: map[string]any{"_AMQ_ResourceName": "broker", "_AMQ_OperationName": "destroyQueue"},
			Value:                 fmt.Sprintf("[%q, true]", queue),
		}, nil); err != nil {
			return err
		}
		m, err := replies.Receive(ctx, nil)
		if err != nil {
			return err
		}
		if ok, _ := m.ApplicationProperties["_AMQ_OperationSucceeded"].(bool); !ok {
			return fmt.Errorf("the broker can't delete queue %s: %v", queue, m.Value)
		}
		return replies.AcceptMessage(ctx, m)
	})
}
