package supervision

import (
	"math"
	"testing"
	"time"
)

const (
	lowest  = uint64(0)
	highest = uint64(math.MaxUint64)
)

// The two ends of the random range give the two ends of the delay.
func TestBackoffDelayBounds(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		name      string
		b         Backoff
		attempt   int
		low, high time.Duration
	}{
		{"the default, first attempt", Backoff{}, 1, 50 * ms, 100 * ms},
		{"the default, second attempt", Backoff{}, 2, 50 * ms, 200 * ms},
		{"the default, fifth attempt", Backoff{}, 5, 50 * ms, 1600 * ms},
		{"the default, last attempt below the cap", Backoff{}, 10, 50 * ms, 51200 * ms},
		{"the default, first attempt at the cap", Backoff{}, 11, 50 * ms, time.Minute},
		{"the default, an attempt that overflows", Backoff{}, math.MaxInt, 50 * ms, time.Minute},
		{"attempt 0 counts as the first", Backoff{}, 0, 50 * ms, 100 * ms},
		{"a negative attempt counts as the first", Backoff{}, math.MinInt, 50 * ms, 100 * ms},
		{"the smallest min", Backoff{Min: ms}, 1, ms / 2, ms},
		{"min below its bound", Backoff{Min: ms - 1}, 1, 50 * ms, 100 * ms},
		{"min below zero", Backoff{Min: -1}, 1, 50 * ms, 100 * ms},
		{"an odd min", Backoff{Min: ms + 1}, 1, ms / 2, ms + 1},
		{"max equals min", Backoff{Min: ms, Max: ms}, 9, ms / 2, ms},
		{"max below min", Backoff{Min: ms, Max: ms - 1}, 9, ms / 2, ms},
		{"max below zero", Backoff{Min: ms, Max: -1}, 9, ms / 2, ms},
		{"min above the default max", Backoff{Min: time.Hour}, 3, time.Hour / 2, time.Hour},
		{"the longest max", Backoff{Max: math.MaxInt64}, 1000, 50 * ms, math.MaxInt64},
		{"a max that no float64 holds", Backoff{Max: 1<<60 + 1}, 1000, 50 * ms, 1<<60 + 1},
		{"factor 1 never grows", Backoff{Factor: 1}, 1000, 50 * ms, 100 * ms},
		{"factor below its bound", Backoff{Factor: 0.99}, 2, 50 * ms, 200 * ms},
		{"factor below zero", Backoff{Factor: -3}, 2, 50 * ms, 200 * ms},
		{"factor is no number", Backoff{Factor: math.NaN()}, 2, 50 * ms, 200 * ms},
		{"factor is infinite, first attempt", Backoff{Factor: math.Inf(1)}, 1, 50 * ms, 100 * ms},
		{"factor is infinite, second attempt", Backoff{Factor: math.Inf(1)}, 2, 50 * ms, time.Minute},
		{"a broken factor", Backoff{Min: ms, Factor: 1.5}, 3, ms / 2, 2250 * time.Microsecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := c.b.Delay(c.attempt, lowest); got != c.low {
				t.Errorf("shortest delay = %v, want %v", got, c.low)
			}
			if got := c.b.Delay(c.attempt, highest); got != c.high {
				t.Errorf("longest delay = %v, want %v", got, c.high)
			}
		})
	}
}

// Full jitter: equal steps through the random range give equal steps through
// the delays, so a uniform rand gives a uniform delay.
func TestBackoffJitterIsUniform(t *testing.T) {
	t.Parallel()
	const steps = 1000
	b := Backoff{Min: 2 * time.Millisecond}
	low, high := b.Delay(4, lowest), b.Delay(4, highest)
	for i := range uint64(steps) {
		want := low + (high-low)*time.Duration(i)/steps
		got := b.Delay(4, i*(highest/steps))
		if d := got - want; d < -time.Microsecond || d > time.Microsecond {
			t.Fatalf("delay at %d/%d of the random range = %v, want %v", i, steps, got, want)
		}
	}
}

func TestBackoffAsPolicyOnlyRetries(t *testing.T) {
	t.Parallel()
	b := Backoff{Min: 10 * time.Millisecond}
	for _, k := range []Kind{Returned, Panicked, TimedOut, Undecodable} {
		f := Failure{Kind: k, Attempt: 3, Rand: highest}
		if got, want := b.Decide(f), Retry(40*time.Millisecond); got != want {
			t.Errorf("%v: %+v, want %+v", k, got, want)
		}
	}
	if b.MayDeadLetter() {
		t.Error("a backoff says that it may dead-letter")
	}
}

// Whatever the fields, attempt and random number: the delay lies between half
// of Min and Max, is never zero, and never shrinks as attempts grow.
func FuzzBackoffBounds(f *testing.F) {
	f.Add(int64(0), int64(0), 0.0, 1, uint64(0))
	f.Add(int64(time.Millisecond), int64(time.Minute), 2.0, 5, highest)
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), math.MaxFloat64, math.MaxInt, highest)
	f.Add(int64(math.MinInt64), int64(math.MinInt64), math.Inf(-1), math.MinInt, highest)
	f.Add(int64(1<<62+1), int64(1<<62+3), 1.0000000001, 7, highest)
	f.Add(int64(time.Millisecond), int64(0), math.NaN(), 2, highest/2)
	f.Fuzz(func(t *testing.T, low, high int64, factor float64, attempt int, rand uint64) {
		b := Backoff{Min: time.Duration(low), Max: time.Duration(high), Factor: factor}
		shortest, longest := 100*time.Millisecond, time.Minute
		if b.Min >= time.Millisecond {
			shortest = b.Min
		}
		if b.Max != 0 {
			longest = b.Max
		}
		longest = max(longest, shortest)

		d := b.Delay(attempt, rand)
		if d < shortest/2 || d > longest || d <= 0 {
			t.Fatalf("%+v attempt %d rand %d: delay %v is outside %v to %v", b, attempt, rand, d, shortest/2, longest)
		}
		if attempt < math.MaxInt {
			if next := b.Delay(attempt+1, rand); next < d {
				t.Fatalf("%+v rand %d: attempt %d waits %v, the next one only %v", b, rand, attempt, d, next)
			}
		}
	})
}
