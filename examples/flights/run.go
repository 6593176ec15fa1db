package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/transport"
)

// consumer runs a subscription until ctx ends, and drains it.
type consumer func(ctx context.Context, src transport.Source, h transport.Handler, o consumerOptions) error

// consumerOptions are what flights asks of a subscription.
type consumerOptions struct {
	dispatch      string
	lanes, credit int
	deadLetter    transport.Publisher
	middleware    []transport.Middleware
	logger        *slog.Logger
	state         *state      // is told of retries, restarts and reasons
	log           *oracle.Log // is told of outcomes that wrappers can't see
}

// Exit statuses.
const (
	exitFine   = 0
	exitFailed = 1 // the run failed, or the oracle or the digests object
	exitUsage  = 2
)

// run is the program; ctx ends on the first Ctrl-C.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, consume consumer) int {
	c, err := parse(args, stderr)
	switch {
	case errors.Is(err, errHelp):
		return exitFine
	case err != nil:
		return exitUsage
	}
	r, err := fly(ctx, c, stderr, consume)
	if err != nil {
		fmt.Fprintln(stderr, "flights:", err)
		var wrong *transport.OptionError
		if errors.As(err, &wrong) && strings.HasPrefix(wrong.Field, "-") {
			return exitUsage
		}
		return exitFailed
	}
	if err := r.print(stdout, c.json); err != nil {
		fmt.Fprintln(stderr, "flights: print the report:", err)
		return exitFailed
	}
	if !r.OK {
		return exitFailed
	}
	return exitFine
}

// fly publishes the input, consumes it, and judges what happened.
func fly(ctx context.Context, c *config, stderr io.Writer, consume consumer) (*report, error) {
	events, err := readInput(c.input, c.key)
	if err != nil {
		return nil, err
	}
	f := plan(c, events)
	if err := c.checkInput(len(events), f); err != nil {
		return nil, err
	}
	l, err := connect(ctx, c.transport)
	if err != nil {
		return nil, err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := l.close(closing); err != nil {
			fmt.Fprintln(stderr, "flights: close:", err)
		}
	}()
	s := newState(strconv.FormatInt(time.Now().UnixNano(), 36), len(events)*c.repeat, c.window(), f, c.purge)
	log := oracle.New()
	show := startProgress(stderr, s)
	err = s.pump(ctx, c, events, l, log, stderr, consume)
	show.stop()
	if err != nil {
		return nil, err
	}
	return judge(ctx, c, events, l, s, log)
}

// pump publishes and consumes at the same time, until every message is decided
// or ctx ends.
func (s *state) pump(ctx context.Context, c *config, events []event, l *link, log *oracle.Log, stderr io.Writer, consume consumer) error {
	running, finish := context.WithCancel(ctx)
	defer finish()
	published := make(chan error, 1)
	go func() {
		err := s.publish(running, log.Publisher(l.publisher), events)
		if err == nil {
			// Only now: the last message may be decided before its publisher
			// hears that the broker has it.
			select {
			case <-s.done:
			case <-running.Done():
			}
		}
		finish()
		published <- err
	}()
	logger := slog.New(slog.DiscardHandler)
	if c.verbose {
		logger = slog.New(slog.NewTextHandler(stderr, nil))
	}
	var err error
	pprof.Do(running, pprof.Labels(runLabel, s.run), func(running context.Context) {
		err = consume(running, log.Source(l.source), s.handler(), consumerOptions{
			dispatch: c.dispatch, lanes: c.lanes, credit: c.credit,
			deadLetter: copies{log.DeadLetter(l.dead), s},
			middleware: []transport.Middleware{s.ours, log.Middleware()},
			logger:     logger, state: s, log: log,
		})
	})
	finish()
	pubErr := <-published
	switch {
	case s.foreign.Load() > 0 && !s.purge:
		return errForeign
	case err != nil:
		return err
	case pubErr != nil && !errors.Is(pubErr, context.Canceled):
		return pubErr
	case s.decided.Load() < int64(s.total()) && ctx.Err() == nil:
		return errors.New("the subscription ended before every message was decided")
	}
	return nil
}

// judge asks the oracle, makes the single-threaded pass, and writes the report.
func judge(ctx context.Context, c *config, events []event, l *link, s *state, log *oracle.Log) (*report, error) {
	cut := s.decided.Load() < int64(s.total())
	rules := oracle.Rules{
		Sequential:  c.dispatch == "sequential",
		Unordered:   !l.source.Traits().Ordered,
		Overlapping: !c.ordered(),
		Credit:      c.credit,
		Duplicates:  c.duplicates,
		Left:        map[string]int{"goroutine(s) of the subscription": s.leftGoroutines()},
	}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	left, err := l.left(asking)
	if err != nil {
		return nil, fmt.Errorf("ask what is left in the queue: %w", err)
	}
	rules.Left["invisible message(s)"] = left.invisible
	switch {
	case !cut:
		rules.Left["message(s) in the queue"] = left.waiting
	case left.atLeast:
		rules.Remaining = -1
	default:
		rules.Remaining = left.waiting + left.invisible
	}
	r := newReport(c, events, l, s, log.Check(rules), cut)
	r.LeftInQueue = left.waiting + left.invisible
	r.compare(c, events, s, l.source.Traits().Ordered)
	r.conclude()
	return r, nil
}

// runLabel marks the goroutines of a subscription: whatever they start inherits
// it.
const runLabel = "flights-run"

// leftGoroutines counts goroutines of the run's subscription that outlived it.
// One that has just been told to end is given a moment.
func (s *state) leftGoroutines() (n int) {
	label := fmt.Sprintf("%q:%q", runLabel, s.run)
	for range 50 {
		var stacks bytes.Buffer
		if pprof.Lookup("goroutine").WriteTo(&stacks, 1) != nil {
			return 0 // it writes to memory
		}
		n = 0
		// Equal stacks are one paragraph, which begins with how many there are.
		for _, g := range strings.Split(stacks.String(), "\n\n") {
			if strings.Contains(g, label) && strings.Contains(g, "keylanes/keylanes/actors.") {
				var same int
				if _, err := fmt.Sscanf(strings.TrimSpace(g), "%d @", &same); err == nil {
					n += same
				}
			}
		}
		if n == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return n
}
