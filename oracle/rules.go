package oracle

import (
	"fmt"
	"sort"
	"strings"
	"time"
)

// Rules says what Check holds a log against. The zero value is the strictest:
// order by key, nothing lost, no duplicate, credit and figures not judged.
type Rules struct {
	// Unordered: handlers of one key may start in any order, but still never
	// overlap (SQS standard queues).
	Unordered bool
	// Overlapping: handlers of one key may also run at the same time (worker
	// pools). It implies Unordered.
	Overlapping bool
	// Sequential: the whole stream is one key, keyless messages too.
	Sequential bool
	// ConsumerOnly: the log has no published messages, because somebody else
	// publishes. The order is then that of the first starts, and only what was
	// started can be lost.
	ConsumerOnly bool
	// Remaining is how many messages the queue still holds at the end, as its
	// broker says: so many may be undecided. Below 0: unknown, loss isn't
	// judged.
	Remaining int
	// Duplicates is how many runs of decided messages are allowed. State the
	// bound of the fault that you caused; 0 is right without one.
	Duplicates int
	// Credit is how many deliveries one process may hold, as Log.Source counts
	// them, or as fed by Received and Settled, or Held. 0: not judged.
	Credit int
	// Left holds what remained after the drain, by name: goroutines, actors,
	// invisible messages. Every figure must be 0.
	Left map[string]int
	// Faults are the times in which a broker may hand a message to a second
	// process while the first still works on it (a lost link, a process that
	// stood still). In them, order and overlap between different processes are
	// excused; within one process they never are.
	Faults []Window
	// Skew is how far the processes' clocks may differ: events of different
	// processes that are nearer than that aren't judged against each other.
	// Default 0: one machine.
	Skew time.Duration
	// MaxViolations bounds how many violations of each promise are kept; all
	// are counted. Default 10.
	MaxViolations int
}

// Window is a span of time.
type Window struct{ From, To time.Time }

// Promise names what a violation breaks.
type Promise string

// The promises.
const (
	Overlap    Promise = "overlap"
	Order      Promise = "order"
	Loss       Promise = "loss"
	Duplicates Promise = "duplicates"
	Unseen     Promise = "unseen"
	Credit     Promise = "credit"
	Left       Promise = "left"
	Identified Promise = "identity"
)

// Violation is one broken promise.
type Violation struct {
	Promise Promise `json:"promise"`
	Key     string  `json:"key,omitempty"`
	// IDs are the messages: the offender first, then the one it offends.
	IDs []string `json:"ids,omitempty"`
	// At is when: the start of the offending run where there is one.
	At time.Time `json:"at,omitzero"`
	// Detail says what happened, with sequence numbers and times.
	Detail string `json:"detail"`
}

// String gives the violation in one line.
func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", v.Promise)
	if v.Key != "" {
		fmt.Fprintf(&b, "key %q: ", v.Key)
	}
	b.WriteString(v.Detail)
	if !v.At.IsZero() {
		fmt.Fprintf(&b, ", at %s", stamp(v.At))
	}
	return b.String()
}

// Verdict is what Check found. Each message counts once under Succeeded,
// DeadLettered or AcceptedAnyway, by what decided it first.
type Verdict struct {
	Published      int `json:"published"`   // distinct, confirmed messages
	Unconfirmed    int `json:"unconfirmed"` // published, but perhaps not arrived
	Succeeded      int `json:"succeeded"`
	DeadLettered   int `json:"dead_lettered"`
	AcceptedAnyway int `json:"accepted_anyway"`
	Undecided      int `json:"undecided"` // confirmed or started, and not decided
	Started        int `json:"started"`   // runs of handlers
	Failed         int `json:"failed"`    // of these
	Panicked       int `json:"panicked"`  // of these
	Retries        int `json:"retries"`   // runs of undecided messages after their first
	Duplicates     int `json:"duplicates"`
	// DuplicateCopies counts dead-letter copies beyond a message's first.
	DuplicateCopies int `json:"duplicate_copies"`
	Returned        int `json:"returned"`
	LeaseLost       int `json:"lease_lost"`
	// Excused counts order and overlap between processes that Rules.Faults or
	// Rules.Skew excused.
	Excused   int `json:"excused"`
	MostHeld  int `json:"most_held"`
	Processes int `json:"processes"`
	// Counts holds the number of violations of each broken promise; Violations
	// the first of them.
	Counts     map[Promise]int `json:"counts"`
	Violations []Violation     `json:"violations"`
}

// OK reports whether every promise was kept.
func (v Verdict) OK() bool { return len(v.Counts) == 0 }

// Total counts the violations.
func (v Verdict) Total() int {
	n := 0
	for _, c := range v.Counts {
		n += c
	}
	return n
}

// Err is nil when every promise was kept, else an error that lists the
// violations.
func (v Verdict) Err() error {
	if v.OK() {
		return nil
	}
	return fmt.Errorf("oracle: %s", v.violations())
}

// String gives the figures and every kept violation, over several lines.
func (v Verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "published %d = succeeded %d + dead-lettered %d", v.Published, v.Succeeded, v.DeadLettered)
	if v.AcceptedAnyway > 0 {
		fmt.Fprintf(&b, " + accepted anyway %d", v.AcceptedAnyway)
	}
	if v.Undecided > 0 {
		fmt.Fprintf(&b, " + undecided %d", v.Undecided)
	}
	fmt.Fprintf(&b, "\nruns %d: %d failed, %d panicked, %d retries, %d duplicates", v.Started, v.Failed, v.Panicked, v.Retries, v.Duplicates)
	if v.Excused > 0 {
		fmt.Fprintf(&b, "; %d excused between processes", v.Excused)
	}
	b.WriteByte('\n')
	if v.OK() {
		b.WriteString("every promise kept")
	} else {
		b.WriteString(v.violations())
	}
	return b.String()
}

func (v Verdict) violations() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d violation(s):", v.Total())
	names := make([]string, 0, len(v.Counts))
	for p, n := range v.Counts {
		names = append(names, fmt.Sprintf(" %s %d", p, n))
	}
	sort.Strings(names)
	b.WriteString(strings.Join(names, ","))
	for _, x := range v.Violations {
		b.WriteString("\n  ")
		b.WriteString(x.String())
	}
	if more := v.Total() - len(v.Violations); more > 0 {
		fmt.Fprintf(&b, "\n  ... and %d more", more)
	}
	return b.String()
}

// stamp prints a time of day to the microsecond: violations are about what is
// near in time.
func stamp(t time.Time) string { return t.UTC().Format("15:04:05.000000") }
