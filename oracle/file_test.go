package oracle

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

func create(t *testing.T) (*Log, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log.jsonl")
	l, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // tests that care close it themselves
	return l, path
}

func load(t *testing.T, paths ...string) *Log {
	t.Helper()
	l, err := Load(paths...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A verdict doesn't depend on where the log was kept.
func TestFileKeepsEverything(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		l, path := create(t)
		s := tell(seed, l)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		v := load(t, path).Check(s.rules)
		if !v.OK() {
			t.Fatalf("seed %d: %v", seed, v)
		}
		v.Counts, v.Violations = nil, nil
		if !reflect.DeepEqual(v, s.expected) {
			t.Fatalf("seed %d:\n got %+v\nwant %+v", seed, v, s.expected)
		}
	}
}

func FuzzFileKeepsStrings(f *testing.F) {
	f.Add("id", "key")
	f.Add("a\"b\\c\n", "\xff\xfe")
	f.Add("\u2028\x7f", "\x00")
	f.Fuzz(func(t *testing.T, id, key string) {
		l, path := create(t)
		m := &transport.Message{ID: id, Key: key}
		l.Record(Published, m)
		l.Start(m, 2).End(Failed)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		for _, e := range entries(load(t, path)) {
			if e.id != id || e.key != key {
				t.Fatalf("got id %q key %q, want %q and %q", e.id, e.key, id, key)
			}
		}
	})
}

func FuzzLoad(f *testing.F) {
	head := `{"format":"keylanes-oracle-log-1","process":"p","at":1}` + "\n"
	f.Add([]byte(head + `{"at":2,"kind":"started","run":1,"id":"a"}` + "\n" + `{"at":3,"kind":"succeeded","run":9,"id":"a"}` + "\n"))
	f.Add([]byte(head + `{"at":2,"kind":"held","run":18446744073709551615}` + "\n"))
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Load(path)
		if err != nil {
			return
		}
		// Whatever was read can be judged.
		v := l.Check(Rules{Skew: time.Second, Credit: 1})
		if v.OK() != (v.Err() == nil) {
			t.Fatal("OK and Err disagree")
		}
	})
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	head := `{"format":"keylanes-oracle-log-1","process":"p","at":1}` + "\n"
	for name, c := range map[string]struct{ body, want string }{
		"empty":           {"", "first line is missing"},
		"something else":  {"hello\n", "line 1"},
		"another format":  {`{"format":"x"}` + "\n", "line 1"},
		"garbage":         {head + "{}x\n", "line 2"},
		"unknown kind":    {head + `{"at":1,"kind":"vanished"}` + "\n", `line 2: unknown kind "vanished"`},
		"unknown field":   {head + `{"at":1,"kind":"started","lane":3}` + "\n", "line 2"},
		"time goes back":  {head + `{"at":5,"kind":"started","run":1,"id":"a"}` + "\n" + `{"at":4,"kind":"failed","run":1,"id":"a"}` + "\n", "line 3"},
		"bad hexadecimal": {head + `{"at":5,"kind":"started","run":1,"id_hex":"zz"}` + "\n", "line 2"},
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(c.body), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want %q and the path", name, err, c.want)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing file loads")
	}
}

func TestCreateRefusesAnExistingFile(t *testing.T) {
	t.Parallel()
	_, path := create(t)
	if _, err := Create(path); err == nil {
		t.Error("two lives in one file")
	}
}

func TestStreamingLogIsCheckedFromItsFile(t *testing.T) {
	t.Parallel()
	l, _ := create(t)
	if v := l.Check(Rules{}); v.OK() {
		t.Error("a verdict on nothing")
	}
}

func TestCloseTwiceAndRecordAfterwards(t *testing.T) {
	t.Parallel()
	l, path := create(t)
	m := message1("a", 1)
	l.Record(Published, m)
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	l.Start(m, 1)
	l.Received(5)
	if v := load(t, path).Check(Rules{Remaining: 1}); !v.OK() || v.Started != 0 || v.MostHeld != 0 {
		t.Errorf("got %v", v)
	}
	if l.Err() != nil {
		t.Error(l.Err())
	}
}

// A full disk is told at Close, not silently judged.
func TestWriteErrorIsKept(t *testing.T) {
	t.Parallel()
	l, _ := create(t)
	if err := l.file.Close(); err != nil {
		t.Fatal(err)
	}
	l.Record(Published, message1("a", 1))
	if l.Err() == nil || l.Close() == nil {
		t.Error("the error is gone")
	}
}

// play writes the logs of two processes from one script, in which every step
// takes a millisecond. A process named in killed doesn't close its log.
type step struct {
	process int
	kind    Kind
	m       *transport.Message
}

