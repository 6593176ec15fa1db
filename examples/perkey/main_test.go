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
	// 400 payments booked, 20 of 20 balances right
	// dead: ten of account-0, not a payment
}
