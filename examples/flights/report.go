package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"

	"github.com/keylanes/keylanes/oracle"
)

// report is what -json prints; the package documentation describes it.
type report struct {
	OK           bool           `json:"ok"`
	CutShort     bool           `json:"cut_short"`
	Published    int            `json:"published"`
	Succeeded    int            `json:"succeeded"`
	DeadLettered int            `json:"dead_lettered"`
	Duplicates   int            `json:"duplicates"`
	Violations   int            `json:"violations"`
	DigestsEqual *bool          `json:"digests_equal"`
	AsPlanned    bool           `json:"dead_letters_as_planned"`
	Seconds      float64        `json:"seconds"`
	Throughput   float64        `json:"per_second"`
	P50          float64        `json:"p50_ms"`
	P99          float64        `json:"p99_ms"`
	Attempts     int            `json:"attempts"`
	Failed       int            `json:"failed"`
	Panicked     int            `json:"panicked"`
	Retries      int            `json:"retries"`
	LaneRestarts int            `json:"lane_restarts"`
	Reasons      map[string]int `json:"dead_letter_reasons"`
	Keys         int            `json:"keys"`
	Keyless      int            `json:"keyless"`
	MostHeld     int            `json:"most_held"`
	Credit       int            `json:"credit"`
	LeftInQueue  int            `json:"left_in_queue"`
	Purged       int            `json:"purged"`
	Dispatch     string         `json:"dispatch"`
	Lanes        int            `json:"lanes"`
	Transport    string         `json:"transport"`
	Seed         uint64         `json:"seed"`
	Busiest      []busy         `json:"busiest"`
	Objections   []string       `json:"objections"`

	verdict      oracle.Verdict
	digestNote   string
	poison, slow []string
	total        int
}

// busy is one of the busiest keys.
type busy struct {
	Key     string  `json:"key"`
	Flights int     `json:"flights"`
	Miles   float64 `json:"miles"`
	Delay   float64 `json:"delay_minutes"`
	Carried float64 `json:"carried_minutes"`
	Digest  string  `json:"digest"`
}

// newReport gathers the figures.
func newReport(c *config, events []event, l *link, s *state, v oracle.Verdict, cut bool) *report {
	keys, keyless := map[string]bool{}, 0
	for _, e := range events {
		if e.key == "" {
			keyless += c.repeat
		} else {
			keys[e.key] = true
		}
	}
	r := &report{
		CutShort: cut, Published: v.Published, Succeeded: v.Succeeded, DeadLettered: v.DeadLettered,
		Duplicates: v.Duplicates, Violations: v.Total(),
		Seconds:  float64(s.lastDecided.Load()) / 1e9,
		Attempts: v.Started, Failed: v.Failed, Panicked: v.Panicked, Retries: v.Retries,
		LaneRestarts: int(s.laneRestarts.Load()), Reasons: s.reasons,
		Keys: len(keys), Keyless: keyless, MostHeld: v.MostHeld, Credit: c.credit, Purged: int(s.foreign.Load()),
		Dispatch: c.dispatch, Lanes: c.lanes, Transport: l.name, Seed: c.seed,
		verdict: v, total: s.total(), poison: sorted(s.faults.poison), slow: sorted(s.faults.slow),
	}
	if c.dispatch == "sequential" {
		r.Lanes = 1
	}
	if r.Seconds > 0 {
		r.Throughput = float64(s.decided.Load()) / r.Seconds
	}
	r.P50, r.P99 = percentiles(s)
	r.Busiest = busiest(s.fleet, 5)
	if !v.OK() {
		for _, x := range v.Violations {
			r.Objections = append(r.Objections, x.String())
		}
	}
	return r
}

// percentiles gives the median and the 99th percentile of the time from publish
// to handled, in milliseconds.
func percentiles(s *state) (p50, p99 float64) {
	var took []int64
	for i := range s.took {
		if t := s.took[i].Load(); t > 0 {
			took = append(took, t)
		}
	}
	if len(took) == 0 {
		return 0, 0
	}
	slices.Sort(took)
	at := func(p float64) float64 { return float64(took[int(p*float64(len(took)-1))]) / 1e6 }
	return at(0.50), at(0.99)
}

func busiest(f *fleet, n int) []busy {
	all := f.all()
	list := make([]busy, 0, len(all))
	for key, a := range all {
		list = append(list, busy{key, a.flights, a.miles, a.delay, a.carried, fmt.Sprintf("%016x", a.digest)})
	}
	sort.Slice(list, func(i, j int) bool {
		if list[i].Flights != list[j].Flights {
			return list[i].Flights > list[j].Flights
		}
		return list[i].Key < list[j].Key
	})
	return list[:min(n, len(list))]
}

// compare holds the digests against the single-threaded pass, and the dead
// letters against the plan.
func (r *report) compare(c *config, events []event, s *state, ordered bool) {
	r.compareDeadLetters(c, events, s)
	switch {
	case !c.ordered():
		r.digestNote = "not compared: workers keep no order"
		return
	case !ordered:
		r.digestNote = "not compared: this queue keeps no order"
		return
	}
	want := reference(events, c.repeat, func(i int) bool {
		return s.dead[i].Load() || (r.CutShort && !s.applied[i].Load())
	})
	differ := differences(s.fleet, want)
	equal := len(differ) == 0
	r.DigestsEqual = &equal
	n := len(want.all())
	if equal {
		r.digestNote = fmt.Sprintf("all %s equal a single-threaded pass over the file less its dead letters", thousands(int64(n)))
		if r.CutShort {
			r.digestNote += ", as far as it got"
		}
		return
	}
	r.digestNote = fmt.Sprintf("%d of %d DIFFER from a single-threaded pass", len(differ), n)
	for i, key := range differ {
		if i == 5 {
			r.Objections = append(r.Objections, fmt.Sprintf("digest: ... and %d more keys", len(differ)-i))
			break
		}
		r.Objections = append(r.Objections, fmt.Sprintf("digest: key %q isn't what a single-threaded pass gives", key))
	}
}

