// Package plansim drives the planner through random schedules against a model
// of a broker and of lanes, and checks every promise after each step.
//
// A schedule is a scenario (mode, lanes, kind of broker, keys, messages) and a
// list of words. Each step decodes one word: which of the things that could
// happen next does happen. So a schedule replays from its seed, and a failing
// one is shrunk by leaving words out, until the story that is left is short
// enough to read.
//
// What belongs to the planner is called through its events only. The model keeps
// its own books: what the broker has handed out, which handler really runs, which
// message is decided, what the policy said. An invariant compares the two; each
// has a name, see check.go and effects.go. When a schedule ends, nothing fails
// any more, and everything has to be decided in a bounded number of steps.
//
// Steps of the model are also methods with plain names, so that a schedule can
// be written by hand, as a tale: fixed_test.go has the interleavings that matter
// most, regress_test.go what the simulation has found, fair_test.go who waits for
// whom. mutants_test.go breaks each rule of the planner, and the simulation has
// to notice.
//
// # Running it
//
//	go test ./actors/internal/plansim -run TestSimulation -v
//
// runs for five seconds, or for KEYLANES_SIM_BUDGET (a duration), or until
// KEYLANES_SIM_STEPS steps are done, from KEYLANES_SIM_SEED on (random when
// unset). A failure prints the command that replays it.
package plansim
