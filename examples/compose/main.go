// Command compose puts subscriptions into an actor system of its own: a parent actor
// spawns two of them and supervises them. One feeds an actor that adds up, through
// Ask; the other has an actor for each lane. When the second escalates, the parent's
// strategy restarts it, and it goes on in order. It needs no broker.
//
//	shop
//	 ├─ totals            adds up the orders, asked by the lanes of "orders"
//	 ├─ orders            ByKey(4), each order asks totals
//	 └─ parcels           ByKey(2), an actor for each lane; escalates once
package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport/memory"
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "compose:", err)
		os.Exit(1)
	}
}

const (
	orders  = 100
	parcels = 60
	depots  = 6
)

var errDepotOnFire = errors.New("the depot is on fire")

// shop is the parent. It is the supervisor of its children.
type shop struct {
	orders, parcels, dead *memory.Queue
	events                chan<- any // what the program waits for
	burnt                 atomic.Bool

	ordersSub, parcelsSub *actor.PID
	restarts              int
}

// Receive implements actor.Actor.
func (s *shop) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actor.Started:
		totals := ctx.Spawn(actor.PropsFromProducer(func() actor.Actor { return &totals{left: orders, shop: ctx.Self(), sums: map[string]int{}} }))
		s.ordersSub = s.spawn(ctx, s.orders, func(o *keylanes.Options) (*actor.Props, error) {
			o.Dispatch = keylanes.ByKey(4)
			return actors.Subscription(s.orders.Source(), actors.Ask(ctx.ActorSystem().Root, totals, time.Second), o)
		})
		s.parcelsSub = s.spawn(ctx, s.parcels, func(o *keylanes.Options) (*actor.Props, error) {
			o.Dispatch = keylanes.ByKey(2)
			return actors.LaneActor(s.parcels.Source(), actor.PropsFromProducer(func() actor.Actor { return &courier{shop: s} }), o)
		})
	case *totals, *delivered:
		s.events <- m
	case *closeShop:
		for _, sub := range []*actor.PID{s.ordersSub, s.parcelsSub} {
			ctx.Request(sub, &actors.DrainMessage{}) // answered with *actors.Done
		}
	case *actors.Done:
		s.events <- m
	case *howManyRestarts:
		ctx.Respond(s.restarts)
	}
}

// spawn starts a subscription under this actor.
func (s *shop) spawn(ctx actor.Context, q *memory.Queue, make func(*keylanes.Options) (*actor.Props, error)) *actor.PID {
	props, err := make(&keylanes.Options{
		DeadLetter: s.dead.Publisher(),
		Logger:     slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err) // the options are this program's: a bug
	}
	return ctx.Spawn(props)
}

// HandleFailure implements actor.SupervisorStrategy. A subscription that fails has
// been made safe: nothing of it runs, and what it held is back on its queue.
func (s *shop) HandleFailure(_ *actor.ActorSystem, sup actor.Supervisor, child *actor.PID, _ *actor.RestartStatistics, reason, _ any) {
	var e *actors.EscalatedError
	if err, ok := reason.(error); ok && errors.As(err, &e) && errors.Is(e, errDepotOnFire) {
		s.restarts++
		sup.RestartChildren(child)
		return
	}
	sup.EscalateFailure(reason, nil)
}

// totals adds up, asked by many lanes at once; being an actor it needs no lock.
type totals struct {
	left int
	shop *actor.PID
	sums map[string]int
}

// Receive implements actor.Actor.
func (t *totals) Receive(ctx actor.Context) {
	w, ok := ctx.Message().(*actors.Work)
	if !ok {
		return
	}
	n, err := strconv.Atoi(string(w.Delivery.Body))
	if err != nil {
		ctx.Respond(err)
		return
	}
	t.sums[w.Delivery.Key] += n
	ctx.Respond(actors.Accepted{})
	if t.left--; t.left == 0 {
		ctx.Send(t.shop, t)
	}
}

// courier is the actor of one lane.
type courier struct{ shop *shop }

// delivered tells of one parcel.
type delivered struct {
	depot string
	n     int
}

// Receive implements actor.Actor.
func (c *courier) Receive(ctx actor.Context) {
	w, ok := ctx.Message().(*actors.Work)
	if !ok {
		return
	}
	n, _ := strconv.Atoi(string(w.Delivery.Body))
	if n == 30 && c.shop.burnt.CompareAndSwap(false, true) {
		ctx.Respond(supervision.With(errDepotOnFire, supervision.Escalate()))
		return
	}
	c.shop.events <- &delivered{w.Delivery.Key, n}
	ctx.Respond(actors.Accepted{})
}

type (
	closeShop       struct{}
	howManyRestarts struct{}
)

func run(out io.Writer) error {
	broker := memory.New(nil)
	s := &shop{}
	for _, q := range []struct {
		name  string
		queue **memory.Queue
	}{{"orders", &s.orders}, {"parcels", &s.parcels}, {"dead", &s.dead}} {
		queue, err := broker.Queue(q.name, nil)
		if err != nil {
			return err
		}
		*q.queue = queue
	}
	if err := publish(s.orders, orders, "customer", 10); err != nil {
		return err
	}
	if err := publish(s.parcels, parcels, "depot", depots); err != nil {
		return err
	}
	events := make(chan any, orders+parcels+10)
	s.events = events
	system := actor.NewActorSystemWithConfig(actor.Configure(
		actor.WithDeadLetterThrottleInterval(time.Microsecond),
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) })))
	defer system.Shutdown()
	pid := system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return s }))

	last, ordered, seen, sum := map[string]int{}, true, 0, 0
	for added := false; seen < parcels || !added; {
		switch m := (<-events).(type) {
		case *totals:
			added = true
			for _, n := range m.sums {
				sum += n
			}
		case *delivered:
			// What a lane was at when the subscription escalated was cancelled, and
			// comes again, whatever the courier had done by then.
			if m.n == last[m.depot] {
				continue
			}
			seen++
			ordered = ordered && m.n > last[m.depot]
			last[m.depot] = m.n
		}
	}
	system.Root.Send(pid, &closeShop{})
	for range 2 {
		if done := (<-events).(*actors.Done); done.Err != nil {
			return done.Err
		}
	}
	restarts, err := system.Root.RequestFuture(pid, &howManyRestarts{}, time.Minute).Result()
	if err != nil {
		return err
	}
	if err := system.Root.StopFuture(pid).Wait(); err != nil {
		return err
	}
	fmt.Fprintf(out, "orders: %d, their sum %d\n", orders, sum)
	fmt.Fprintf(out, "parcels: %d, in order: %t, after %d restart of the subscription\n", seen, ordered, restarts)
	fmt.Fprintf(out, "left on the queues: %d\n", s.orders.Stats().Ready+s.parcels.Stats().Ready+s.dead.Stats().Ready)
	return nil
}
