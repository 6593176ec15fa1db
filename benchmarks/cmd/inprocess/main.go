// Inprocess measures keylanes on its memory transport beside Watermill's
// GoChannel and router, and beside a pool of goroutines as one writes it by
// hand. It needs no broker.
//
//	go run ./cmd/inprocess            # in benchmarks/
//	go run ./cmd/inprocess -smoke     # everything once, small, in seconds
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/keylanes/keylanes/benchmarks/internal/measure"
)

const (
	lanes  = 8
	credit = 256
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "inprocess:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("inprocess", flag.ContinueOnError)
	s := measure.Flags(fs, 15)
	n := fs.Int("messages", 200_000, "messages of a pass")
	keys := fs.Int("keys", 64, "distinct keys")
	fairRounds := fs.Int("fair-rounds", 3, "rounds of the scenarios with slow keys; 0 leaves them out")
	smoke := fs.Bool("smoke", false, "everything once with little work, to see that it runs; the figures mean nothing")
	if err := fs.Parse(args); err != nil {
		return err
	}
	hot, ahead := hotKey, slowAhead
	if *smoke {
		s.Rounds, s.Warmup, *n, *fairRounds = 1, false, 2000, 1
		hot, ahead = hotKeySmoke, slowAheadSmoke
	}
	if err := s.Check(); err != nil {
		return err
	}
	if *n < 1 || *keys < 1 || *fairRounds < 0 {
		return fmt.Errorf("-messages and -keys must be at least 1, -fair-rounds at least 0")
	}
	fmt.Printf("in process: %d messages of 64 B, %d keys, %d rounds. %s\n\n", *n, *keys, s.Rounds, measure.Machine())
	if err := prefilled(ctx, s, *n, *keys); err != nil {
		return err
	}
	if err := publishing(ctx, s, *n, *keys); err != nil {
		return err
	}
	if *fairRounds > 0 {
		fair := *s
		fair.Rounds, fair.Warmup = *fairRounds, false
		if err := fairness(ctx, &fair, hot, ahead); err != nil {
			return err
		}
	}
	fmt.Println("load average at the end:", measure.Load())
	return nil
}

func prefilled(ctx context.Context, s *measure.Settings, n, keys int) error {
	r, err := s.Compare(ctx, "prefilled",
		measure.Contender{Name: "keylanes ByKey(8)", Setup: lanesPrefilled(byKey(lanes), n, keys)},
		measure.Contender{Name: "keylanes PerKey(8)", Setup: lanesPrefilled(perKey(lanes), n, keys)},
		measure.Contender{Name: "shard pool", Setup: poolPrefilled(n, keys)},
		measure.Contender{Name: "Watermill", Setup: watermillPrefilled(n, keys)},
	)
	if err != nil {
		return err
	}
	r.Table(os.Stdout, measure.Time, measure.Rate, measure.Cost)
	r.Ratios(os.Stdout,
		measure.Ratio{A: "keylanes ByKey(8)", B: "shard pool", Of: measure.Time},
		measure.Ratio{A: "keylanes ByKey(8)", B: "Watermill", Of: measure.Time},
		measure.Ratio{A: "keylanes ByKey(8)", B: "Watermill", Of: measure.Cost},
		measure.Ratio{A: "keylanes PerKey(8)", B: "keylanes ByKey(8)", Of: measure.Time, AtMost: 1.15},
	)
	return nil
}

func publishing(ctx context.Context, s *measure.Settings, n, keys int) error {
	r, err := s.Compare(ctx, "with publishing",
		measure.Contender{Name: "keylanes ByKey(8)", Setup: lanesPublishing(byKey(lanes), n, keys)},
		measure.Contender{Name: "keylanes PerKey(8)", Setup: lanesPublishing(perKey(lanes), n, keys)},
		measure.Contender{Name: "shard pool", Setup: poolPublishing(n, keys)},
		measure.Contender{Name: "Watermill", Setup: watermillPublishing(n, keys, false)},
		measure.Contender{Name: "Watermill, in order", Setup: watermillPublishing(n, keys, true)},
	)
	if err != nil {
		return err
	}
	r.Table(os.Stdout, measure.Time, measure.Rate, measure.Cost)
	r.Ratios(os.Stdout,
		measure.Ratio{A: "keylanes ByKey(8)", B: "shard pool", Of: measure.Time},
		measure.Ratio{A: "keylanes ByKey(8)", B: "Watermill", Of: measure.Time},
		measure.Ratio{A: "keylanes ByKey(8)", B: "Watermill, in order", Of: measure.Time},
	)
	return nil
}
