package measure

import (
	"context"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	t.Parallel()
	vs := []float64{4, 1, 3, 2, 5}
	for _, c := range []struct{ q, want float64 }{{0, 1}, {0.25, 2}, {0.5, 3}, {0.75, 4}, {1, 5}, {0.375, 2.5}} {
		if got := Quantile(vs, c.q); got != c.want {
			t.Errorf("Quantile(%v) = %v, want %v", c.q, got, c.want)
		}
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{1.234: "1.23", 12.34: "12.3", 1234: "1234", 12345: "12,345", 1234567: "1,234,567", -12345: "-12,345", 999999: "999,999"} {
		if got := Number(v); got != want {
			t.Errorf("Number(%v) = %q, want %q", v, got, want)
		}
	}
}

func settings(t *testing.T, args ...string) *Settings {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	s := Flags(fs, 3)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	return s
}

// A contender whose passes take as long as it says.
func sized(name string, n int) Contender {
	return Contender{Name: name, Setup: func(context.Context) (Trial, error) {
		return Trial{Messages: n, Run: func(context.Context) error { return nil }}, nil
	}}
}

func TestRatiosArePairedByRound(t *testing.T) {
	t.Parallel()
	r := &Result{Title: "x", names: []string{"a", "b"}, passes: map[string][]Pass{
		"a": {{Messages: 1, Took: 10}, {Messages: 1, Took: 200}, {Messages: 1, Took: 3000}},
		"b": {{Messages: 1, Took: 5}, {Messages: 1, Took: 100}, {Messages: 1, Took: 1000}},
	}}
	var b strings.Builder
	r.Ratios(&b, Ratio{A: "a", B: "b", Of: Time, AtMost: 1.9}, Ratio{A: "a", B: "b", Of: Time, AtLeast: 1.9})
	if got := b.String(); !strings.Contains(got, "2.00 (2.00 to 2.50)") || !strings.Contains(got, "MISSED") || !strings.Contains(got, "met") {
		t.Error(got)
	}
}

func TestCompareRunsAllInEveryRound(t *testing.T) {
	t.Parallel()
	r, err := settings(t, "-only", "^a|c").Compare(t.Context(), "x", sized("a", 1), sized("b", 1), sized("c", 1))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.passes["a"]) != 3 || len(r.passes["b"]) != 0 || len(r.passes["c"]) != 3 {
		t.Errorf("%v", r.passes)
	}
}

func TestComparePassesEndAndAreTakenDown(t *testing.T) {
	t.Parallel()
	finished := false
	_, err := settings(t, "-timeout", "1s", "-warmup=false").Compare(t.Context(), "x", Contender{Name: "a", Setup: func(context.Context) (Trial, error) {
		return Trial{
			Messages: 1,
			Run:      func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			Finish:   func(context.Context) error { finished = true; return nil },
		}, nil
	}})
	if !errors.Is(err, context.DeadlineExceeded) || !finished {
		t.Errorf("finished %v, error %v", finished, err)
	}
}

func TestCPUGrows(t *testing.T) {
	t.Parallel()
	for began, end := CPU(), time.Now().Add(20*time.Second); CPU() == began; {
		if time.Now().After(end) {
			t.Fatal("20 s of work cost no CPU")
		}
	}
}
