package actors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/transport"
)

// Work is what Ask and LaneActor send to an actor: one attempt at one delivery. The
// actor has to respond. An error that it responds with fails the attempt
// (supervision.With makes it advice to the policy); anything else, such as
// Accepted, accepts.
type Work struct {
	// Context ends when nobody waits for the answer any more; context.Cause says
	// why.
	Context  context.Context
	Delivery *transport.Delivery
	Attempt  int // 1 for the first
}

// LogValue keeps the payload out of the actor system's log.
func (w *Work) LogValue() slog.Value {
	return slog.StringValue(fmt.Sprintf("work, attempt %d at %v", w.Attempt, w.Delivery))
}

// Accepted is a response to Work that accepts it.
type Accepted struct{}

// What Ask's attempts fail with, besides what the actor responds.
var (
	// ErrAskTimeout: the actor that was asked hasn't responded in time. What it
	// responds later is ignored.
	ErrAskTimeout = errors.New("the actor that was asked hasn't responded in time")
	// ErrActorGone: the actor that was asked doesn't exist, or has stopped.
	ErrActorGone = errors.New("the actor that was asked is gone")
)

// Ask gives a handler that sends each delivery to pid as *Work, and settles as the
// actor responds. It may be asked by many lanes at the same time.
//
// An attempt fails with ErrAskTimeout when there is no response within timeout (0
// or less: it waits until the attempt's context ends), and with ErrActorGone when
// pid has stopped. Each attempt has an address of its own, so that a late response
// to one isn't taken for the next one's. An actor that panics at work loses it
// (unless it is a LaneActor's): only the timeout tells.
//
// It panics when root or pid is nil.
func Ask(root *actor.RootContext, pid *actor.PID, timeout time.Duration) transport.Handler {
	switch {
	case root == nil:
		panic(&transport.OptionError{Field: "root", Value: "nil", Want: "must be the root context of the actor's system"})
	case pid == nil:
		panic(&transport.OptionError{Field: "pid", Value: "nil", Want: "must be the address of an actor"})
	}
	system := root.ActorSystem()
	return transport.HandlerFunc(func(ctx context.Context, d *transport.Delivery) error {
		if timeout <= 0 {
			return askActor(ctx, system, pid, d, nil)
		}
		bounded, cancel := context.WithTimeoutCause(ctx, timeout, ErrAskTimeout)
		defer cancel()
		return askActor(bounded, system, pid, d, nil)
	})
}

// reply is the address that an actor responds to, for one attempt.
type reply struct{ ch chan any }

// SendUserMessage implements actor.Process.
func (r *reply) SendUserMessage(_ *actor.PID, message any) {
	select {
	case r.ch <- actor.UnwrapEnvelopeMessage(message):
	default: // the first response counts
	}
}

// SendSystemMessage implements actor.Process.
func (r *reply) SendSystemMessage(*actor.PID, any) {}

// Stop implements actor.Process.
func (r *reply) Stop(*actor.PID) {}

// askActor sends d to pid and waits for the response, the end of ctx, or a crash,
// which it leaves to the caller.
func askActor(ctx context.Context, system *actor.ActorSystem, pid *actor.PID, d *transport.Delivery, crashed <-chan struct{}) error {
	r := &reply{ch: make(chan any, 1)}
	self, ok := system.ProcessRegistry.Add(r, "ask-"+system.ProcessRegistry.NextID())
	if !ok {
		return fmt.Errorf("no address for the response: %q is taken", self.Id)
	}
	defer system.ProcessRegistry.Remove(self)
	system.Root.RequestWithCustomSender(pid, &Work{Context: ctx, Delivery: d, Attempt: transport.Attempt(ctx)}, self)
	select {
	case m := <-r.ch:
		switch m := m.(type) {
		case error:
			return m
		case *actor.DeadLetterResponse:
			return fmt.Errorf("%s: %w", pid, ErrActorGone)
		}
		return nil
	case <-crashed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
