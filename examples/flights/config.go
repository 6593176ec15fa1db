package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// What isn't a flag.
const (
	attempts     = 5                     // before a message is dead-lettered
	backoffMin   = time.Millisecond      // between attempts
	backoffMax   = 20 * time.Millisecond // between attempts
	slowFor      = 10 * time.Millisecond // a flight of a slow aircraft takes
	outageAfter  = 50 * time.Millisecond // see actors.Options.OutageAfter
	publishBatch = 500
)

// config is what the flags say.
type config struct {
	input, key           string
	dispatch             string
	lanes, credit        int
	errorRate, panicRate float64
	poison, slow         int
	undecodable          int
	seed                 uint64
	repeat               int
	transport            string
	purge                bool
	duplicates           int
	json                 bool
	verbose              bool
	given                map[string]bool // the flags that were, by name
}

// errHelp says that only help was asked for, and given.
var errHelp = errors.New("help")

// parse reads the command line. What it refuses it explains on stderr.
func parse(args []string, stderr io.Writer) (*config, error) {
	c := &config{}
	f := flag.NewFlagSet("flights", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&c.input, "input", "", "a file of JSON lines, gzipped or not; the flights of January 2013 when empty")
	f.StringVar(&c.key, "key", defaultKey, "the field that holds a line's key; \"NA\", \"\" and null are keyless")
	f.StringVar(&c.dispatch, "dispatch", "bykey", "sequential: one at a time; bykey: each key on one of the lanes;\nperkey: each key on any free lane; workers: no order at all")
	f.IntVar(&c.lanes, "lanes", 8, "how many handlers run at the same time (sequential: one)")
	f.IntVar(&c.credit, "credit", 256, "how many messages may be held at once")
	f.Float64Var(&c.errorRate, "error-rate", 0.02, "the share of attempts that fail, 0 to 1")
	f.Float64Var(&c.panicRate, "panic-rate", 0.005, "the share of attempts that panic, 0 to 1")
	f.IntVar(&c.poison, "poison", 1, "how many keys fail in every attempt")
	f.IntVar(&c.slow, "slow", 1, fmt.Sprintf("how many keys take %v for each message", slowFor))
	f.IntVar(&c.undecodable, "undecodable", 5, "how many messages have a broken body")
	f.Uint64Var(&c.seed, "seed", 1, "decides which keys and messages fail")
	f.IntVar(&c.repeat, "repeat", 1, "how many times the input is published (a message takes about 300 bytes of memory)")
	f.StringVar(&c.transport, "transport", "memory", "memory,\namqp://user:password@host:port/queue?hostname=virtual-host or\nsqs://host:port/queue[.fifo]; dead letters go to queue.dead (SQS: queue-dead[.fifo])")
	f.BoolVar(&c.purge, "purge", false, "consume what an earlier run has left in the queue, instead of stopping")
	f.IntVar(&c.duplicates, "duplicates", 0, "how many duplicates are allowed: the bound of a fault that you cause")
	f.BoolVar(&c.json, "json", false, "print the report as one JSON object, last on standard output")
	f.BoolVar(&c.verbose, "v", false, "log what the subscription does to standard error")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, errHelp
		}
		return nil, err // it was printed
	}
	c.given = map[string]bool{}
	f.Visit(func(one *flag.Flag) { c.given[one.Name] = true })
	if err := c.check(f.Args()); err != nil {
		fmt.Fprintln(stderr, err)
		return nil, err
	}
	return c, nil
}

// dispatches are the modes.
var dispatches = []string{"sequential", "workers", "bykey", "perkey"}

func (c *config) check(rest []string) error {
	bad := func(name string, value any, want string) error {
		return fmt.Errorf("-%s %v: %s", name, value, want)
	}
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q: everything is a flag", rest[0])
	}
	known := false
	for _, d := range dispatches {
		known = known || c.dispatch == d
	}
	switch {
	case !known:
		return bad("dispatch", c.dispatch, "must be one of "+strings.Join(dispatches, ", "))
	case c.key == "":
		return bad("key", `""`, "must name a field of the input")
	case c.lanes < 1 || c.lanes > 4096:
		return bad("lanes", c.lanes, "must be 1 to 4096")
	case c.credit < 1 || c.credit > 100_000:
		return bad("credit", c.credit, "must be 1 to 100000")
	case !(c.errorRate >= 0 && c.errorRate <= 1):
		return bad("error-rate", c.errorRate, "must be 0 to 1")
	case !(c.panicRate >= 0 && c.panicRate <= 1):
		return bad("panic-rate", c.panicRate, "must be 0 to 1")
	case c.errorRate+c.panicRate > 1:
		return bad("panic-rate", c.panicRate, "must leave room: with -error-rate it is more than 1")
	case c.poison < 0:
		return bad("poison", c.poison, "must be at least 0")
	case c.slow < 0:
		return bad("slow", c.slow, "must be at least 0")
	case c.undecodable < 0:
		return bad("undecodable", c.undecodable, "must be at least 0")
	case c.duplicates < 0:
		return bad("duplicates", c.duplicates, "must be at least 0")
	case c.repeat < 1 || c.repeat > 1000:
		return bad("repeat", c.repeat, "must be 1 to 1000")
	}
	return nil
}

// checkInput refuses faults that the input has no room for. Defaults shrink instead.
func (c *config) checkInput(events int, f *faults) error {
	for _, x := range []struct {
		flag        string
		asked, have int
		want        string
	}{
		{"undecodable", c.undecodable, len(f.undecodable), fmt.Sprintf("at most half of the %d messages", events*c.repeat)},
		{"poison", c.poison, len(f.poison), "one for each key"},
		{"slow", c.slow, len(f.slow), "one for each key that isn't poisonous"},
	} {
		if x.have < x.asked && c.given[x.flag] {
			return &transport.OptionError{Field: "-" + x.flag, Value: x.asked, Want: fmt.Sprintf("must be at most %d with this input: %s", x.have, x.want)}
		}
	}
	return nil
}

// window bounds how many messages are published and not decided yet. Well above
// the credit, so that the queue never runs dry; bounded, so that the time from
// publish to handled says something about handling.
func (c *config) window() int { return max(4*c.credit, 2000) }

// ordered reports whether the mode keeps the order of a key.
func (c *config) ordered() bool { return c.dispatch != "workers" }
