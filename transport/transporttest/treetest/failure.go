package treetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// odd is the message that fails where only one does, and its key.
const odd, oddKey = "30", "key02"

// free is how many of the messages published so far a subscription can decide
// while odd isn't decided.
func (f *fixture) free() int {
	switch f.dispatch {
	case actors.Sequential():
		return 0 // how many groups come before it differs
	case actors.Workers(4):
		if f.traits.GroupsExclusive {
			return 0 // the broker holds the rest of its group back, or doesn't
		}
		return len(f.published) - 1
	}
	n := 0
	for _, k := range f.published {
		if k != oddKey {
			n++
		}
	}
	return n
}

// timedOut: a handler ignores for three times its timeout that its context has
// ended. Its retry starts when it has returned, with a context of its own.
func timedOut(f *fixture) {
	const timeout = 300 * time.Millisecond
	f.publish(some, keys(7)...)
	var returned atomic.Bool
	s := f.start(actors.Options{HandlerTimeout: timeout}, func(ctx context.Context, d *transport.Delivery) error {
		if string(d.Body) != odd {
			return nil
		}
		if f.runOf(&d.Message) == 1 {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), transport.ErrHandlerTimeout) {
				f.Errorf("the cause is %v, want ErrHandlerTimeout", context.Cause(ctx))
			}
			<-time.After(2 * timeout)
			returned.Store(true)
			return ctx.Err()
		}
		if !returned.Load() {
			f.Error("the retry runs beside the first attempt")
		}
		if n := transport.Attempt(ctx); n != 2 || ctx.Err() != nil {
			f.Errorf("attempt %d with a context that says %v, want a fresh one of attempt 2", n, ctx.Err())
		}
		return nil
	})
	f.await(f.after(some), "all of them")
	s.drain()
	f.judge(0)
}

// stuck: a handler doesn't return at all. Its lane is replaced, so that other keys
// go on; its own waits until it does return, and then goes on in order.
func stuck(f *fixture) {
	f.publish(some, keys(7)...)
	release := make(chan struct{})
	s := f.spawn(actors.Options{HandlerTimeout: 100 * time.Millisecond, StuckAfter: 100 * time.Millisecond}, nil,
		func(_ context.Context, d *transport.Delivery) error {
			if string(d.Body) == odd {
				<-release
			}
			return nil
		})
	f.Cleanup(sync.OnceFunc(func() {
		select {
		case <-release:
		default: // the scenario has failed before
			close(release)
		}
	}))
	s.await(actors.EventHandlerStuck, 1)
	f.await(f.after(f.free()), "those of other keys")
	if st := s.stats(); st.Stuck != 1 {
		f.Errorf("%d handlers are stuck, want 1", st.Stuck)
	}
	close(release)
	f.await(f.after(some), "all of them")
	s.drain()
	f.judge(0)
}

// parked: a key waits for an hour, and goes on at once, in order, when it is told to.
func parked(f *fixture) {
	f.publish(some, keys(7)...)
	asked := make(chan struct{})
	policy := supervision.PolicyFunc(func(supervision.Failure) supervision.Directive {
		close(asked)
		return supervision.Retry(time.Hour)
	})
	s := f.spawn(actors.Options{Policy: policy}, nil, func(_ context.Context, d *transport.Delivery) error {
		if string(d.Body) == odd && f.runOf(&d.Message) == 1 {
			return errOdd
		}
		return nil
	})
	f.await(asked, "the failure")
	f.await(f.after(f.free()), "those of other keys")
	if st := s.stats(); st.Parked != 1 {
		f.Errorf("%d deliveries are parked, want 1", st.Parked)
	}
	if err := s.unpark("no such key"); f.dispatch != actors.Sequential() && !errors.Is(err, actors.ErrNotParked) {
		f.Errorf("unpark of another key: %v, want ErrNotParked", err)
	}
	if err := s.unpark(oddKey); f.dispatch != actors.Sequential() && err != nil {
		f.Errorf("unpark: %v", err)
	}
	f.await(f.after(some), "all of them")
	s.drain()
	f.judge(0)
}

// outage: nothing succeeds for longer than all attempts last. Nothing is
// dead-lettered, the log says why, and afterwards everything is handled.
func outage(f *fixture) {
	f.publish(some, keys(7)...)
	var works atomic.Bool
	s := f.spawn(actors.Options{Policy: quick(2)}, nil, func(context.Context, *transport.Delivery) error {
		if !works.Load() {
			return errOdd
		}
		return nil
	})
	s.await(actors.EventWaitsForEvidence, 1)
	if st := s.stats(); !st.Outage || st.DeadLettered != 0 {
		f.Errorf("while nothing succeeds: %+v", st)
	}
	works.Store(true)
	f.await(f.after(some), "all of them")
	s.await(actors.EventOutageEnded, 1)
	s.drain()
	f.judge(0)
	if ms := f.dead.Messages(); len(ms) > 0 {
		f.Errorf("%d messages are dead-lettered, want none", len(ms))
	}
}

// blocked: what is held can't go on and nothing more can come. The subscription
// says so, names the key, and flows again by Unpark.
func blocked(f *fixture) {
	const n, room = 30, 10
	f.publish(n, "hot")
	var works atomic.Bool
	s := f.spawn(actors.Options{
		Credit: room, BlockedFor: 50 * time.Millisecond, Policy: supervision.Always(supervision.Retry(time.Hour)),
	}, nil, func(context.Context, *transport.Delivery) error {
		if !works.Load() {
			return errOdd
		}
		return nil
	})
	s.await(actors.EventBlocked, 1)
	keyed := f.dispatch != actors.Sequential() && f.dispatch != actors.Workers(4)
	if st := s.stats(); !st.Blocked || st.NotReady == nil || st.Held != room || keyed && st.BlockedKey != "hot" {
		f.Errorf("while it blocks: %+v", st)
	}
	works.Store(true)
	if err := s.unpark("hot"); err != nil {
		f.Errorf("unpark: %v", err)
	}
	if err := s.unpark(""); err != nil && !errors.Is(err, actors.ErrNotParked) { // what has no key
		f.Errorf("unpark: %v", err)
	}
	f.await(f.after(n), "all of them")
	s.await(actors.EventUnblocked, 1)
	s.drain()
	f.judge(0)
}

