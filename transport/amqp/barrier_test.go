package amqp

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// committing is a peer that says it is Artemis and answers a transaction: on
// gives other answers to the coordinator's attach, to declare and to discharge.
func committing(t *testing.T, attach, declare, discharge func() []byte) *scripted {
	var p *scripted
	receiverAttached := false
	on := map[byte]func(f fields) []byte{
		codeAttach: func(f fields) []byte {
			if !receiverAttached { // the link of the deliveries comes first
				receiverAttached = true
				return p.answer(codeAttach, f)
			}
			if attach != nil {
				return attach()
			}
			_, name := f.next()
			return append(
				frame(codeAttach, list{string(name), 1, true, nil, nil, desc{0x28, list{}}, desc{codeCoordinator, list{}}}),
				frame(codeFlow, list{0, 5000, 0, 5000, 1, 0, 10})...)
		},
		codeTransfer: func(f fields) []byte {
			f.skip(1)
			switch id := f.uint(); {
			case id == 0 && declare != nil:
				return declare()
			case id == 0:
				return frame(codeDisposition, list{true, 0, nil, true, desc{codeDeclared, list{[]byte("txn")}}})
			case discharge != nil:
				return discharge()
			default:
				return frame(codeDisposition, list{true, 1, 1, true, desc{codeAccepted, list{}}})
			}
		},
	}
	p = newPeer(t, on)
	p.artemis = true
	return p
}

// Close commits an empty transaction before it detaches, gives up on a broker
// that has its transactions off, says so when the commit fails, and keeps to its
// context when there is no answer.
func TestBarrier(t *testing.T) {
	t.Parallel()
	say := func(b []byte) func() []byte { return func() []byte { return b } }
	rejected := desc{0x25, list{amqpError("amqp:transaction:rollback", "disk full")}}
	for name, c := range map[string]struct {
		attach, declare, discharge func() []byte
		text                       string // of Close's error, "" none
	}{
		"committed":          {},
		"transfers go on":    {declare: say(append(transferOf(1, data("late")), frame(codeDisposition, list{true, 0, nil, true, desc{codeDeclared, list{[]byte("txn")}}})...))},
		"declare refused":    {declare: say(frame(codeDisposition, list{true, 0, nil, true, rejected}))},
		"commit refused":     {discharge: say(frame(codeDisposition, list{true, 1, nil, true, rejected})), text: "commit"},
		"detached meanwhile": {declare: say(frame(codeDetach, list{1, true}))},
		"link lost":          {declare: say(frame(codeDetach, list{0, true})), text: "may come again"},
		"session lost":       {declare: say(frame(codeEnd, list{})), text: "may come again"},
		"no answer":          {attach: say(nil), text: "may come again"},
		"broken answer":      {declare: say([]byte{0, 0, 0, 1, 2, 0, 0, 0}), text: "AMQP frames"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := committing(t, c.attach, c.declare, c.discharge)
			r, rec := p.attach(nil)
			r.Grant(5)
			p.credit()
			p.send(transferOf(0, data("x")))
			r.Settle(gets(t, r, 1)[0], transport.Outcome{Kind: transport.Accept})
			rec.next(t)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			if name == "no answer" {
				cancel()
				ctx, cancel = context.WithTimeout(context.Background(), 300*time.Millisecond)
			}
			defer cancel()
			err := r.Close(ctx)
			if (err == nil) != (c.text == "") || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("close: %v", err)
			}
			if name == "no answer" && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("close: %v", err)
			}
		})
	}
}
