package plansim

import (
	"flag"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

var seed = flag.Uint64("seed", 0, "the schedule that TestReplay runs")

// raceEnabled is set in race_test.go.
var raceEnabled bool

// TestSimulation runs random schedules for KEYLANES_SIM_BUDGET (5s when unset),
// or until KEYLANES_SIM_STEPS steps are done, from KEYLANES_SIM_SEED on (random
// when unset). One goroutine: it isn't parallel, so that it has a processor.
func TestSimulation(t *testing.T) {
	budget := fromEnv(t, "KEYLANES_SIM_BUDGET", 5*time.Second, time.ParseDuration)
	steps := fromEnv(t, "KEYLANES_SIM_STEPS", 0, parseInt)
	first := fromEnv(t, "KEYLANES_SIM_SEED", rand.Uint64(), parseSeed)

	w, seeds := newWorld(), rnd{first}
	start, schedules, told := time.Now(), 0, 0
	for ; ; schedules++ {
		if steps > 0 && w.steps >= steps {
			break
		}
		if steps == 0 && schedules%64 == 0 && time.Since(start) >= budget {
			break
		}
		if progress := w.steps / 100_000_000; progress > told {
			told = progress
			t.Logf("%d steps after %v", w.steps, time.Since(start).Round(time.Second))
		}
		s := scheduleOf(seeds.next())
		if v := w.run(&s); v != nil {
			t.Logf("%d schedules, %d steps before it, from seed %d", schedules, w.steps, first)
			brokenBy(t, w, s, v)
		}
	}
	took := time.Since(start)
	t.Logf("%d schedules, %d steps in %v: %.0f steps a second, first seed %d",
		schedules, w.steps, took.Round(time.Millisecond), float64(w.steps)/took.Seconds(), first)
	t.Logf("of which: %v", &w.tally)
	if floor := int(50_000 * budget / time.Minute); raceEnabled {
		t.Logf("the floor of %d schedules isn't asked for: the race detector is on", floor)
	} else if steps == 0 && schedules < floor {
		t.Errorf("%d schedules in %v, want at least %d: the simulation has become slow, or the machine is busy", schedules, budget, floor)
	}
}

// brokenBy fails the test with the shortest story that breaks the same promise.
func brokenBy(t *testing.T, w *world, s schedule, v *violation) {
	t.Helper()
	short, v := shrink(w, s, v)
	t.Fatalf("a promise is broken: %v\n\n%s\n\nReplay it with\n  go test ./actors/internal/plansim -run '^TestReplay$' -v -seed=%d",
		v, tellStory(w, short), s.seed)
}

// TestReplay runs the schedule of -seed, and tells its shrunk story when it
// breaks a promise.
func TestReplay(t *testing.T) {
	if *seed == 0 {
		t.Skip("nothing to replay: no -seed is given")
	}
	w, s := newWorld(), scheduleOf(*seed)
	t.Log(&s.scenario)
	if v := w.run(&s); v != nil {
		brokenBy(t, w, s, v)
	}
}

// A schedule is its seed: the same words, the same steps, the same end.
func TestScheduleReplays(t *testing.T) {
	t.Parallel()
	a, b := newWorld(), newWorld()
	for seed := uint64(1); seed <= 200; seed++ {
		s := scheduleOf(seed)
		if v := a.run(&s); v != nil {
			brokenBy(t, a, s, v)
		}
		again := scheduleOf(seed)
		again.materialize()
		_ = b.run(&scheduleSmall) // what came before must not matter
		b.steps, b.tally = a.steps, a.tally
		if one, two := tellStory(a, s), tellStory(b, again); one != two {
			t.Fatalf("seed %d: two stories\n%s\n\n%s", seed, one, two)
		}
	}
}

var scheduleSmall = scheduleOf(7)

// The simulation gets everywhere: each thing that the planner must cope with
// happens, also in the short time that a test has.
func TestSimulationReachesEverything(t *testing.T) {
	t.Parallel()
	w, seeds := newWorld(), rnd{1}
	for range 4000 {
		s := scheduleOf(seeds.next())
		if v := w.run(&s); v != nil {
			brokenBy(t, w, s, v)
		}
	}
	for k, n := range w.tally {
		if n < 10 {
			t.Errorf("in 4000 schedules: %s %d times", tallyNames[k], n)
		}
	}
}

func parseInt(s string) (int, error)     { return strconv.Atoi(s) }
func parseSeed(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }

func fromEnv[T any](t *testing.T, name string, unset T, parse func(string) (T, error)) T {
	t.Helper()
	text, ok := os.LookupEnv(name)
	if !ok || text == "" {
		return unset
	}
	v, err := parse(text)
	if err != nil {
		t.Fatalf("%s = %q: %v", name, text, err)
	}
	return v
}