// escalated: when the parent is asked nothing runs any more, and everything that
// isn't done is back at the broker. The parent restarts it, and it goes on in order.
func escalated(f *fixture) {
	f.publish(some, keys(7)...)
	var running, failures atomic.Int32
	s := f.spawn(actors.Options{}, func(sup actor.Supervisor, child *actor.PID, reason any) {
		failures.Add(1)
		var e *actors.EscalatedError
		if err, ok := reason.(error); !ok || !errors.As(err, &e) || !errors.Is(err, errOdd) {
			f.Errorf("the reason is %v, want an *EscalatedError of the handler's error", reason)
		}
		if n := running.Load(); n != 0 {
			f.Errorf("%d handlers run when the parent is asked", n)
		}
		sup.RestartChildren(child)
	}, func(_ context.Context, d *transport.Delivery) error {
		running.Add(1)
		defer running.Add(-1)
		if string(d.Body) == odd && f.runOf(&d.Message) == 1 {
			return supervision.With(errOdd, supervision.Escalate())
		}
		<-time.After(time.Millisecond)
		return nil
	})
	f.await(f.after(some), "all of them")
	s.drain()
	f.judge(0)
	if n := failures.Load(); n != 1 {
		f.Errorf("the parent was asked %d times, want once", n)
	}
}

// crashLimit: a message that was given back often enough, by whatever process, is
// dead-lettered at its next failure.
func crashLimit(f *fixture) {
	const hands = 2
	f.publish(some, keys(7)...)
	var unknown atomic.Bool
	policy := supervision.Advised(supervision.CrashLimit(hands, supervision.DeadLetter("crashes", ""),
		supervision.RetryForever(supervision.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond})))
	s := f.start(actors.Options{Policy: policy, OutageAfter: -1}, func(_ context.Context, d *transport.Delivery) error {
		switch {
		case string(d.Body) != odd:
			return nil
		case d.Count < 0:
			unknown.Store(true)
			return nil
		case f.runOf(&d.Message) <= hands:
			return supervision.With(errOdd, supervision.Abandon(0))
		}
		return errOdd
	})
	f.await(f.after(some), "all of them, one as a copy")
	s.drain()
	f.judge(0)
	f.skipUnless(!unknown.Load(), "the broker's count is unknown")
	f.copied("", hands+1)
}

// nativeDeadLetter: what exhausts its attempts goes to the broker's own dead
// letters, and its key goes on.
func nativeDeadLetter(f *fixture) {
	f.skipUnless(f.traits.DeadLetter != transport.DeadLetterNone, "a reject goes nowhere (Traits.DeadLetter)")
	f.skipUnless(f.q.DeadLetters != nil, "the harness gave no way to the dead letters (Queue.DeadLetters)")
	f.publish(some, keys(7)...)
	rejected := make(chan struct{})
	policy := supervision.PolicyFunc(func(fail supervision.Failure) supervision.Directive {
		d := quick(2).Decide(fail)
		if d.Action == supervision.ActionDeadLetter {
			close(rejected)
		}
		return d
	})
	s := f.start(actors.Options{NativeDeadLetter: true, OutageAfter: -1, Policy: policy}, func(_ context.Context, d *transport.Delivery) error {
		if string(d.Body) == odd {
			f.runOf(&d.Message)
			return errOdd
		}
		return nil
	})
	f.await(f.after(some-1), "all but one")
	f.await(rejected, "the second failure")
	s.drain() // what the policy has ordered is with the broker then
	f.deadAtBroker()
	f.judge(0)
	for _, n := range f.ran {
		if n != 2 {
			f.Errorf("it ran %d times, want 2", n)
		}
	}
	if ms := f.dead.Messages(); len(ms) > 0 {
		f.Errorf("%d copies, want none", len(ms))
	}
}

// deadAtBroker takes odd from the broker's dead letters.
func (f *fixture) deadAtBroker() {
	f.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), f.h.Timeout)
	defer cancel()
	settled := make(accepts, 1)
	r, err := f.q.DeadLetters.Open(ctx, settled)
	if err != nil {
		f.Fatalf("open the dead letters: %v", err)
	}
	r.Grant(1)
	for done := false; !done; {
		ds, err := r.Receive(ctx)
		if err != nil {
			f.Fatalf("receive a dead letter: %v", err)
		}
		for _, d := range ds {
			if string(d.Body) != odd {
				f.Errorf("the dead letter is %v, want message %s", d, odd)
			}
			r.Settle(d, transport.Outcome{Kind: transport.Accept})
			if err := <-settled; err != nil {
				f.Errorf("accept a dead letter: %v", err)
			}
			done = true
		}
	}
	if err := r.Close(ctx); err != nil {
		f.Errorf("close the dead letters: %v", err)
	}
}

// accepts gives how each settlement ended.
type accepts chan error

func (a accepts) Settled(_ *transport.Delivery, _ transport.Outcome, err error) { a <- err }
func (a accepts) Lost(_ []*transport.Delivery, err error)                       { a <- err }
