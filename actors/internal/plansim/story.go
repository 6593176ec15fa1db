package plansim

import (
	"fmt"
	"strings"
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
)

// story collects what happens, one line each.
type story struct{ lines []string }

func (s *story) tell(w *world, format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf("%12v  ", time.Duration(w.now))+fmt.Sprintf(format, args...))
}

func (s *story) String() string {
	if s == nil {
		return ""
	}
	return strings.Join(s.lines, "\n")
}

func (w *world) names(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "%v ", &w.hands[i])
	}
	return strings.TrimSpace(b.String())
}

func runNames(r *plan.Run) string {
	var b strings.Builder
	for _, it := range r.Items[:r.N] {
		if it == nil { // taken back within the same event
			continue
		}
		fmt.Fprintf(&b, "%v ", handOf(it))
	}
	return strings.TrimSpace(b.String())
}

func flags(d supervision.Directive) string {
	s := ""
	add := func(name string, set bool) {
		if set {
			s += ", " + name
		}
	}
	add("uncounted", d.Uncounted)
	add("restart the lane", d.RestartLane)
	add("park", d.Park)
	add("exhausted", d.Exhausted)
	return s
}
