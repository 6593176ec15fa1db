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
	h := harness.withDefaults()
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
					if !h.Bubble {
						runScenario(t, h, s, nil)
						return
					}
					why := "" // a bubble's T doesn't pass its skip on
					synctest.Test(t, func(t *testing.T) { runScenario(t, h, s, func(w string) { why = w }) })
					if why != "" {
						t.Skip(why)
					}
				})
			}
		})
	}
}

// runScenario runs s on a new queue. skipping, when given, hears why it is
// skipped.
func runScenario(t testing.TB, h *Harness, s scenario, skipping func(why string)) {
	q := h.New(t, s.need)
	if q == nil || q.Source == nil || q.Publisher == nil {
		t.Fatal("transporttest: Harness.New gave no queue, source or publisher")
	}
	f := &fixture{TB: t, h: h, skipping: skipping, q: q, traits: q.Source.Traits(), exact: q.Source.Traits().Ordered}
	t.Cleanup(f.finish)
	if f.traits.MaxReceive < 1 {
		t.Fatalf("Traits.MaxReceive is %d, must be at least 1", f.traits.MaxReceive)
	}
	s.run(f)
}

// skipUnless skips the scenario unless ok, and says why.
func (f *fixture) skipUnless(ok bool, why string) {
	f.Helper()
	if ok {
		return
	}
	if f.skipping != nil {
		f.skipping(why)
	}
	f.Skip(why)
}

// accept is the outcome that most scenarios end with.
var accept = transport.Outcome{Kind: transport.Accept}
