package transporttest

import "github.com/keylanes/keylanes/transport"

var deadLetterScenarios = []scenario{
	{name: "rejected is moved", need: Need{DeadLetter: true}, run: rejectedIsMoved},
	{name: "the key goes on", need: Need{DeadLetter: true}, run: keyGoesOn},
	{name: "reason", need: Need{DeadLetter: true}, run: deadLetterReason},
}

var rejected = transport.Outcome{Kind: transport.Reject, Reason: "declined", Description: "card 4 is blocked"}

func (f *fixture) needDeadLetter() {
	f.Helper()
	f.skipUnless(f.traits.DeadLetter != transport.DeadLetterNone, "a reject goes nowhere (Traits.DeadLetter)")
	f.skipUnless(f.q.DeadLetters != nil, "the harness gave no way to the dead letters (Queue.DeadLetters)")
}

func rejectedIsMoved(f *fixture) {
	f.needDeadLetter()
	want := f.publish(1, "k")
	c := f.open(1)
	c.settle(rejected, c.receive(1)...)
	c.close()
	f.empty()
	dead := f.openSource(f.q.DeadLetters, 1)
	f.want(dead.drain(1), want)
	dead.close()
}

// keyGoesOn: what comes after a rejected message is handed out in order.
func keyGoesOn(f *fixture) {
	f.needDeadLetter()
	want := f.publish(4, "k")
	c := f.open(1)
	ds := c.receive(1)
	c.grant(3)
	c.settle(rejected, ds...)
	f.want(c.drain(3), without(want, ds))
	c.close()
}

func deadLetterReason(f *fixture) {
	f.needDeadLetter()
	f.skipUnless(f.traits.DeadLetter == transport.DeadLetterWithReason, "dead letters carry no reason (Traits.DeadLetter)")
	if f.h.Reason == nil {
		f.Fatal("Traits.DeadLetter is DeadLetterWithReason: Harness.Reason has to read it")
	}
	f.publish(1, "k")
	c := f.open(1)
	c.settle(rejected, c.receive(1)...)
	c.close()
	dead := f.openSource(f.q.DeadLetters, 1)
	d := dead.drain(1)[0]
	if r, desc := f.h.Reason(d); r != rejected.Reason || desc != rejected.Description {
		f.Errorf("reason %q, description %q; want %q, %q", r, desc, rejected.Reason, rejected.Description)
	}
	dead.close()
}
