// Package measure runs contenders beside each other in one process and says how
// they compare: in every round each has one pass, in turn, so that whatever else
// the machine does hits them alike; what counts is the median of the rounds'
// ratios, with its quartiles.
package measure

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"
)

// Pass is one measured consumption, or publishing, of messages.
type Pass struct {
	Messages  int
	Took, CPU time.Duration // CPU is this process's, user and system
	Extra     map[string]float64
}

// Trial is one pass that is ready to run.
type Trial struct {
	Messages int
	// Run is what is measured.
	Run func(ctx context.Context) error
	// Extra gives more figures when Run has returned. Nil: none.
	Extra func() map[string]float64
	// Finish takes down what Run used and checks that nothing is left, outside
	// the clock. It is called also when Run failed. Nil: nothing to do.
	Finish func(ctx context.Context) error
}

// Contender is one way to do the work.
type Contender struct {
	Name string
	// Setup prepares a pass outside the clock.
	Setup func(ctx context.Context) (Trial, error)
}

// Settings are every command's flags.
type Settings struct {
	Rounds  int
	Warmup  bool
	Only    string
	Profile string
	Timeout time.Duration
	only    *regexp.Regexp
}

// Flags registers the settings; rounds is the command's default.
func Flags(fs *flag.FlagSet, rounds int) *Settings {
	s := &Settings{}
	fs.IntVar(&s.Rounds, "rounds", rounds, "how many rounds; each runs every contender once, and gives one ratio of each pair")
	fs.BoolVar(&s.Warmup, "warmup", true, "run each contender once before the rounds, unmeasured: a server that has just started is slow")
	fs.StringVar(&s.Only, "only", "", "run only contenders whose name matches this regular expression")
	fs.StringVar(&s.Profile, "profile", "", "after the rounds, run each contender once more and write its CPU profile to this directory")
	fs.DurationVar(&s.Timeout, "timeout", 5*time.Minute, "the longest that one pass may take")
	return s
}

// Check validates the settings.
func (s *Settings) Check() error {
	if s.Rounds < 1 || s.Rounds > 1000 {
		return fmt.Errorf("-rounds %d: must be 1 to 1000", s.Rounds)
	}
	if s.Timeout < time.Second {
		return fmt.Errorf("-timeout %v: must be at least 1s", s.Timeout)
	}
	re, err := regexp.Compile(s.Only)
	if err != nil {
		return fmt.Errorf("-only %q: %w", s.Only, err)
	}
	s.only = re
	if s.Profile != "" {
		return os.MkdirAll(s.Profile, 0o755)
	}
	return nil
}

// Compare runs the contenders and gives their passes, round by round.
func (s *Settings) Compare(ctx context.Context, title string, cs ...Contender) (*Result, error) {
	r := &Result{Title: title, passes: map[string][]Pass{}}
	var chosen []Contender
	for _, c := range cs {
		if s.only == nil || s.only.MatchString(c.Name) {
			chosen = append(chosen, c)
			r.names = append(r.names, c.Name)
		}
	}
	if s.Warmup {
		for _, c := range chosen {
			if _, err := s.pass(ctx, c, nil); err != nil {
				return nil, fmt.Errorf("%s: %s, warming up: %w", title, c.Name, err)
			}
		}
	}
	for round := range s.Rounds {
		for i := range chosen {
			// Each round begins with another one: nobody always runs behind
			// the same neighbour.
			c := chosen[(i+round)%len(chosen)]
			p, err := s.pass(ctx, c, nil)
			if err != nil {
				return nil, fmt.Errorf("%s: %s, round %d: %w", title, c.Name, round+1, err)
			}
			r.passes[c.Name] = append(r.passes[c.Name], p)
			fmt.Fprintf(os.Stderr, "  %s, round %d of %d: %s: %d messages in %v, CPU %v\n",
				title, round+1, s.Rounds, c.Name, p.Messages, p.Took.Round(time.Millisecond), p.CPU.Round(time.Millisecond))
		}
	}
	if s.Profile == "" {
		return r, nil
	}
	for _, c := range chosen {
		if err := s.profile(ctx, title, c); err != nil {
			return nil, fmt.Errorf("%s: %s, profiled: %w", title, c.Name, err)
		}
	}
	return r, nil
}

func (s *Settings) pass(ctx context.Context, c Contender, profile *os.File) (p Pass, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	t, err := c.Setup(ctx)
	if err != nil {
		return p, err
	}
	if t.Finish != nil {
		defer func() {
			if ferr := t.Finish(ctx); err == nil {
				err = ferr
			}
		}()
	}
	runtime.GC() // a predecessor's garbage is not this one's cost
	if profile != nil {
		if err := pprof.StartCPUProfile(profile); err != nil {
			return p, err
		}
		defer pprof.StopCPUProfile()
	}
	used, began := CPU(), time.Now()
	err = t.Run(ctx)
	p = Pass{Messages: t.Messages, Took: time.Since(began), CPU: CPU() - used}
	if err == nil && t.Extra != nil {
		p.Extra = t.Extra()
	}
	return p, err
}

func (s *Settings) profile(ctx context.Context, title string, c Contender) error {
	name := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(title+" "+c.Name), "-")
	f, err := os.Create(filepath.Join(s.Profile, strings.Trim(name, "-")+".pprof"))
	if err != nil {
		return err
	}
	_, err = s.pass(ctx, c, f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
