// Command perkey keeps one actor for each account: an account's state lives in its
// actor, its payments arrive in order, and different accounts run side by side. It
// needs no broker.
//
// An account's actor is made for its first payment, is made anew when it panics,
// and goes when the account has been quiet for a while: so its state has to be
// rebuilt from somewhere, here from a ledger.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "perkey:", err)
		os.Exit(1)
	}
}

const (
	accounts = 20
	payments = 400
)

// ledger is what outlives an actor: a database, in real life.
type ledger struct {
	mu       sync.Mutex
	balances map[string]int
	last     map[string]int // the last payment that was booked, so that repeats do no harm
	booked   int
	done     func()
}

func (l *ledger) load(account string) (balance, last int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.balances[account], l.last[account]
}

func (l *ledger) store(account string, balance, last int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.balances[account], l.last[account] = balance, last
	if l.booked++; l.booked == payments {
		l.done()
	}
}

// account is the actor of one account. Its fields need no lock.
type account struct {
	ledger        *ledger
	loaded        bool
	balance, last int
}

// Receive implements actor.Actor.
func (a *account) Receive(ctx actor.Context) {
	w, ok := ctx.Message().(*actors.Work)
	if !ok {
		return
	}
	if !a.loaded {
		a.loaded = true
		a.balance, a.last = a.ledger.load(w.Delivery.Key)
	}
	n, err := strconv.Atoi(string(w.Delivery.Body))
	if err != nil {
		ctx.Respond(supervision.With(err, supervision.DeadLetter("not a payment", string(w.Delivery.Body))))
		return
	}
	if n == 123 && w.Attempt == 1 {
		a.balance = -1 // what a panic leaves behind is gone with the actor
		panic("a bug in the account")
	}
	if n > a.last {
		a.balance, a.last = a.balance+n, n
		a.ledger.store(w.Delivery.Key, a.balance, a.last)
	}
	ctx.Respond(actors.Accepted{})
}

func run(out io.Writer) error {
	broker := memory.New(nil)
	queue, err := broker.Queue("payments", nil)
	if err != nil {
		return err
	}
	dead, err := broker.Queue("payments.dead", nil)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := queue.Publisher().Publish(ctx, transport.Message{ID: "odd", Key: "account-0", Body: []byte("ten")}); err != nil {
		return err
	}
	want := map[string]int{}
	for n := 1; n <= payments; n++ {
		key := fmt.Sprint("account-", n%accounts)
		want[key] += n
		if err := queue.Publisher().Publish(ctx, transport.Message{ID: fmt.Sprint("p", n), Key: key, Body: []byte(strconv.Itoa(n))}); err != nil {
			return err
		}
	}

	l := &ledger{balances: map[string]int{}, last: map[string]int{}, done: stop}
	props := actor.PropsFromProducer(func() actor.Actor { return &account{ledger: l} })
	template, err := actors.LaneActor(queue.Source(), props, &keylanes.Options{
		Dispatch: keylanes.PerKey(4), DeadLetter: dead.Publisher(), Logger: slog.New(slog.DiscardHandler),
		MaxLanes: 256, // accounts with an actor at a time
	})
	if err != nil {
		return err
	}
	if err := actors.RunProps(ctx, template); err != nil {
		return err
	}
	right := 0
	for key, sum := range want {
		if l.balances[key] == sum {
			right++
		}
	}
	fmt.Fprintf(out, "%d payments booked, %d of %d balances right\n", l.booked, right, accounts)
	for _, m := range dead.Messages() {
		fmt.Fprintf(out, "dead: %s of %s, %v\n", m.Body, m.Key, m.Headers[transport.HeaderReason])
	}
	return nil
}
