package oracle_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// A consumer that takes the second message of a key before the first breaks the
// promise of order.
func Example() {
	ctx := context.Background()
	queue, err := memory.New(nil).Queue("orders", nil)
	if err != nil {
		panic(err)
	}
	log := oracle.New()
	err = log.Publisher(queue.Publisher()).Publish(ctx,
		transport.Message{ID: "first", Key: "customer 7"},
		transport.Message{ID: "second", Key: "customer 7"})
	if err != nil {
		panic(err)
	}

	handler := transport.Chain(transport.HandlerFunc(func(context.Context, *transport.Delivery) error {
		return nil
	}), log.Middleware())
	messages := queue.Messages()
	for _, i := range []int{1, 0} { // the wrong order
		if err := handler.Handle(ctx, &transport.Delivery{Message: messages[i]}); err != nil {
			panic(err)
		}
	}

	verdict := log.Check(oracle.Rules{})
	fmt.Println("published", verdict.Published, "succeeded", verdict.Succeeded, "kept", verdict.OK())
	for _, v := range verdict.Violations {
		what, _, _ := strings.Cut(v.Detail, ", which") // without the times
		fmt.Printf("%s, key %q: %s\n", v.Promise, v.Key, what)
	}
	// Output:
	// published 2 succeeded 2 kept false
	// order, key "customer 7": "second" (#2) started before "first" (#1)
}
