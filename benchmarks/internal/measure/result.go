package measure

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
)

// Metric is a figure of a pass.
type Metric struct {
	Name string
	Of   func(Pass) float64
}

// The metrics of every pass.
var (
	Rate = Metric{"messages/s", func(p Pass) float64 { return float64(p.Messages) / p.Took.Seconds() }}
	Time = Metric{"ns a message", func(p Pass) float64 { return float64(p.Took.Nanoseconds()) / float64(p.Messages) }}
	Cost = Metric{"CPU µs a message", func(p Pass) float64 { return float64(p.CPU.Nanoseconds()) / 1000 / float64(p.Messages) }}
)

// Extra is a metric that a trial reported itself.
func Extra(name string) Metric {
	return Metric{name, func(p Pass) float64 { return p.Extra[name] }}
}

// Result is what the contenders did.
type Result struct {
	Title  string
	names  []string
	passes map[string][]Pass
}

// Table prints a row for each contender: the median of each metric, and its
// quartiles.
func (r *Result) Table(w io.Writer, ms ...Metric) {
	if len(r.names) == 0 {
		return
	}
	for _, n := range r.names { // what trials reported comes last
		for _, extra := range slices.Sorted(maps.Keys(r.passes[n][0].Extra)) {
			if !slices.ContainsFunc(ms, func(m Metric) bool { return m.Name == extra }) {
				ms = append(ms, Extra(extra))
			}
		}
	}
	head := []string{r.Title}
	for _, m := range ms {
		head = append(head, m.Name)
	}
	rows := [][]string{head}
	for _, n := range r.names {
		row := []string{n}
		for _, m := range ms {
			row = append(row, Spread(r.values(n, m)))
		}
		rows = append(rows, row)
	}
	Table(w, rows)
}

// Ratio is a pair of contenders, and what is wanted of their ratio. A zero bound
// is none.
type Ratio struct {
	A, B            string
	Of              Metric
	AtMost, AtLeast float64
	Note            string // behind the pair's names
}

// Ratios prints the medians of the rounds' ratios with their quartiles.
func (r *Result) Ratios(w io.Writer, qs ...Ratio) {
	rows := [][]string{{r.Title + ": median of the rounds' ratios", "of", "ratio", "wanted", "result"}}
	for _, q := range qs {
		a, b := r.values(q.A, q.Of), r.values(q.B, q.Of)
		if len(a) == 0 || len(b) == 0 {
			continue // left out by -only
		}
		for i := range a {
			a[i] /= b[i]
		}
		want, verdict := Judge(Quantile(a, 0.5), q.AtMost, q.AtLeast)
		pair := q.A + " / " + q.B
		if q.Note != "" {
			pair += " (" + q.Note + ")"
		}
		rows = append(rows, []string{pair, q.Of.Name, Spread(a), want, verdict})
	}
	if len(rows) > 1 {
		Table(w, rows)
	}
}

// Figure is a contender's own figure, and what is wanted of it. A zero bound is
// none.
type Figure struct {
	Of              string
	Metric          Metric
	AtMost, AtLeast float64
}

// Figures prints medians beside what is wanted of them.
func (r *Result) Figures(w io.Writer, fs ...Figure) {
	rows := [][]string{{r.Title, "of", "median", "wanted", "result"}}
	for _, f := range fs {
		vs := r.values(f.Of, f.Metric)
		if len(vs) == 0 {
			continue
		}
		want, verdict := Judge(Quantile(vs, 0.5), f.AtMost, f.AtLeast)
		rows = append(rows, []string{f.Of, f.Metric.Name, Spread(vs), want, verdict})
	}
	if len(rows) > 1 {
		Table(w, rows)
	}
}

// Judge says what is wanted of v, and whether it is so. A zero bound is none.
func Judge(v, atMost, atLeast float64) (want, verdict string) {
	switch {
	case atMost > 0 && v <= atMost:
		return "at most " + Number(atMost), "met"
	case atMost > 0:
		return "at most " + Number(atMost), "MISSED"
	case atLeast > 0 && v >= atLeast:
		return "at least " + Number(atLeast), "met"
	case atLeast > 0:
		return "at least " + Number(atLeast), "MISSED"
	}
	return "", ""
}

// Fastest is the contender of the highest median rate, "" when none of them ran.
func (r *Result) Fastest(names ...string) string {
	best, rate := "", 0.0
	for _, n := range names {
		if v := Quantile(r.values(n, Rate), 0.5); v > rate {
			best, rate = n, v
		}
	}
	return best
}

func (r *Result) values(name string, m Metric) []float64 {
	var vs []float64
	for _, p := range r.passes[name] {
		vs = append(vs, m.Of(p))
	}
	return vs
}

// Quantile of vs, between neighbours by proportion.
func Quantile(vs []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(vs))
	if len(s) == 0 {
		return math.NaN()
	}
	at := q * float64(len(s)-1)
	low := int(at)
	if low+1 == len(s) {
		return s[low]
	}
	return s[low] + (at-float64(low))*(s[low+1]-s[low])
}

// Spread is the median and, of several values, the quartiles.
func Spread(vs []float64) string {
	if len(vs) == 1 {
		return Number(vs[0])
	}
	return fmt.Sprintf("%s (%s to %s)", Number(Quantile(vs, 0.5)), Number(Quantile(vs, 0.25)), Number(Quantile(vs, 0.75)))
}

// Number prints about three digits, and large numbers in full.
func Number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return fmt.Sprint(v)
	case a >= 10_000:
		s := fmt.Sprintf("%.0f", v)
		for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
		return s
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
