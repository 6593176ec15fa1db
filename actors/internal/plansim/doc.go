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
// has a name, see check.go and effects.go.
//
// Steps of the model are also methods with plain names, so that a schedule can
// be written by hand: see fixed_test.go.
package plansim
