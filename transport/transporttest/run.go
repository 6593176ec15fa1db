package transporttest

import (
	"testing"
	"testing/synctest"

	"github.com/keylanes/keylanes/transport"
)

// scenario is one thing that a transport has to do.
type scenario struct {
	name string
	need Need
	run  func(f *fixture)
}

// topic is a file's scenarios.
type topic struct {
	name      string
	scenarios []scenario
}

// topics are the suite, in the order in which it runs. The first looks for
// goroutines left over, and so runs alone.
var topics = []topic{
	{"leaks", leakScenarios},
	{"order", orderScenarios},
	{"credit", creditScenarios},
	{"settle", settleScenarios},
	{"close", closeScenarios},
	{"leases", leaseScenarios},
	{"counts", countScenarios},
	{"abandon", abandonScenarios},
	{"groups", groupScenarios},
	{"deadletter", deadLetterScenarios},
	{"loss", lossScenarios},
	{"publish", publishScenarios},
	{"concurrency", concurrencyScenarios},
}

// Run runs the whole suite, each scenario as a subtest on a queue of its own.
func Run(t *testing.T, harness Harness) {
	t.Helper()
	if harness.New == nil {
		t.Fatal("transporttest: Harness.New is nil: give a function that makes a queue")
	}
	h := harness.WithDefaults()
	known := map[string]bool{}
	for _, tp := range topics {
		for _, s := range tp.scenarios {
			known[tp.name+"/"+s.name] = true
		}
	}
	for name := range h.Skip {
		if !known[name] {
			t.Errorf("transporttest: Harness.Skip names %q, which the suite doesn't have", name)
		}
	}
	for _, tp := range topics {
		t.Run(tp.name, func(t *testing.T) {
			for _, s := range tp.scenarios {
				t.Run(s.name, func(t *testing.T) {
					if why := h.Skip[tp.name+"/"+s.name]; why != "" {
						t.Skip(why)
					}
					if !h.Serial && tp.name != "leaks" {
						t.Parallel()
					}
					h.Scenario(t, func(t testing.TB, skip func(why string)) { runScenario(t, h, s, skip) })
				})
			}
		})
	}
}

// Scenario runs one scenario, in a bubble if Harness.Bubble says so. With the
// function that run is given it skips the scenario, and says why.
func (h *Harness) Scenario(t *testing.T, run func(t testing.TB, skip func(why string))) {
	t.Helper()
	if !h.Bubble {
		run(t, func(why string) { t.Skip(why) })
		return
	}
	why := "" // a bubble's T doesn't pass its skip on
	synctest.Test(t, func(t *testing.T) {
		run(t, func(w string) {
			why = w
			t.Skip(w)
		})
	})
	if why != "" {
		t.Skip(why)
	}
}

// runScenario runs s on a new queue.
func runScenario(t testing.TB, h *Harness, s scenario, skip func(why string)) {
	q := h.New(t, s.need)
	if q == nil || q.Source == nil || q.Publisher == nil {
		t.Fatal("transporttest: Harness.New gave no queue, source or publisher")
	}
	f := &fixture{TB: t, h: h, skip: skip, q: q, traits: q.Source.Traits(), exact: q.Source.Traits().Ordered}
	t.Cleanup(f.finish)
	if f.traits.MaxReceive < 1 {
		t.Fatalf("Traits.MaxReceive is %d, must be at least 1", f.traits.MaxReceive)
	}
	s.run(f)
}

// skipUnless skips the scenario unless ok, and says why.
func (f *fixture) skipUnless(ok bool, why string) {
	f.Helper()
	if !ok {
		f.skip(why)
	}
}

// accept is the outcome that most scenarios end with.
var accept = transport.Outcome{Kind: transport.Accept}
