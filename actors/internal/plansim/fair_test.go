package plansim

import (
	"fmt"
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
)

// order runs everything on lane 0, and gives the order of the starts.
func (a *tale) order() []string {
	a.t.Helper()
	var names []string
	l := &a.w.lanes[0]
	for l.cur != nil || a.w.step(l) || a.w.reported(nil) {
		if l.cur != nil {
			names = append(names, l.cur.String())
			a.succeeds(0)
		}
	}
	return names
}

func placeOf(names []string, name string) int {
	for i, n := range names {
		if n == name {
			return i
		}
	}
	return -1
}

// A hot key fills the queue, then another key comes: it waits for one run of the
// hot one at most.
func TestHotKeyDelaysNobodyForLong(t *testing.T) {
	t.Parallel()
	for _, mode := range []plan.Mode{plan.ByKey, plan.PerKey} {
		t.Run(modeNames[mode], func(t *testing.T) {
			t.Parallel()
			a, told := beginWith(t, scenario{mode: mode, lanes: 1, broker: stream, ids: true, keys: 2, credit: 120})
			defer told()
			for range 100 {
				a.publish("A")
			}
			a.publish("B")
			a.receive(101)
			names := a.order()
			if at := placeOf(names, "B1"); at < 0 || at > plan.MaxRun+1 {
				a.failf("B1 is started at place %d of %v", at, names)
			}
			a.end()
		})
	}
}

// What is keyed and what is keyless never starve each other, whichever fills the
// queue.
func TestKeyedAndKeylessAlternate(t *testing.T) {
	t.Parallel()
	for _, mode := range []plan.Mode{plan.ByKey, plan.PerKey} {
		for _, c := range []struct{ many, one, name string }{{"-", "A", "A1"}, {"A", "-", "-101"}} {
			t.Run(fmt.Sprint(modeNames[mode], ", many ", c.many), func(t *testing.T) {
				t.Parallel()
				a, told := beginWith(t, scenario{mode: mode, lanes: 1, broker: stream, ids: true, keys: 2, credit: 120})
				defer told()
				for range 100 {
					a.publish(c.many)
				}
				a.publish(c.one)
				a.receive(101)
				names := a.order()
				if at := placeOf(names, c.name); at < 0 || at > plan.MaxRun+1 {
					a.failf("%s is started at place %d of %v", c.name, at, names)
				}
				a.end()
			})
		}
	}
}

// Poisonous keys beside a healthy flow: no other key's delivery waits for more
// than one run of theirs.
func TestPoisonousKeysDelayNobody(t *testing.T) {
	t.Parallel()
	a, told := beginWith(t, scenario{mode: plan.ByKey, lanes: 1, broker: stream, ids: true, target: true, keys: 5, credit: 60})
	defer told()
	for range 10 {
		a.publish("ABCDE") // A to D fail
	}
	a.receive(50)
	l, starts, healthy := &a.w.lanes[0], 0, 0
	always := func(*world, *hand) supervision.Directive { return retry(0) }
	for healthy < 10 {
		switch {
		case l.cur == nil:
			if !a.w.step(l) && !a.w.reported(always) {
				a.failf("nothing goes on")
			}
		case l.cur.d.Key == "E":
			a.succeeds(0)
			starts, healthy = 0, healthy+1
		default:
			if starts++; starts > plan.MaxRun {
				a.failf("%d starts of poisonous keys in a row", starts)
			}
			a.fails(0)
		}
		a.later(time.Millisecond)
	}
	a.end()
}

