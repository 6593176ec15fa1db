package transport

import (
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestLeaseWithoutDeadline(t *testing.T) {
	t.Parallel()
	l := NewLease()
	if l.Expires() || !l.Deadline().IsZero() {
		t.Errorf("Expires = %v, Deadline = %v, want false and the zero time", l.Expires(), l.Deadline())
	}
	for _, now := range []time.Time{{}, time.Now(), time.Now().AddDate(100, 0, 0)} {
		if !l.Live(now) {
			t.Errorf("lapsed at %v, want live as long as its link", now)
		}
	}
	l.Lose()
	if !l.Lost() || l.Live(time.Now()) {
		t.Errorf("after Lose: Lost = %v, Live = %v", l.Lost(), l.Live(time.Now()))
	}
}

func TestLeaseLapsesAtItsDeadline(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := NewLeaseUntil(now.Add(time.Minute))
	if !l.Expires() || !l.Deadline().Equal(now.Add(time.Minute)) {
		t.Errorf("Expires = %v, Deadline = %v, want true and %v", l.Expires(), l.Deadline(), now.Add(time.Minute))
	}
	for _, c := range []struct {
		after time.Duration
		live  bool
	}{{-time.Hour, true}, {0, true}, {time.Minute - 1, true}, {time.Minute, false}, {time.Minute + 1, false}} {
		if got := l.Live(now.Add(c.after)); got != c.live {
			t.Errorf("Live after %v = %v, want %v", c.after, got, c.live)
		}
	}
}

// Two clocks. A time's monotonic half can't be set, so the lease's is shifted
// instead: to move one of its deadlines back is to move that clock forward.
func TestLeaseOnTwoClocks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		wall, mono time.Duration // how far each clock went, of a lease of a minute
		live       bool
	}{
		{"both before", 59 * time.Second, 59 * time.Second, true},
		{"the machine slept: the monotonic clock stood still", time.Hour, time.Second, false},
		{"the wall clock was set back", -time.Hour, time.Minute, false},
		{"the wall clock was set back, a little time passed", -time.Hour, 59 * time.Second, true},
		{"the wall clock was set ahead: in doubt it has lapsed", time.Minute, 0, false},
		{"both after", time.Hour, time.Hour, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			now := time.Now()
			l := NewLeaseUntil(now.Add(time.Minute))
			l.wall.Add(-int64(c.wall))
			l.mono.Add(-int64(c.mono))
			if got := l.Live(now); got != c.live {
				t.Errorf("Live = %v, want %v", got, c.live)
			}
		})
	}
}

func TestLeaseExtend(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := NewLeaseUntil(now.Add(time.Minute))
	l.Extend(now.Add(time.Hour))
	if !l.Live(now.Add(time.Minute)) || l.Live(now.Add(time.Hour)) {
		t.Error("a later deadline isn't kept")
	}
	l.Extend(now.Add(time.Second))
	if l.Live(now.Add(time.Second)) {
		t.Error("an earlier deadline isn't kept")
	}
	l.Lose()
	l.Extend(now.Add(time.Hour))
	if l.Live(now) {
		t.Error("an extension brought a lost lease back to life")
	}
}

// A broken clock or a broker's zero must give a lapsed lease, or a long one,
// never one without a deadline.
func TestLeaseAtTheEndsOfTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		name  string
		until time.Time
		live  bool
	}{
		{"the zero time", time.Time{}, false},
		{"the unix epoch", time.Unix(0, 0), false},
		{"a nanosecond before the unix epoch", time.Unix(0, -1), false},
		{"the first time that a lease holds", time.Unix(0, 1), false},
		{"the last time that a lease holds", time.Unix(0, math.MaxInt64), true},
		{"the year 9999", time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), true},
		{"no monotonic half", now.Add(time.Minute).Round(0), true},
		{"no monotonic half, past", now.Add(-time.Minute).Round(0), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := NewLeaseUntil(c.until)
			if !l.Expires() {
				t.Error("the lease has no deadline")
			}
			if got := l.Live(now); got != c.live {
				t.Errorf("Live = %v, want %v", got, c.live)
			}
		})
	}
}

// In a bubble the clock begins in the year 2000, long before the process did,
// and its times have no monotonic half.
func TestLeaseInVirtualTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLeaseUntil(time.Now().Add(time.Minute))
		<-time.After(time.Minute - 1)
		if !l.Live(time.Now()) {
			t.Error("lapsed before its deadline")
		}
		<-time.After(1)
		if l.Live(time.Now()) {
			t.Error("live at its deadline")
		}
		if !l.Deadline().Equal(time.Now()) {
			t.Errorf("Deadline = %v, want %v", l.Deadline(), time.Now())
		}
	})
}

// Extend writes two words and Live reads two. Extensions only move forward
// here, so however a reader meets the writer it must find the lease live before
// the first deadline, and lapsed after the last.
func TestLeaseExtendRacesLive(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := NewLeaseUntil(now.Add(time.Minute))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10_000 {
				if !l.Live(now) || l.Live(now.Add(24*time.Hour)) {
					t.Error("a reader saw a deadline that was never set")
					return
				}
			}
		})
	}
	for i := range 10_000 {
		l.Extend(now.Add(time.Minute + time.Duration(i)*time.Second))
	}
	wg.Wait()
	l.Lose()
	if l.Live(now) {
		t.Error("live after Lose")
	}
}
