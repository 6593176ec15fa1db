package main

import (
	"context"
	"crypto/rand"
	"net/url"
	"os"
	"strings"
	"testing"
)

// address gives -transport for a queue of the test's own on the broker whose
// url the variable holds. Without one the test is skipped, except where brokers
// are required.
func address(t *testing.T, variable, queue string) string {
	t.Helper()
	broker := os.Getenv(variable)
	if broker == "" {
		why := variable + " isn't set: the brokers that scripts/test.sh starts set it"
		if os.Getenv("CI") == "true" || os.Getenv("KEYLANES_REQUIRE_BROKERS") == "1" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	if u.Scheme == "http" {
		u.Scheme = "sqs"
	}
	u.Path = "/" + strings.Replace(queue, "*", rand.Text()[:10], 1)
	return u.String()
}

// brokers are the real ones.
var brokers = []struct {
	name, variable, queue string
	ordered               bool
}{
	{"Artemis", "KEYLANES_AMQP_URL", "app.flights.*", true},
	{"SQS FIFO", "KEYLANES_SQS_URL", "flights-*.fifo", true},
	{"SQS standard", "KEYLANES_SQS_URL", "flights-*", false},
}

// The judges themselves work on every broker: identities come through, and what
// is left in the queue is found.
func TestPlainConsumerOnBrokers(t *testing.T) {
	t.Parallel()
	for _, b := range brokers {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			to := address(t, b.variable, b.queue)
			args := []string{"-transport", to, "-input", input(t, 200, 10), "-key", "customer", "-slow", "0", "-credit", "32"}
			r := runWith(context.Background(), t, consumeWith(none), args...)
			if r.status != 0 || r.report.Published != 200 || r.report.LeftInQueue != 0 || (r.report.DigestsEqual != nil) != b.ordered {
				t.Fatalf("status %d: %s%s", r.status, r.stderr, r.stdout)
			}
			if strings.Contains(r.stdout, "admin:admin") {
				t.Error("the report shows a password")
			}
		})
	}
}