// A downstream is gone for ten minutes: nothing is dead-lettered, a lane calls a
// handful of times a second at most, and everything goes on within a second of its
// return. In every mode.
func TestOutage(t *testing.T) {
	t.Parallel()
	for _, mode := range []plan.Mode{plan.Sequential, plan.Workers, plan.ByKey, plan.PerKey} {
		t.Run(modeNames[mode], func(t *testing.T) {
			t.Parallel()
			a, told := beginWith(t, scenario{mode: mode, lanes: 3, broker: stream, ids: true, target: true, keys: 5, credit: 100,
				outageAfter: 15 * time.Minute})
			defer told()
			for range 20 {
				a.publish("ABCDE")
			}
			a.receive(100)
			five := func(_ *world, h *hand) supervision.Directive {
				d := retry(10 * time.Millisecond) // and no backoff worth the name
				if h.item.Attempt >= 5 {
					d.Action, d.Exhausted = supervision.ActionDeadLetter, true
				}
				return d
			}
			calls, down := 0, true
			settle := func() {
				for again := true; again; {
					again = false
					for i := range a.w.lanes {
						l := &a.w.lanes[i]
						if l.cur != nil {
							o := succeeds
							if down {
								calls, o = calls+1, fails
							}
							a.ends(i, o)
							again = true
						}
						again = a.w.step(l) || again
					}
					again = a.w.reported(five) || again
				}
			}
			at := func(d time.Duration) {
				for end := a.w.now + int64(d); a.w.now < end; settle() {
					if next := a.w.p.NextTimer(); next > a.w.now && next < end {
						a.w.now = next
					} else {
						a.w.now = end
					}
					a.w.tick()
				}
			}
			settle()
			at(5 * time.Second) // enough to see that it is one
			a.w.story = nil     // it would be ten minutes long
			calls = 0
			at(10 * time.Minute)
			if limit := 600 * 5 * len(a.w.lanes); !a.w.outage || calls > limit || calls < 600 {
				a.failf("outage %t, %d calls of %d lanes in ten minutes, want 600 to %d", a.w.outage, calls, len(a.w.lanes), limit)
			}
			if a.w.tally[nCopies] > 0 {
				a.failf("%d copies", a.w.tally[nCopies])
			}
			down = false
			at(time.Second)
			if len(a.w.held) > 0 {
				a.failf("%d of 100 are still held a second after", len(a.w.held))
			}
			a.end()
		})
	}
}

// A queue of nothing but poison: dead-lettered from OutageAfter on, not before.
func TestNothingButPoison(t *testing.T) {
	t.Parallel()
	a, told := beginWith(t, scenario{mode: plan.ByKey, lanes: 1, broker: stream, ids: true, target: true, keys: 1, credit: 5, outageAfter: 15 * time.Minute})
	defer told()
	a.publish("AAA")
	a.receive(3)
	exhausted := func(*world, *hand) supervision.Directive {
		d := supervision.DeadLetter("attempts", "")
		d.Exhausted, d.After = true, time.Second
		return d
	}
	l, began := &a.w.lanes[0], a.w.now
	for i := 0; a.w.first[0] < 3; i++ {
		if i > 100_000 {
			a.failf("not dead-lettered after %v", time.Duration(a.w.now-began))
		}
		switch {
		case l.cur != nil:
			a.fails(0)
		case a.w.step(l), a.w.reported(exhausted), len(a.w.copying) > 0 && a.w.copied(0, true):
		default:
			a.later(time.Duration(a.w.p.NextTimer() - a.w.now))
		}
		if a.w.first[0] == 1 && a.w.tally[nCopies] == 1 && time.Duration(a.w.now-began) < 15*time.Minute {
			a.failf("dead-lettered after %v", time.Duration(a.w.now-began))
		}
	}
	if a.w.tally[nNoEvidence] == 0 {
		a.failf("nobody was told why it waits")
	}
	a.end()
}

// One poisonous message in a healthy flow reaches the dead-letter target after
// exactly five attempts, although its lane restarts and epochs change between
// them. Lost links don't count.
func TestFiveAttempts(t *testing.T) {
	t.Parallel()
	a, told := beginWith(t, scenario{mode: plan.ByKey, lanes: 1, broker: stream, ids: true, target: true, keys: 2, credit: 5, outageAfter: 15 * time.Minute})
	defer told()
	a.publish("AB")
	a.receive(2)
	primes := ""
	for attempt := 1; attempt <= 5; attempt++ {
		name := "A1" + primes
		a.starts(0, name)
		if attempt == 4 { // the link is lost while it runs, nine times in all
			for range 9 {
				a.linkDies()
				a.pump()
				primes += "'"
				a.receive(1)
			}
			a.ends(0, succeeds)
			a.reports()
			name = "A1" + primes
			a.starts(0, name)
		}
		a.ends(0, fails+outcome(attempt%2))
		d := retry(time.Millisecond)
		d.RestartLane = attempt == 2
		if attempt == 5 {
			d = supervision.DeadLetter("attempts", "")
			d.Exhausted = true
		}
		a.decides(name, attempt, d)
		if attempt == 1 { // evidence
			a.runs(0, "B1")
		}
		a.later(time.Millisecond)
	}
	a.copied(true)
	a.end()
}
