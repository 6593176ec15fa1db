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
	// sensor-0: 40 rows, in order: true
	// sensor-1: 40 rows, in order: true
	// sensor-2: 39 rows, in order: true
	// sensor-3: 40 rows, in order: true
	// sensor-4: 40 rows, in order: true
	// dead: 7?7 of sensor-2, not a number
	// 199 rows, fewer than 100 inserts: true
}