func (r *report) compareDeadLetters(c *config, events []event, s *state) {
	planned := s.faults.deadLetters(events, c.repeat, attempts)
	missing, extra := 0, 0
	for i := range s.total() {
		switch {
		case s.dead[i].Load() && !planned[i]:
			extra++
		case !s.dead[i].Load() && planned[i] && !r.CutShort:
			missing++
		}
	}
	r.AsPlanned = missing+extra == 0
	if !r.AsPlanned {
		r.Objections = append(r.Objections, fmt.Sprintf(
			"dead letters: %d message(s) are that shouldn't be, %d aren't that should be", extra, missing))
	}
}

// conclude says whether anything objects.
func (r *report) conclude() {
	r.OK = r.verdict.OK() && r.AsPlanned && (r.DigestsEqual == nil || *r.DigestsEqual)
}

func (r *report) print(w io.Writer, asJSON bool) error {
	if err := r.table(w); err != nil || !asJSON {
		return err
	}
	return json.NewEncoder(w).Encode(r)
}

// table prints what people read.
func (r *report) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, a ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, a...)) }
	if r.CutShort {
		left := fmt.Sprintf("%s message(s) are still in the queue", thousands(int64(r.LeftInQueue)))
		row("CUT SHORT", "%s of %s messages were published; the subscription was drained; %s",
			thousands(int64(r.Published)), thousands(int64(r.total)), left)
	}
	lanes := fmt.Sprintf("%d lanes", r.Lanes)
	if r.Lanes == 1 {
		lanes = "1 lane"
	}
	row("run", "%s on %s, credit %d, %s, seed %d", r.Dispatch, lanes, r.Credit, r.Transport, r.Seed)
	row("input", "%s messages, %s keys, %s keyless", thousands(int64(r.total)), thousands(int64(r.Keys)), thousands(int64(r.Keyless)))
	row("throughput", "%s messages in %.2f s: %s a second", thousands(int64(r.Succeeded+r.DeadLettered)), r.Seconds, thousands(int64(r.Throughput)))
	row("publish to handled", "p50 %.2f ms, p99 %.2f ms", r.P50, r.P99)
	row("attempts", "%s: %s failed, %s panicked, %s retries, %s lane restarts", thousands(int64(r.Attempts)),
		thousands(int64(r.Failed)), thousands(int64(r.Panicked)), thousands(int64(r.Retries)), thousands(int64(r.LaneRestarts)))
	row("credit in use", "at most %d of %d", r.MostHeld, r.Credit)
	row("dead letters", "%s", r.deadLetters())
	row("poisonous, slow", "%s; %s", names(r.poison), names(r.slow))
	if r.Purged > 0 {
		row("purged", "%s messages of earlier runs", thousands(int64(r.Purged)))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	fmt.Fprintln(t, "busiest\tflights\tmiles\tminutes late\tof these carried over\tdigest")
	for _, b := range r.Busiest {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\n", b.Key, b.Flights, thousands(int64(b.Miles)), thousands(int64(b.Delay)), thousands(int64(b.Carried)), b.Digest)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	row("oracle", "%s", r.oracleLine())
	row("digests", "%s", r.digestNote)
	if err := t.Flush(); err != nil {
		return err
	}
	for _, o := range r.Objections {
		fmt.Fprintln(w, "  -", o)
	}
	verdict := "every promise kept"
	if !r.OK {
		verdict = "OBJECTIONS: see above"
	}
	_, err := fmt.Fprintln(w, verdict)
	return err
}

func (r *report) oracleLine() string {
	v := r.verdict
	line := fmt.Sprintf("published %s = succeeded %s + dead-lettered %s; %d duplicates",
		thousands(int64(v.Published)), thousands(int64(v.Succeeded)), thousands(int64(v.DeadLettered)), v.Duplicates)
	if v.Undecided > 0 {
		line = strings.Replace(line, ";", fmt.Sprintf(" + undecided %s;", thousands(int64(v.Undecided))), 1)
	}
	if r.Dispatch == "workers" {
		line += "; order not judged: workers keep none"
	}
	return fmt.Sprintf("%s; %d violations", line, v.Total())
}

func (r *report) deadLetters() string {
	if r.DeadLettered == 0 {
		return "none"
	}
	parts := make([]string, 0, len(r.Reasons))
	for reason, n := range r.Reasons {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	sort.Strings(parts)
	return fmt.Sprintf("%d: %s", r.DeadLettered, strings.Join(parts, ", "))
}

func sorted(set map[string]bool) []string {
	keys := make([]string, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// names prints at most three of the keys.
func names(keys []string) string {
	switch n := len(keys); {
	case n == 0:
		return "none"
	case n > 3:
		return fmt.Sprintf("%s and %d more", strings.Join(keys[:3], ", "), n-3)
	}
	return strings.Join(keys, ", ")
}
