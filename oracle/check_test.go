package oracle

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

func TestCorrectRunsPass(t *testing.T) {
	t.Parallel()
	for seed := range uint64(1000) {
		s := tell(seed, New())
		v := s.log.Check(s.rules)
		if !v.OK() {
			t.Fatalf("seed %d: objected to a correct run: %v", seed, v)
		}
		v.Counts, v.Violations = nil, nil
		if !reflect.DeepEqual(v, s.expected) {
			t.Fatalf("seed %d:\n got %+v\nwant %+v", seed, v, s.expected)
		}
	}
}

// find gives the indexes of the records of kind k that where accepts.
func find(es []entry, k Kind, where func(entry) bool) []int {
	var at []int
	for i, e := range es {
		if e.kind == k && (where == nil || where(e)) {
			at = append(at, i)
		}
	}
	return at
}

// mutant breaks one promise in a correct run's records. It returns nil where
// the run has nothing to break.
type mutant struct {
	name    string
	promise Promise
	// only: nothing else may be reported.
	only   bool
	mutate func(s *story, es []entry, r *Rules) []entry
}

// onlyRun gives the start and the end of e's message, if it had just that run,
// was certainly published, and succeeded.
func onlyRun(es []entry, id string) (start, end int, ok bool) {
	starts := find(es, Started, func(e entry) bool { return e.id == id })
	ends := find(es, Succeeded, func(e entry) bool { return e.id == id })
	unsure := find(es, Unconfirmed, func(e entry) bool { return e.id == id })
	if len(starts) != 1 || len(ends) != 1 || len(unsure) != 0 {
		return 0, 0, false
	}
	return starts[0], ends[0], true
}

// neighbours gives two messages of one key, each with one successful run, the
// first decided before the second starts.
func neighbours(es []entry) (a, b string, ok bool) {
	last := map[string]string{}
	for _, i := range find(es, Started, func(e entry) bool { return e.key != "" }) {
		e := es[i]
		if _, _, single := onlyRun(es, e.id); !single {
			continue
		}
		if before := last[e.key]; before != "" {
			return before, e.id, true
		}
		last[e.key] = e.id
	}
	return "", "", false
}

var mutants = []mutant{
	{"two messages of a key swap their runs", Order, true, func(_ *story, es []entry, _ *Rules) []entry {
		a, b, ok := neighbours(es)
		if !ok {
			return nil
		}
		for i := range es {
			if k := es[i].kind; k == Started || k == Succeeded {
				switch es[i].id {
				case a:
					es[i].id = b
				case b:
					es[i].id = a
				}
			}
		}
		return es
	}},
	{"a retry overtakes: the successor starts after its failed predecessor", Order, false, func(_ *story, es []entry, _ *Rules) []entry {
		a, b, ok := neighbours(es)
		if !ok {
			return nil
		}
		_, end, _ := onlyRun(es, a)
		start, _, _ := onlyRun(es, b)
		es[end].kind = Failed
		again := entry{kind: Started, id: a, key: es[end].key, run: 1 << 40}
		done := again
		done.kind = Succeeded
		return append(slices.Insert(es, start+1, again), done)
	}},
	{"a handler starts before its key's last one ended", Overlap, false, func(_ *story, es []entry, _ *Rules) []entry {
		a, b, ok := neighbours(es)
		if !ok {
			return nil
		}
		_, end, _ := onlyRun(es, a)
		start, _, _ := onlyRun(es, b)
		moved := es[end]
		es = slices.Insert(es, start+1, moved)
		return slices.Delete(es, end, end+1)
	}},
	{"a keyless message runs twice at once", Overlap, false, func(_ *story, es []entry, _ *Rules) []entry {
		for _, i := range find(es, Started, func(e entry) bool { return e.key == "" }) {
			again := es[i]
			again.run = 1 << 40
			done := again
			done.kind = Failed
			return slices.Insert(slices.Insert(es, i+1, again), i+2, done)
		}
		return nil
	}},
	{"a message's only run is missing", Loss, true, func(_ *story, es []entry, _ *Rules) []entry {
		for _, i := range find(es, Published, nil) {
			start, end, ok := onlyRun(es, es[i].id)
			if !ok || slices.ContainsFunc(es[end:], func(e entry) bool { return e.kind == Started && e.key == es[end].key && e.key != "" }) {
				continue // a successor would be out of order, too
			}
			es = slices.Delete(es, end, end+1)
			return slices.Delete(es, start, start+1)
		}
		return nil
	}},
	{"a success was a failure", Loss, false, func(_ *story, es []entry, _ *Rules) []entry {
		at := find(es, Succeeded, nil)
		if len(at) == 0 {
			return nil
		}
		es[at[len(at)-1]].kind = Failed
		return es
	}},
	{"a decided message runs again", Duplicates, true, func(_ *story, es []entry, _ *Rules) []entry {
		at := find(es, Succeeded, nil)
		if len(at) == 0 {
			return nil
		}
		again := es[at[0]]
		again.kind, again.run = Started, 1<<40
		done := again
		done.kind = Succeeded
		return append(es, again, done)
	}},
	{"a message is dead-lettered that nobody saw fail", Unseen, true, func(_ *story, es []entry, _ *Rules) []entry {
		for _, i := range find(es, Started, nil) {
			if start, end, ok := onlyRun(es, es[i].id); ok {
				es[end].kind, es[end].run = DeadLettered, 0
				return slices.Delete(es, start, start+1)
			}
		}
		return nil
	}},
	{"another process saw it fail", Unseen, true, func(s *story, es []entry, _ *Rules) []entry {
		at := find(es, DeadLettered, nil)
		if len(at) == 0 {
			return nil
		}
		s.log.processes = append(s.log.processes, process{name: "other", ended: true})
		es[at[0]].process = 1
		return es
	}},
	{"more is held than the credit", Credit, true, func(s *story, es []entry, r *Rules) []entry {
		r.Credit = s.expected.MostHeld - 1
		if r.Credit < 1 {
			return nil
		}
		return es
	}},
	{"a goroutine is left", Left, true, func(_ *story, es []entry, r *Rules) []entry {
		r.Left = map[string]int{"goroutines": 1, "actors": 0}
		return es
	}},
	{"a handler never returns", Left, false, func(_ *story, es []entry, _ *Rules) []entry {
		at := find(es, Succeeded, nil)
		if len(at) == 0 {
			return nil
		}
		return slices.Delete(es, at[len(at)-1], at[len(at)-1]+1)
	}},
	{"a message comes from nowhere", Identified, false, func(_ *story, es []entry, _ *Rules) []entry {
		at := find(es, Published, func(e entry) bool { _, _, ok := onlyRun(es, e.id); return ok })
		if len(at) == 0 {
			return nil
		}
		return slices.Delete(es, at[0], at[0]+1)
	}},
	{"a message has no identity", Identified, false, func(_ *story, es []entry, _ *Rules) []entry {
		at := find(es, Started, nil)
		if len(at) == 0 {
			return nil
		}
		es[at[0]].id = ""
		return es
	}},
}

