package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/keylanes/keylanes/transport"
)

// mistake is what a wrong consumer does, once.
type mistake uint8

const (
	none     mistake = iota
	swap             // handles two deliveries of a key in the wrong order
	drop             // accepts a delivery that it hasn't handled
	twice            // handles one again that succeeded
	bury             // dead-letters one that it hasn't tried
	hoard            // grants more than the credit
	giveUp           // ends although messages are left
	failFast         // fails at start
	keepOne          // ends without giving back what it holds
)

// plain is a consumer without lanes: one goroutine, one delivery at a time. It
// shows that the judges pass a correct consumer and object to each kind of wrong
// one.
type plain struct {
	mistake mistake
	src     transport.Source
	r       transport.Receiver
	h       transport.Handler
	o       consumerOptions
}

// consumeWith gives a consumer that makes the mistake.
func consumeWith(m mistake) consumer {
	return func(ctx context.Context, src transport.Source, h transport.Handler, o consumerOptions) error {
		p := &plain{mistake: m, src: src, h: transport.Chain(h, o.middleware...), o: o}
		return p.run(ctx)
	}
}

// Settled implements transport.Sink: each settlement makes room for one more.
func (p *plain) Settled(*transport.Delivery, transport.Outcome, error) { p.r.Grant(1) }

// Lost implements transport.Sink.
func (p *plain) Lost([]*transport.Delivery, error) {}

func (p *plain) is(m mistake) bool {
	if p.mistake != m {
		return false
	}
	p.mistake = none // once
	return true
}

func (p *plain) run(ctx context.Context) (err error) {
	if p.is(failFast) {
		return errors.New("no such queue")
	}
	if p.r, err = p.src.Open(context.Background(), p); err != nil {
		return err
	}
	defer func() {
		if !p.is(keepOne) {
			err = errors.Join(err, p.r.Close(context.Background()))
		}
	}()
	p.r.Grant(p.o.credit)
	if p.is(hoard) {
		p.r.Grant(1)
	}
	for {
		ds, err := p.r.Receive(ctx)
		if ctx.Err() != nil {
			return nil // Close gives ds back
		}
		if err != nil {
			return err
		}
		if p.is(giveUp) {
			return nil
		}
		p.spoilOrder(ds)
		for _, d := range ds {
			if ctx.Err() != nil {
				return nil
			}
			if err := p.deliver(ctx, d); err != nil {
				return err
			}
		}
	}
}

// spoilOrder swaps two deliveries of one key that will both succeed.
func (p *plain) spoilOrder(ds []*transport.Delivery) {
	if p.mistake != swap {
		return
	}
	for i, a := range ds {
		for j := i + 1; j < len(ds); j++ {
			if b := ds[j]; a.Key != "" && a.Key == b.Key && string(a.Body) != string(b.Body) && !p.o.state.faults.poison[a.Key] {
				ds[i], ds[j] = b, a
				p.mistake = none
				return
			}
		}
	}
}

func (p *plain) deliver(ctx context.Context, d *transport.Delivery) error {
	ctx = context.WithoutCancel(ctx) // the end of ctx drains
	accept := transport.Outcome{Kind: transport.Accept}
	if p.is(drop) {
		n, _ := p.o.state.index(&d.Message)
		p.o.state.decide(n) // or the run would wait for it for ever
		p.r.Settle(d, accept)
		return nil
	}
	buried := p.is(bury)
	var err error
	for attempt := 1; attempt <= attempts && !buried; attempt++ {
		err = p.attempt(ctx, d, attempt)
		if err == nil && p.is(twice) {
			err = p.attempt(ctx, d, attempt)
		}
		var undecodable *transport.DecodeError
		if err == nil || errors.As(err, &undecodable) {
			break
		}
		if attempt < attempts {
			p.o.state.retries.Add(1)
		}
	}
	if err != nil || buried {
		if err := p.o.deadLetter.Publish(ctx, d.Message); err != nil {
			return err
		}
		p.o.state.reason("tried")
	}
	p.r.Settle(d, accept)
	return nil
}

// attempt turns a panic into an error, as a lane does.
func (p *plain) attempt(ctx context.Context, d *transport.Delivery, n int) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return p.h.Handle(context.WithValue(ctx, transport.AttemptKey(), n), d)
}
