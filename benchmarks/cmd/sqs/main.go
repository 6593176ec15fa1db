// Sqs measures keylanes on SQS servers that run here (fauxqs, ElasticMQ) beside
// the loops that one writes on the AWS SDK: API calls, throughput, CPU, latency
// of a settlement, and what keeping messages invisible costs.
//
//	./run.sh sqs                        # in benchmarks/: starts both servers
//	go run ./cmd/sqs -elasticmq http://127.0.0.1:9324
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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sqs:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("sqs", flag.ContinueOnError)
	s := measure.Flags(fs, 9)
	faux := fs.String("fauxqs", "", "endpoint of a fauxqs; empty: leave it out")
	elastic := fs.String("elasticmq", "", "endpoint of an ElasticMQ; empty: leave it out")
	parts := fs.String("parts", "throughput,latency,visibility,curve", "what to measure, of throughput, latency, visibility, curve")
	n := fs.Int("messages", 10_000, "throughput: messages of a pass")
	seconds := fs.Int("seconds", 15, "latency: for how long 20 messages come each second")
	curveSeconds := fs.Int("curve-seconds", 5, "curve: for how long messages come at each rate")
	held := fs.Duration("held", 15*time.Second, "visibility: for how long 64 messages are held")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := s.Check(); err != nil {
		return err
	}
	if *n < 1 || *seconds < 1 || *curveSeconds < 1 || *held < 3*time.Second {
		return fmt.Errorf("-messages, -seconds and -curve-seconds must be at least 1, -held at least 3s")
	}
	var servers []*server
	if *faux != "" {
		servers = append(servers, connect("fauxqs", *faux))
	}
	if *elastic != "" {
		servers = append(servers, connect("ElasticMQ", *elastic))
	}
	if len(servers) == 0 {
		return fmt.Errorf("no server: give -fauxqs or -elasticmq; ./run.sh sqs starts both")
	}
	fmt.Printf("SQS, %d rounds. %s\n\n", s.Rounds, measure.Machine())
	for part := range strings.SplitSeq(*parts, ",") {
		for _, srv := range servers {
			var err error
			switch part {
			case "throughput":
				err = throughputs(ctx, s, srv, *n)
			case "latency":
				err = latency(ctx, srv, time.Duration(*seconds)*time.Second)
			case "visibility":
				err = visibility(ctx, srv, *held)
			case "curve":
				err = curve(ctx, srv, time.Duration(*curveSeconds)*time.Second)
			default:
				err = fmt.Errorf("-parts: %q is none of throughput, latency, visibility, curve", part)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", srv.name, err)
			}
		}
	}
	fmt.Println("load average at the end:", measure.Load())
	return nil
}

func queueName(suffix string) string { return "bench-" + rand.Text()[:12] + suffix }
