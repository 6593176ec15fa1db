package treetest

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/transport"
)

// spawned is a subscription below a parent in an actor system of its own, for
// scenarios that talk to it, watch its events, or let the parent decide.
type spawned struct {
	f      *fixture
	system *actor.ActorSystem
	pid    *actor.PID
	// decide is the parent's strategy; nil fails the test.
	decide func(sup actor.Supervisor, child *actor.PID, reason any)

	mu      sync.Mutex
	events  map[actors.EventKind]int
	changed chan struct{} // closed at the next event
}

// throttle is short, so that the goroutine that protoactor starts for its dead
// letters has ended before a scenario in virtual time does.
const throttle = time.Microsecond

// spawn starts a subscription whose parent decides about its failures; what the
// handler accepts is marked.
func (f *fixture) spawn(o actors.Options, decide func(sup actor.Supervisor, child *actor.PID, reason any), h transport.HandlerFunc) *spawned {
	f.Helper()
	o.Middleware = append(o.Middleware, f.log.Middleware())
	props, err := actors.Subscription(f.log.Source(f.q.Source), f.marking(h), f.options(o))
	if err != nil {
		f.Fatal(err)
	}
	s := &spawned{f: f, decide: decide, events: map[actors.EventKind]int{}, changed: make(chan struct{})}
	s.system = actor.NewActorSystemWithConfig(actor.Configure(
		actor.WithDeadLetterThrottleInterval(throttle),
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) })))
	s.system.EventStream.Subscribe(s.note)
	child := make(chan *actor.PID, 1)
	parent := s.system.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		if _, ok := c.Message().(*actor.Started); ok {
			child <- c.Spawn(props)
		}
	}, actor.WithSupervisor(s)))
	s.pid = <-child
	f.Cleanup(func() {
		_ = s.system.Root.StopFuture(parent).Wait()
		s.system.Shutdown()
		time.Sleep(2 * throttle)
	})
	return s
}

// HandleFailure implements actor.SupervisorStrategy.
func (s *spawned) HandleFailure(_ *actor.ActorSystem, sup actor.Supervisor, child *actor.PID, _ *actor.RestartStatistics, reason, _ any) {
	if s.decide == nil {
		s.f.Errorf("the subscription fails to its parent: %v", reason)
		sup.StopChildren(child)
		return
	}
	s.decide(sup, child, reason)
}

func (s *spawned) note(message any) {
	if e, ok := message.(*actors.Event); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events[e.Kind]++
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// await waits for the nth event of a kind.
func (s *spawned) await(k actors.EventKind, n int) {
	s.f.Helper()
	late := time.NewTimer(6 * s.f.h.Timeout)
	defer late.Stop()
	for {
		s.mu.Lock()
		ok, changed := s.events[k] >= n, s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-late.C:
			s.f.Fatalf("no event %q number %d after %v: %+v", k, n, 6*s.f.h.Timeout, s.stats())
		}
	}
}

func (s *spawned) stats() *actors.Stats {
	s.f.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), s.f.h.Timeout)
	defer cancel()
	st, err := actors.StatsOf(ctx, s.system.Root, s.pid)
	if err != nil {
		s.f.Fatalf("stats: %v", err)
	}
	return st
}

// unpark asks for a key to go on, and gives the answer.
func (s *spawned) unpark(key string) error {
	s.f.Helper()
	reply, err := s.system.Root.RequestFuture(s.pid, &actors.Unpark{Key: key}, s.f.h.Timeout).Result()
	if err != nil {
		s.f.Fatalf("unpark: %v", err)
	}
	return reply.(*actors.Done).Err
}

// drain stops the subscription, and waits for its end.
func (s *spawned) drain() {
	s.f.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 6*s.f.h.Timeout)
	defer cancel()
	if err := actors.Drain(ctx, s.system.Root, s.pid); err != nil {
		s.f.Errorf("drain: %v", err)
	}
}