func TestMutantsAreCaught(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			tried := 0
			for seed := range uint64(200) {
				s := tell(seed, New())
				rules := s.rules
				es := m.mutate(s, entries(s.log), &rules)
				if es == nil {
					continue
				}
				tried++
				v := retold(s.log, es).Check(rules)
				if v.Counts[m.promise] == 0 {
					t.Fatalf("seed %d: not noticed: %v", seed, v)
				}
				if m.only && len(v.Counts) != 1 {
					t.Fatalf("seed %d: want %s alone: %v", seed, m.promise, v)
				}
				if v.Err() == nil || !strings.Contains(v.Err().Error(), string(m.promise)) {
					t.Fatalf("seed %d: the error doesn't name %s: %v", seed, m.promise, v.Err())
				}
			}
			if tried < 60 {
				t.Fatalf("only %d of 200 runs had something to break", tried)
			}
		})
	}
}

func message1(key string, n int) *transport.Message {
	return &transport.Message{ID: fmt.Sprintf("%s%d", key, n), Key: key}
}

func TestRulesLoosen(t *testing.T) {
	t.Parallel()
	a1, a2 := message1("a", 1), message1("a", 2)
	overlapping := func() *Log {
		l := New()
		l.Record(Published, a1)
		l.Record(Published, a2)
		r2 := l.Start(a2, 1)
		r1 := l.Start(a1, 1)
		r2.End(Succeeded)
		r1.End(Succeeded)
		return l
	}
	for _, c := range []struct {
		name  string
		rules Rules
		want  map[Promise]int
	}{
		{"strict", Rules{}, map[Promise]int{Order: 1, Overlap: 1}},
		{"unordered", Rules{Unordered: true}, map[Promise]int{Overlap: 1}},
		{"overlapping", Rules{Overlapping: true}, map[Promise]int{}},
		// Whoever consumes only takes the first start for the first message.
		{"consumer only", Rules{ConsumerOnly: true}, map[Promise]int{Order: 1, Overlap: 1}},
	} {
		if got := overlapping().Check(c.rules).Counts; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestSequentialIsOneKey(t *testing.T) {
	t.Parallel()
	l := New()
	ms := []*transport.Message{message1("a", 1), message1("b", 1), {ID: "keyless"}}
	for _, m := range ms {
		l.Record(Published, m)
	}
	for _, i := range []int{0, 2, 1} {
		l.Start(ms[i], 1).End(Succeeded)
	}
	if v := l.Check(Rules{}); !v.OK() {
		t.Errorf("by key this is fine: %v", v)
	}
	if v := l.Check(Rules{Sequential: true}); v.Counts[Order] != 1 {
		t.Errorf("want one violation of order: %v", v)
	}
}

// With a key function the lanes follow its keys, and so must the judge.
func TestKeyFunction(t *testing.T) {
	t.Parallel()
	a1, b2 := message1("a", 1), message1("b", 2)
	for _, c := range []struct {
		name string
		key  func(*transport.Message) string
		want map[Promise]int
	}{
		{"none", nil, map[Promise]int{}},
		{"one key for all", func(*transport.Message) string { return "all" }, map[Promise]int{Order: 1, Overlap: 1}},
		{"a panic is keyless", func(*transport.Message) string { panic("no key") }, map[Promise]int{}},
	} {
		l := New()
		l.Key = c.key
		l.Record(Published, a1)
		l.Record(Published, b2)
		r2 := l.Start(b2, 1)
		r1 := l.Start(a1, 1)
		r2.End(Succeeded)
		r1.End(Succeeded)
		if v := l.Check(Rules{}); !reflect.DeepEqual(v.Counts, c.want) {
			t.Errorf("%s: want %v: %v", c.name, c.want, v)
		}
	}
}

func TestDuplicatesWithinTheBound(t *testing.T) {
	t.Parallel()
	l := New()
	m := message1("a", 1)
	l.Record(Published, m)
	for range 4 {
		l.Start(m, 1).End(Succeeded)
	}
	for bound, want := range map[int]int{0: 3, 2: 1, 3: 0} {
		v := l.Check(Rules{Duplicates: bound})
		if v.Counts[Duplicates] != want || v.Duplicates != 3 {
			t.Errorf("bound %d: got %d violations of %d duplicates, want %d of 3", bound, v.Counts[Duplicates], v.Duplicates, want)
		}
	}
}

func TestRemaining(t *testing.T) {
	t.Parallel()
	l := New()
	for i := range 5 {
		l.Record(Published, message1("a", i))
	}
	l.Start(message1("a", 0), 1).End(Succeeded)
	for remaining, want := range map[int]int{-1: 0, 0: 4, 3: 1, 4: 0, 9: 0} {
		if v := l.Check(Rules{Remaining: remaining}); v.Counts[Loss] != want || v.Undecided != 4 {
			t.Errorf("remaining %d: want %d lost of 4 undecided: %v", remaining, want, v)
		}
	}
}

func TestViolationsAreCappedAndCounted(t *testing.T) {
	t.Parallel()
	l := New()
	for i := range 1000 {
		l.Record(Published, message1("a", i))
	}
	v := l.Check(Rules{MaxViolations: 3})
	if v.Counts[Loss] != 1000 || len(v.Violations) != 3 || v.Total() != 1000 {
		t.Errorf("got %d kept of %v", len(v.Violations), v.Counts)
	}
	if s := v.String(); !strings.Contains(s, "... and 997 more") {
		t.Errorf("the rest isn't mentioned: %s", s)
	}
}

func TestViolationsAreReadable(t *testing.T) {
	t.Parallel()
	l := New()
	a1, a2 := message1("a", 1), message1("a", 2)
	l.Record(Published, a1)
	l.Record(Published, a2)
	l.Start(a2, 1).End(Succeeded)
	l.Start(a1, 1).End(Succeeded)
	v := l.Check(Rules{})
	if len(v.Violations) != 1 {
		t.Fatal(v)
	}
	x := v.Violations[0]
	if x.Key != "a" || !reflect.DeepEqual(x.IDs, []string{"a2", "a1"}) || time.Since(x.At) > time.Minute {
		t.Errorf("got %+v", x)
	}
	for _, want := range []string{`order: key "a"`, `"a2" (#2) started before "a1" (#1)`, "decided", "later"} {
		if !strings.Contains(x.String(), want) {
			t.Errorf("%q is missing in %q", want, x)
		}
	}
}

// What wasn't confirmed may be missing; published again, it may be anywhere.
func TestPublishedAgain(t *testing.T) {
	t.Parallel()
	l := New()
	a1, a2 := message1("a", 1), message1("a", 2)
	l.Record(Published, a1)
	l.Record(Unconfirmed, a1)
	l.Record(Published, a2)
	l.Start(a2, 1).End(Succeeded)
	if v := l.Check(Rules{}); !v.OK() || v.Published != 1 || v.Unconfirmed != 1 {
		t.Errorf("a message that never arrived isn't lost: %v", v)
	}
	l.Record(Published, a1)
	if v := l.Check(Rules{}); v.Counts[Loss] != 1 || v.Published != 2 {
		t.Errorf("now it was confirmed, and is lost: %v", v)
	}
	l.Start(a1, 1).End(Succeeded)
	if v := l.Check(Rules{}); !v.OK() {
		t.Errorf("its place is uncertain: %v", v)
	}
}

func TestSecondCopyIsCounted(t *testing.T) {
	t.Parallel()
	l := New()
	m := message1("a", 1)
	l.Record(Published, m)
	l.Start(m, 1).End(Panicked)
	l.Record(DeadLettered, m)
	l.Record(DeadLettered, m)
	v := l.Check(Rules{})
	if !v.OK() || v.DeadLettered != 1 || v.DuplicateCopies != 1 || v.Panicked != 1 {
		t.Errorf("got %+v", v)
	}
}

func TestMisusePanics(t *testing.T) {
	t.Parallel()
	l := New()
	for name, f := range map[string]func(){
		"Record of a run's kind": func() { l.Record(Succeeded, message1("a", 1)) },
		"End of an outcome":      func() { l.Start(message1("a", 1), 1).End(DeadLettered) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}
