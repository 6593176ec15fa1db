//go:build unix

package replicas

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// replicaEnv makes a process of this binary a consumer; its value is a
// replicaConfig.
const replicaEnv = "KEYLANES_REPLICA"

// replicaConfig is all that a consumer process is told.
type replicaConfig struct {
	Broker string // name of the broker, see brokers
	URL    string
	Queue  string
	Log    string // path of its oracle log
	Credit int
}

// consumerMain consumes until SIGTERM, or until the parent is gone, and gives
// the exit status: 0 after a clean drain only.
func consumerMain(text string) int {
	var c replicaConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return complain(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // a parent that died leaves no process behind
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	src, err := brokers[c.Broker].source(c)
	if err != nil {
		return complain(err)
	}
	log, err := oracle.Create(c.Log)
	if err != nil {
		return complain(err)
	}
	err = keylanes.Run(ctx, announced{log.Source(src)}, handler(), &keylanes.Options{
		Dispatch:   keylanes.ByKey(4),
		Credit:     c.Credit,
		Middleware: []keylanes.Middleware{report, log.Middleware()},
		Policy:     supervision.RetryForever(supervision.Backoff{}),
	})
	if cerr := log.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return complain(err)
	}
	return 0
}

// openedLine tells the parent that a receiver is open.
const openedLine = "opened"

type announced struct{ transport.Source }

// Open implements transport.Source.
func (a announced) Open(ctx context.Context, s transport.Sink) (transport.Receiver, error) {
	r, err := a.Source.Open(ctx, s)
	if err == nil {
		_, err = os.Stdout.WriteString(openedLine + "\n")
	}
	return r, err
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "replica:", err)
	return 1
}

// handler works for 1 ms to 5 ms, the same for the same message.
func handler() keylanes.Handler {
	return keylanes.HandlerFunc(func(ctx context.Context, d *keylanes.Delivery) error {
		h := fnv.New32a()
		_, _ = io.WriteString(h, oracle.Identity(&d.Message))
		t := time.NewTimer(time.Millisecond + time.Duration(h.Sum32()%4000)*time.Microsecond)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// report tells the parent of each message that was handled, after the log has
// it. A line is one write, and shorter than what a pipe takes at once.
func report(next transport.Handler) transport.Handler {
	return transport.HandlerFunc(func(ctx context.Context, d *transport.Delivery) error {
		err := next.Handle(ctx, d)
		if err == nil {
			_, err = os.Stdout.WriteString(oracle.Identity(&d.Message) + "\n")
		}
		return err
	})
}
