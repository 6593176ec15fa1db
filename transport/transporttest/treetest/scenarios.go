package treetest

import (
	"context"
	"runtime"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/transporttest"
)

var scenarios = []scenario{
	{name: "all are handled once", run: allOnce},
	{name: "failures are retried in place", run: retried},
	{name: "panics and Goexit restart the lane", run: panics},
	{name: "poison is copied after its attempts", run: poison},
	{name: "what can't be decoded is copied", run: undecodable},
	{name: "abandoned ones come again in order", run: abandoned},
	{name: "a drain gives the rest back", run: drained},
	{name: "handlers outlast their leases", need: transporttest.Need{ShortLease: true}, run: outlast},
	{name: "a cut link loses nothing", run: cutLink},
	{name: "batches", run: batches},
	{name: "a timed out handler is waited for", run: timedOut},
	{name: "a stuck handler fences its key", run: stuck},
	{name: "a parked key goes on by Unpark", run: parked},
	{name: "an outage dead-letters nothing", run: outage},
	{name: "exhausted credit shows as blocked", run: blocked},
	{name: "an escalation is made safe, and a restart goes on", run: escalated},
	{name: "CrashLimit counts hand-outs", run: crashLimit},
	{name: "native dead letters", need: transporttest.Need{DeadLetter: true}, run: nativeDeadLetter},
}

const some = 60 // messages of a scenario

func allOnce(f *fixture) {
	f.publish(some, keys(7)...)
	s := f.start(actors.Options{}, func(context.Context, *transport.Delivery) error { return nil })
	f.await(f.after(some), "all of them")
	s.drain()
	f.judge(0)
}

func retried(f *fixture) {
	f.publish(some, keys(7)...)
	s := f.start(actors.Options{}, func(_ context.Context, d *transport.Delivery) error {
		if n := f.runOf(&d.Message); n <= 2 && d.Body[len(d.Body)-1] == '3' {
			return errOdd
		}
		return nil
	})
	f.await(f.after(some), "all of them")
	s.drain()
	f.judge(0)
}

func panics(f *fixture) {
	f.publish(some, keys(7)...)
	s := f.start(actors.Options{}, func(_ context.Context, d *transport.Delivery) error {
		if f.runOf(&d.Message) == 1 {
			switch d.Body[len(d.Body)-1] {
			case '3':
				panic("this one panics")
			case '6':
				runtime.Goexit()
			}
		}
		return nil
	})
	f.await(f.after(some), "all of them")
	s.drain()
	f.judge(0)
}

// poison: one message in the middle never succeeds. Everything else does, and its
// copy says why.
func poison(f *fixture) {
	f.publish(some, keys(7)...)
	s := f.start(actors.Options{OutageAfter: -1}, func(_ context.Context, d *transport.Delivery) error {
		if string(d.Body) == "30" {
			f.runOf(&d.Message)
			return errOdd
		}
		return nil
	})
	f.await(f.after(some), "all of them, one as a copy")
	s.drain()
	f.judge(0)
	f.copied(errOdd.Error(), 5)
}

func undecodable(f *fixture) {
	f.publish(some, keys(7)...)
	s := f.start(actors.Options{}, func(_ context.Context, d *transport.Delivery) error {
		if string(d.Body) == "30" {
			f.runOf(&d.Message)
			return &transport.DecodeError{Err: errOdd}
		}
		return nil
	})
	f.await(f.after(some), "all of them, one as a copy")
	s.drain()
	f.judge(0)
	f.copied("", 1)
}

// copied checks that message 30 is the only dead letter, after so many runs.
func (f *fixture) copied(why string, runs int) {
	f.Helper()
	ms := f.dead.Messages()
	if len(ms) != 1 || string(ms[0].Body) != "30" {
		f.Fatalf("%d dead letters, want message 30", len(ms))
	}
	h := ms[0].Headers
	if h[transport.HeaderReason] == nil || h[transport.HeaderAttempts] == nil || h[transport.HeaderSource] == nil {
		f.Errorf("the dead letter's headers are %v", h)
	}
	if s, _ := h[transport.HeaderDescription].(string); why != "" && s != why {
		f.Errorf("the dead letter's description is %q, want %q", s, why)
	}
	for _, n := range f.ran {
		if n != runs {
			f.Errorf("it ran %d times, want %d", n, runs)
		}
	}
}

// abandoned: two messages are given back as failed, whatever that takes on this
// transport, and nothing of their key overtakes them.
func abandoned(f *fixture) {
	f.publish(some, keys(7)...)
	s := f.start(actors.Options{}, func(_ context.Context, d *transport.Delivery) error {
		if b := string(d.Body); (b == "10" || b == "31") && f.runOf(&d.Message) == 1 {
			return supervision.With(errOdd, supervision.Abandon(0))
		}
		return nil
	})
	f.await(f.after(some), "all of them")
	s.drain()
	f.judge(0)
}

// drained: half of the messages are handled, and a second subscription gets
// exactly the others.
func drained(f *fixture) {
	f.publish(some, keys(7)...)
	half := f.after(some / 2)
	s := f.start(actors.Options{}, func(ctx context.Context, _ *transport.Delivery) error {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			f.Errorf("a drain has cancelled a handler: %v", context.Cause(ctx))
		}
		return nil
	})
	f.await(half, "half of them")
	s.drain()
	s = f.start(actors.Options{}, func(context.Context, *transport.Delivery) error { return nil })
	f.await(f.after(some), "the rest")
	s.drain()
	f.judge(0)
}

// outlast: handlers that take twice as long as a lease run once each, and so does
// what waits behind them.
func outlast(f *fixture) {
	f.skipUnless(f.traits.LeaseExpires && f.h.Lease > 0, "leases don't expire here, or the harness has no short ones")
	const n = 3
	f.publish(n, "key00", "key01", "key00")
	s := f.start(actors.Options{}, func(ctx context.Context, _ *transport.Delivery) error {
		select {
		case <-time.After(2 * f.h.Lease):
		case <-ctx.Done():
			f.Errorf("a handler was cancelled: %v", context.Cause(ctx))
		}
		return nil
	})
	f.await(f.after(n), "all of them")
	s.drain()
	f.judge(0)
}

func cutLink(f *fixture) {
	f.skipUnless(f.q.CutLink != nil, "the harness can't cut a link")
	f.publish(some, keys(7)...)
	third := f.after(some / 3)
	s := f.start(actors.Options{}, func(ctx context.Context, _ *transport.Delivery) error {
		select {
		case <-time.After(5 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	f.await(third, "a third of them")
	f.q.CutLink()
	f.await(f.after(some), "all of them")
	s.drain()
	f.judge(credit)
}

func batches(f *fixture) {
	f.publish(some, keys(7)...)
	s := f.startBatch(actors.Options{Batch: 8}, func(_ context.Context, d *transport.Delivery) error {
		if d.Body[len(d.Body)-1] == '3' && f.runOf(&d.Message) == 1 {
			return errOdd
		}
		return nil
	})
	f.await(f.after(some), "all of them")
	s.drain()
	f.judge(0)
}
