package plansim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
)

// tale is a schedule that is written by hand: what happens, in order. Every
// promise is checked after each step here too; a line that can't happen, or goes
// otherwise than it says, fails the test with the story so far.
type tale struct {
	t *testing.T
	w *world
}

// begin starts a tale. Defer the function that it gives.
func begin(t *testing.T, mode plan.Mode, lanes int, b broker) (*tale, func()) {
	t.Helper()
	return beginWith(t, scenario{mode: mode, lanes: lanes, broker: b, ids: true, target: true, keys: 3, credit: 20})
}

func beginWith(t *testing.T, s scenario) (*tale, func()) {
	t.Helper()
	w := newWorld()
	w.story = &story{}
	w.reset(s)
	w.calm = true
	a := &tale{t, w}
	return a, func() {
		switch e := recover().(type) {
		case nil:
		case *violation:
			t.Fatalf("%v\n%v", w.story, e)
		default:
			panic(e)
		}
	}
}

func (a *tale) failf(format string, args ...any) {
	a.t.Helper()
	a.t.Fatalf("%v\n%s", a.w.story, fmt.Sprintf(format, args...))
}

func (a *tale) must(happened bool, what string, args ...any) {
	a.t.Helper()
	if !happened {
		a.failf("this can't happen now: "+what, args...)
	}
}

// publish adds a message for each letter: its key, or - for none.
func (a *tale) publish(keys string) {
	for _, c := range keys {
		k := int(c - 'A')
		if c == '-' {
			k = -1
		}
		a.w.publish(k)
	}
}

// handOut lets the broker hand out n messages; they are on their way.
func (a *tale) handOut(n int) {
	a.t.Helper()
	before := a.w.nh
	a.must(a.w.handOut(n), "a hand-out")
	if got := a.w.nh - before; got != n {
		a.failf("the broker hands out %d, want %d", got, n)
	}
}

// pump brings the router what the pump sent next.
func (a *tale) pump() { a.t.Helper(); a.must(a.w.pumped(), "news from the pump") }

// receive hands out n and brings them to the router.
func (a *tale) receive(n int) { a.t.Helper(); a.handOut(n); a.pump() }

// starts lets a lane go on: it has to start name.
func (a *tale) starts(lane int, name string) {
	a.t.Helper()
	l := &a.w.lanes[lane]
	a.must(a.w.step(l), "lane %d goes on", lane)
	if l.cur == nil || l.cur.String() != name {
		a.failf("lane %d runs %v, want %s", lane, l.cur, name)
	}
}

// startsNothing lets a lane go on, if it can: it must not start anything.
func (a *tale) startsNothing(lane int) {
	a.t.Helper()
	l := &a.w.lanes[lane]
	if a.w.step(l) && l.cur != nil {
		a.failf("lane %d runs %v, want nothing", lane, l.cur)
	}
}

func (a *tale) ends(lane int, o outcome) {
	a.t.Helper()
	a.must(a.w.finish(&a.w.lanes[lane].runner, o), "the end of lane %d's handler", lane)
}

func (a *tale) succeeds(lane int) { a.t.Helper(); a.ends(lane, succeeds) }
func (a *tale) fails(lane int)    { a.t.Helper(); a.ends(lane, fails) }

// reports brings the router the next report, which isn't of a failure.
func (a *tale) reports() {
	a.t.Helper()
	a.must(a.w.reported(func(_ *world, h *hand) supervision.Directive {
		a.failf("the policy is asked about %v", h)
		return supervision.Directive{}
	}), "a report")
}

// decides brings the router the next report, of the failure of name, about which
// the policy says d.
func (a *tale) decides(name string, attempt int, d supervision.Directive) {
	a.t.Helper()
	asked := false
	a.must(a.w.reported(func(_ *world, h *hand) supervision.Directive {
		if asked = true; h.String() != name || h.item.Attempt != attempt {
			a.failf("the policy is asked about %v, attempt %d, want %s, %d", h, h.item.Attempt, name, attempt)
		}
		return d
	}), "a report")
	if !asked {
		a.failf("the policy isn't asked about %s", name)
	}
}

// runs lets a lane run name well, to the end of its run, and brings the report.
func (a *tale) runs(lane int, names ...string) {
	a.t.Helper()
	for _, name := range names {
		a.starts(lane, name)
		a.succeeds(lane)
	}
	a.startsNothing(lane)
	a.reports()
}

// later lets time pass, and timers fire.
func (a *tale) later(d time.Duration) { a.t.Helper(); a.w.now += int64(d); a.w.tick() }

// hand finds a hand-out by name.
func (a *tale) hand(name string) *hand {
	a.t.Helper()
	for i := range a.w.hands[:a.w.nh] {
		if h := &a.w.hands[i]; h.String() == name {
			return h
		}
	}
	a.failf("nobody has seen %s", name)
	return nil
}

// losesLease ends name's lease at the broker; the router doesn't know yet.
func (a *tale) losesLease(name string) {
	a.t.Helper()
	a.must(a.w.loseLease(a.hand(name)), "%s loses its lease", name)
}

// leaseEnds tells the router that name's lease can't be extended any more.
func (a *tale) leaseEnds(name string) {
	a.t.Helper()
	a.must(a.w.leaseEnds(a.hand(name)), "the lease of %s is ending", name)
}

// hears brings the router the news of one lost lease.
func (a *tale) hears() { a.t.Helper(); a.must(a.w.lost(1), "news of a lost lease") }

// linkDies ends the epoch; its end is news on its way.
func (a *tale) linkDies() { a.w.tell("the link is lost"); a.w.endEpoch() }

// closes lets the broker close the epoch, as the planner ordered.
func (a *tale) closes() {
	a.t.Helper()
	a.must(a.w.closing, "the broker closes the epoch")
	a.w.endEpoch()
}

// replaced gives a lane a new incarnation, since its handler doesn't return.
func (a *tale) replaced(lane int) {
	a.t.Helper()
	a.must(a.w.replace(&a.w.lanes[lane]), "a replacement")
}

// returns lets the handler of a replaced lane return at last.
func (a *tale) returns(o outcome) { a.t.Helper(); a.must(a.w.zombieGoesOn(o), "a late return") }

// copied says how the dead-letter copy went that was begun first.
func (a *tale) copied(ok bool) { a.t.Helper(); a.must(a.w.copied(0, ok), "a copy's end") }

// are checks states: "A1 parked, A2 queued, B1 gone".
func (a *tale) are(states string) {
	a.t.Helper()
	for _, s := range strings.Split(states, ", ") {
		name, want, _ := strings.Cut(s, " ")
		if got := a.hand(name).item.State().String(); got != want {
			a.failf("%s is %s, want %s", name, got, want)
		}
	}
}

// settles checks that name was given back, or accepted, or neither.
func (a *tale) settled(name string, want bool) {
	a.t.Helper()
	if h := a.hand(name); h.settled != want {
		a.failf("%s settled: %t, want %t", name, h.settled, want)
	}
}

// end runs everything to its end.
func (a *tale) end() { a.w.wind() }

func retry(d time.Duration) supervision.Directive { return supervision.Retry(d) }
