package main

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestBuiltInFlights(t *testing.T) {
	t.Parallel()
	events, err := readInput("", "tailnum")
	if err != nil {
		t.Fatal(err)
	}
	keys, keyless := map[string]int{}, 0
	for _, e := range events {
		if e.key == "" {
			keyless++
		}
		keys[e.key]++
	}
	if len(events) != 27004 || len(keys) != 3149 || keyless != 155 || keys["N730MQ"] != 74 {
		t.Errorf("%d flights, %d keys, %d keyless, %d of N730MQ", len(events), len(keys), keyless, keys["N730MQ"])
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`{"k": "a"}`: "a", `{"k": "NA"}`: "", `{"k": ""}`: "", `{"x": 1}`: "", `{"k": null}`: "", `{"k": 12}`: "12",
		`{"k": true}`: "true", `[1, 2]`: "", `12`: "", `{"k": "b"`: "", `{"k": "\u00e9\""}`: "é\"",
	} {
		if got, _ := keyOf([]byte(line), "k"); got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

func TestLongLine(t *testing.T) {
	t.Parallel()
	in := "{\"k\": 1}\n{\"k\": \"" + strings.Repeat("x", maxLine) + "\"}\n"
	if _, err := readEvents(strings.NewReader(in), "test", "k"); err == nil || !strings.Contains(err.Error(), "line 2 is longer") {
		t.Errorf("got %v", err)
	}
	if _, err := readEvents(strings.NewReader("\x1f\x8bnonsense"), "test", "k"); err == nil {
		t.Error("nonsense in gzip's clothes was read")
	}
}

func TestLegReadsWhatItCan(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]leg{
		`{"distance": "1400", "dep_delay": "-2"}`:  {1400, -2},
		`{"distance": 1400.5, "dep_delay": "NA"}`:  {1400.5, 0},
		`{"distance": {"x": 1}, "dep_delay": [2]}`: {},
		`{"distance": "NaN", "dep_delay": "Inf"}`:  {},
		`{}`: {},
	} {
		var l leg
		if err := json.Unmarshal([]byte(body), &l); err != nil || l != want {
			t.Errorf("%s: got %+v and %v, want %+v", body, l, err, want)
		}
	}
	var l leg
	if json.Unmarshal([]byte(`[1]`), &l) == nil {
		t.Error("an array decodes")
	}
}

func TestAircraftCarriesDelay(t *testing.T) {
	t.Parallel()
	var a aircraft
	for _, delay := range []number{10, 25, -5, 30, 20} {
		a.fly(leg{Distance: 100, DepDelay: delay}, []byte("x"))
	}
	// 10 of 25 were late already; the early leg ends it; 20 of 20 come from 30.
	a.digest = 0
	if want := (aircraft{flights: 5, miles: 500, delay: 85, carried: 30, late: 20}); a != want {
		t.Errorf("got %+v, want %+v", a, want)
	}
}

func TestDigestKnowsTheOrder(t *testing.T) {
	t.Parallel()
	bodies := []string{`{"a": 1}`, `{"a": 2}`, `{"a": 3}`}
	digest := func(order ...int) uint64 {
		var a aircraft
		for _, i := range order {
			a.fly(leg{}, []byte(bodies[i]))
		}
		return a.digest
	}
	seen := map[uint64]bool{}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {2, 1, 0}, {0, 1}, {0, 1, 2, 2}, {0, 1, 1, 2}} {
		d := digest(order...)
		if seen[d] || d != digest(order...) {
			t.Errorf("%v: digest %x", order, d)
		}
		seen[d] = true
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	events := []event{{"a", []byte(`{"n":1}`)}, {"b", []byte(`{"n":2}`)}, {"a", []byte(`{"n":3}`)}, {"", []byte(`{"n":4}`)}, {"", []byte(`{"n":5}`)}}
	want := reference(events, 2, func(int) bool { return false })
	got := newFleet()
	for _, i := range []int{4, 1, 0, 2, 3, 0, 2, 1, 3, 4} { // another order between keys, and of the keyless
		got.fly(events[i].key, leg{}, events[i].body)
	}
	if d := differences(got, want); d != nil {
		t.Errorf("no key's order changed: %q", d)
	}
	got.fly("c", leg{}, nil)
	got.fly("", leg{}, nil)
	got.fly("a", leg{}, nil)
	if d := differences(got, want); !reflect.DeepEqual(d, []string{"", "a", "c"}) {
		t.Errorf("got %q", d)
	}
	if d := differences(newFleet(), want); !reflect.DeepEqual(d, []string{"", "a", "b"}) {
		t.Errorf("got %q", d)
	}
}

func TestFaultsAreTheSeeds(t *testing.T) {
	t.Parallel()
	events, err := readInput("", "tailnum")
	if err != nil {
		t.Fatal(err)
	}
	events = events[:6000] // enough, and quick to decode
	c := &config{seed: 1, errorRate: 0.02, panicRate: 0.005, poison: 2, slow: 3, undecodable: 5, repeat: 2}
	f, again := plan(c, events), plan(c, events)
	if !reflect.DeepEqual(f, again) {
		t.Error("the same seed, another plan")
	}
	c.seed = 2
	if reflect.DeepEqual(f.poison, plan(c, events).poison) {
		t.Error("another seed, the same plan")
	}
	if len(f.poison) != 2 || len(f.slow) != 3 || len(f.undecodable) != 5 {
		t.Errorf("got %v", f)
	}
	for k := range f.poison {
		if f.slow[k] {
			t.Errorf("%s is both", k)
		}
	}
	n := map[fault]int{}
	const tries = 100_000
	for i := range tries {
		n[f.at(i/2, i%2+1)]++
	}
	if e, p := n[errorFault]*1000/tries, n[panicFault]*10000/tries; e < 19 || e > 21 || p < 45 || p > 55 {
		t.Errorf("%d errors, %d panics of %d", n[errorFault], n[panicFault], tries)
	}
	dead := f.deadLetters(events, 2, attempts)
	want := map[int]bool{}
	for i := range len(events) * 2 {
		if f.undecodable[i] || f.poison[events[i%len(events)].key] {
			want[i] = true
		}
	}
	if !reflect.DeepEqual(dead, want) {
		t.Errorf("%d dead letters planned, want %d", len(dead), len(want))
	}
	f.errorRate = 1
	if got := len(f.deadLetters(events, 2, attempts)); got != 2*len(events) {
		t.Errorf("everything fails, but %d are planned", got)
	}
}

func TestMoreUndecodableThanMessages(t *testing.T) {
	t.Parallel()
	f := plan(&config{undecodable: 100, repeat: 1}, make([]event, 6))
	if len(f.undecodable) != 3 {
		t.Errorf("%d of 6", len(f.undecodable))
	}
}

func TestThousands(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 27004: "27,004", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestProgressLine(t *testing.T) {
	t.Parallel()
	s := newState("r", 27004, 10, &faults{}, false)
	s.start = time.Now().Add(-time.Second)
	s.decided.Store(12345)
	var b strings.Builder
	line(&b, s, false)
	if got := b.String(); !strings.HasPrefix(got, "12,345 of 27,004 flights, 12,") || strings.ContainsAny(got, "\r\x1b") || !strings.HasSuffix(got, "\n") {
		t.Errorf("got %q", got)
	}
	b.Reset()
	line(&b, s, true)
	if got := b.String(); !strings.HasPrefix(got, "\r\x1b[K12,345") || strings.HasSuffix(got, "\n") {
		t.Errorf("got %q", got)
	}
	// A file is no terminal; nothing is written before the first tick.
	f, err := os.Create(t.TempDir() + "/stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	startProgress(f, s).stop()
	if i, err := f.Stat(); err != nil || i.Size() != 0 {
		t.Errorf("%v: %d bytes", err, i.Size())
	}
}
