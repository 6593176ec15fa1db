// Amqp measures keylanes on a real AMQP 1.0 broker (Apache ActiveMQ Artemis)
// beside the loops that one writes on go-amqp alone. The broker's user must be
// allowed to manage it: every pass has a queue of its own, which is deleted
// afterwards.
//
//	./run.sh amqp                       # in benchmarks/: starts brokers of its own
//	go run ./cmd/amqp -url amqp://admin:admin@127.0.0.1:25672
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/keylanes/keylanes/benchmarks/internal/measure"
	"github.com/keylanes/keylanes/benchmarks/internal/rawamqp"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "amqp:", err)
		os.Exit(1)
	}
}

// bench is what all parts share.
type bench struct {
	*measure.Settings
	url string
}

func run(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("amqp", flag.ContinueOnError)
	b := bench{Settings: measure.Flags(fs, 15)}
	fs.StringVar(&b.url, "url", os.Getenv("KEYLANES_AMQP_URL"), "the broker, amqp://user:password@host:port; default $KEYLANES_AMQP_URL")
	parts := fs.String("parts", "receive,publish,slowkey", "what to measure, of receive, publish, slowkey")
	n := fs.Int("messages", 200_000, "receive: messages of a pass, preloaded")
	durable := fs.String("durable", "both", "receive: true, false or both")
	sent := fs.Int("publish-messages", 20_000, "publish: messages of a pipelined pass")
	one := fs.Int("sequential-messages", 500, "publish: messages of a sequential pass")
	datasync := fs.Bool("datasync", false, "publish: say that the broker forces each write to disk (journal-datasync)")
	slowRounds := fs.Int("slowkey-rounds", 3, "slowkey: rounds; each takes some 20 s")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := b.Check(); err != nil {
		return err
	}
	if b.url == "" {
		return fmt.Errorf("no broker: give -url, or set KEYLANES_AMQP_URL; ./run.sh amqp starts one")
	}
	if *n < 1 || *sent < 1 || *one < 1 || *slowRounds < 1 {
		return fmt.Errorf("-messages, -publish-messages, -sequential-messages and -slowkey-rounds must be at least 1")
	}
	fmt.Printf("AMQP, %d rounds. %s\n\n", b.Rounds, measure.Machine())
	for part := range strings.SplitSeq(*parts, ",") {
		var err error
		switch part {
		case "receive":
			err = b.receiveBoth(ctx, *n, *durable)
		case "publish":
			err = b.publish(ctx, *sent, *one, *datasync)
		case "slowkey":
			b := b
			s := *b.Settings
			s.Rounds, s.Warmup, b.Settings = *slowRounds, false, &s
			err = b.slowKey(ctx)
		default:
			err = fmt.Errorf("-parts: %q is none of receive, publish, slowkey", part)
		}
		if err != nil {
			return err
		}
	}
	fmt.Println("load average at the end:", measure.Load())
	return nil
}

// newQueue names a queue of a pass's own, and gives what deletes it.
func (b bench) newQueue() (name string, forget func(context.Context) error) {
	name = "app.bench." + rand.Text()[:12]
	return name, func(ctx context.Context) error {
		// Also after a pass whose time is up.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return rawamqp.Delete(ctx, b.url, name)
	}
}

// fill publishes ms, and returns when the broker has confirmed all.
func (b bench) fill(ctx context.Context, queue string, durable bool, ms []transport.Message) error {
	p, err := amqp.Publisher(b.url, queue, &amqp.PublisherOptions{NonDurable: !durable})
	if err != nil {
		return err
	}
	if err := p.Publish(ctx, ms...); err != nil {
		return err
	}
	return p.Close(ctx)
}

// messages are 512 bytes each, of 64 groups.
func messages(n int) []transport.Message {
	body := make([]byte, 512)
	ms := make([]transport.Message, n)
	for i := range ms {
		ms[i] = transport.Message{Key: fmt.Sprint("g", i%64), Body: body}
	}
	return ms
}
