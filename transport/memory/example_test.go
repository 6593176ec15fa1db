package memory_test

import (
	"context"
	"fmt"
	"time"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// A queue like one of SQS FIFO: groups are exclusive, leases expire, and every
// hand-out counts.
func ExampleBroker_Queue() {
	b := memory.New(nil)
	q, err := b.Queue("orders.fifo", &memory.QueueOptions{FIFO: true, Lease: 30 * time.Second, CountsOnReturn: true, MaxReceive: 10})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = q.Publisher().Publish(context.Background(),
		transport.Message{Key: "customer 7", Body: []byte("first")},
		transport.Message{Key: "customer 7", Body: []byte("second")},
	)
	fmt.Println(err, q.Depth(), q.Source().Traits().GroupsExclusive)
	// Output: <nil> 2 true
}

// A fault that refuses every second settlement for a while.
func ExampleFault() {
	n := 0
	f := memory.Fault(func(op memory.Op) memory.Reply {
		if op.Kind != memory.OpSettle {
			return memory.Reply{}
		}
		if n++; n%2 == 0 {
			return memory.Reply{Err: &transport.TemporaryError{Op: "settle", Err: context.DeadlineExceeded}}
		}
		return memory.Reply{}
	})
	for range 2 {
		fmt.Println(f(memory.Op{Kind: memory.OpSettle}).Err)
	}
	// Output:
	// <nil>
	// settle: context deadline exceeded
}