func play(t *testing.T, killed map[int]bool, steps ...step) (*Log, time.Time) {
	t.Helper()
	start := time.Unix(1_700_000_000, 0)
	var logs [2]*Log
	var paths []string
	for i := range logs {
		l, path := create(t)
		logs[i], paths = l, append(paths, path)
	}
	runs := map[step]Run{}
	for i, s := range steps {
		l := logs[s.process]
		// Move the log's clock to this step.
		l.base, l.baseNanos = time.Now(), start.Add(time.Duration(i)*time.Millisecond).UnixNano()
		name := step{process: s.process, m: s.m}
		switch s.kind {
		case Started:
			runs[name] = l.Start(s.m, 1)
		case Succeeded, Failed, Panicked:
			runs[name].End(s.kind)
		default:
			l.Record(s.kind, s.m)
		}
	}
	for i, l := range logs {
		if killed[i] {
			l.mu.Lock()
			f := l.file
			l.file = devNull
			l.mu.Unlock()
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return load(t, paths...), start
}

func TestSeveralProcesses(t *testing.T) {
	t.Parallel()
	a1, a2 := message1("a", 1), message1("a", 2)
	published := []step{{0, Published, a1}, {0, Published, a2}}
	for _, c := range []struct {
		name   string
		killed map[int]bool
		steps  []step
		rules  Rules
		want   map[Promise]int
		excuse int
	}{
		{"taking turns", nil, []step{
			{0, Started, a1}, {0, Succeeded, a1}, {1, Started, a2}, {1, Succeeded, a2},
		}, Rules{}, map[Promise]int{}, 0},
		{"out of order between processes", nil, []step{
			{1, Started, a2}, {1, Succeeded, a2}, {0, Started, a1}, {0, Succeeded, a1},
		}, Rules{}, map[Promise]int{Order: 1}, 0},
		{"overlap between processes", nil, []step{
			{0, Started, a1}, {1, Started, a1}, {1, Succeeded, a1}, {0, Failed, a1},
			{1, Started, a2}, {1, Succeeded, a2},
		}, Rules{}, map[Promise]int{Overlap: 1}, 0},
		{"clocks that differ", nil, []step{
			{1, Started, a2}, {1, Succeeded, a2}, {0, Started, a1}, {0, Succeeded, a1},
		}, Rules{Skew: time.Second}, map[Promise]int{}, 1},
		{"killed in the middle of a run", map[int]bool{0: true}, []step{
			{0, Started, a1}, {1, Started, a1}, {1, Succeeded, a1}, {1, Started, a2}, {1, Succeeded, a2},
		}, Rules{}, map[Promise]int{}, 0},
		{"not killed, still running", nil, []step{
			{0, Started, a1}, {1, Started, a1}, {1, Succeeded, a1}, {1, Started, a2}, {1, Succeeded, a2},
		}, Rules{}, map[Promise]int{Overlap: 2, Left: 1}, 0},
		{"dead-lettered by another than saw it fail", nil, []step{
			{0, Started, a1}, {0, Failed, a1}, {1, DeadLettered, a1}, {1, Started, a2}, {1, Succeeded, a2},
		}, Rules{}, map[Promise]int{Unseen: 1}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, _ := play(t, c.killed, append(published[:2:2], c.steps...)...)
			v := l.Check(c.rules)
			if !reflect.DeepEqual(v.Counts, c.want) || v.Excused != c.excuse || v.Processes != 2 {
				t.Errorf("want %v and %d excused: %v", c.want, c.excuse, v)
			}
		})
	}
}

func TestFaultWindowExcusesBetweenProcessesOnly(t *testing.T) {
	t.Parallel()
	a1, a2 := message1("a", 1), message1("a", 2)
	run := func(second int) (*Log, Rules) {
		l, start := play(t, nil,
			step{0, Published, a1}, step{0, Published, a2}, step{0, Started, a1},
			step{second, Started, a2}, step{second, Succeeded, a2}, step{0, Succeeded, a1})
		return l, Rules{Faults: []Window{{start.Add(2 * time.Millisecond), start.Add(4 * time.Millisecond)}}}
	}
	l, rules := run(1)
	if v := l.Check(rules); !v.OK() || v.Excused != 2 {
		t.Errorf("in the window, other process: %v", v)
	}
	rules.Faults[0].From, rules.Faults[0].To = rules.Faults[0].From.Add(time.Hour), rules.Faults[0].To.Add(time.Hour)
	if v := l.Check(rules); v.Counts[Order] != 1 || v.Counts[Overlap] != 1 {
		t.Errorf("outside the window: %v", v)
	}
	l, rules = run(0)
	if v := l.Check(rules); v.Counts[Order] != 1 || v.Counts[Overlap] != 1 {
		t.Errorf("in the window, same process: %v", v)
	}
}

// A log that ends in the middle of a line was written by a process that died.
func TestCutLineIsDropped(t *testing.T) {
	t.Parallel()
	l, path := create(t)
	m := message1("a", 1)
	l.Record(Published, m)
	l.Start(m, 1).End(Succeeded)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b[:len(b)-7], 0o600); err != nil {
		t.Fatal(err)
	}
	v := load(t, path).Check(Rules{})
	if v.Started != 1 || v.Succeeded != 0 || !reflect.DeepEqual(v.Counts, map[Promise]int{Loss: 1}) {
		t.Errorf("got %v", v)
	}
}
