package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func Example() {
	if err := run(os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// orders: 100, their sum 5050
	// parcels: 60, in order: true, after 1 restart of the subscription
	// left on the queues: 0
}
