package keylanes_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/codec"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

type order struct {
	Customer string
	Item     string
}

var errDeclined = errors.New("card declined")

// A queue of orders, one lane for each customer: an order that fails holds back
// its own customer's only, and one that can't succeed ends in the dead letters.
func ExampleRun() {
	broker := memory.New(nil)
	orders, _ := broker.Queue("orders", nil)
	dead, _ := broker.Queue("orders.dead", nil)
	ctx, stop := context.WithCancel(context.Background())
	for _, o := range []order{{"ada", "book"}, {"ada", "lamp"}, {"bob", "yacht"}, {"ada", "desk"}} {
		m, _ := codec.JSON.Encode(o)
		m.Key = o.Customer
		_ = orders.Publisher().Publish(ctx, m)
	}

	left := 4
	handle := func(_ context.Context, o order, _ *keylanes.Delivery) error {
		if left--; left == 0 {
			defer stop()
		}
		if o.Item == "yacht" {
			return supervision.With(errDeclined, supervision.DeadLetter("declined", o.Customer))
		}
		fmt.Println(o.Customer, "gets a", o.Item)
		return nil
	}
	err := keylanes.Run(ctx, orders.Source(), transport.Typed(codec.JSON, handle), &keylanes.Options{
		DeadLetter: dead.Publisher(),
		Logger:     slog.New(slog.DiscardHandler),
	})
	fmt.Println("drained:", err)
	for _, m := range dead.Messages() {
		fmt.Println("dead:", string(m.Body), m.Headers[transport.HeaderReason])
	}
	// Output:
	// ada gets a book
	// ada gets a lamp
	// ada gets a desk
	// drained: <nil>
	// dead: {"Customer":"bob","Item":"yacht"} declined
}
