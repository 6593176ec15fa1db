//go:build unix

package replicas

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs the tests, or, in a process that one of them has started, the
// consumer.
func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(replicaEnv); ok {
		os.Exit(consumerMain(text))
	}
	goleak.VerifyTestMain(m)
}
