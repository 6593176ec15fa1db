package plansim

import (
	"fmt"
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
)

// A lane claims an item while the router claws it back: exactly one wins, and
// what was clawed back is held, lost or given back, but never started.
func TestClaimMeetsClawBack(t *testing.T) {
	t.Parallel()
	claws := map[string]func(a *tale){
		"pause":          func(a *tale) { a.w.pause() },
		"drain":          func(a *tale) { a.w.drain() },
		"lost lease":     func(a *tale) { a.losesLease("A1"); a.hears() },
		"end of epoch":   func(a *tale) { a.linkDies(); a.pump() },
		"abandon, reset": func(a *tale) { a.starts(1, "B1"); a.fails(1); a.decides("B1", 1, supervision.Abandon(0)) },
	}
	for name, claw := range claws {
		b := fifo
		if name == "abandon, reset" {
			b = stream
		}
		for _, claimed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, claimed %t", name, claimed), func(t *testing.T) {
				t.Parallel()
				a, told := begin(t, plan.PerKey, 2, b)
				defer told()
				a.publish("BAA")
				a.receive(3)
				if claimed {
					a.starts(0, "A1")
				}
				claw(a)
				if claimed {
					a.are("A1 lent")
					a.succeeds(0)
				} else if a.hand("A1").item.State() == plan.Lent {
					t.Fatal("A1 is still lent")
				}
				a.startsNothing(0)
				a.end()
			})
		}
	}
}

// A lane panics with another run queued behind it: the next incarnation ignores
// runs that aren't its own, and gets the failed delivery first.
func TestPanicWithARunQueuedBehind(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.ByKey, 1, stream)
	defer told()
	a.publish("AAABAB")
	a.receive(3)
	a.starts(0, "A1")
	a.receive(3) // a second run, behind the first
	a.are("B1 lent, A4 lent, B2 lent")
	a.ends(0, panics)
	a.startsNothing(0) // it is down
	a.decides("A1", 1, retry(time.Second))
	a.are("A1 parked, A2 queued, A3 queued, A4 queued, B1 lent, B2 lent")
	if n := len(a.w.lanes[0].mail); n != 2 {
		a.failf("%d runs in the mailbox, want the old one and the new", n)
	}
	a.runs(0, "B1", "B2")
	a.later(time.Second)
	a.runs(0, "A1", "A2", "A3", "A4")
	a.end()
}

// A handler ignores its ended context for three times its timeout: its retry
// starts only when it has returned, although its lane has long been replaced and
// goes on with other keys.
func TestHandlerThatOverstays(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.ByKey, 1, stream)
	defer told()
	a.publish("AAB")
	a.receive(3)
	a.starts(0, "A1")
	a.later(30 * time.Second)
	a.replaced(0)
	a.are("A1 stuck, A2 queued, B1 lent")
	a.runs(0, "B1")
	a.later(60 * time.Second)
	a.startsNothing(0)
	a.are("A1 stuck, A2 queued")
	a.returns(fails)
	a.decides("A1", 1, retry(time.Second))
	a.are("A1 parked, A2 queued")
	a.later(time.Second)
	a.runs(0, "A1", "A2")
	a.end()
}

// The link dies while A1 runs. It comes again in the next epoch and waits for the
// old handler, whose success is refused: it never touches the new delivery.
func TestLinkDiesWhileItRuns(t *testing.T) {
	t.Parallel()
	for _, mode := range []plan.Mode{plan.Sequential, plan.ByKey, plan.PerKey} {
		a, told := begin(t, mode, 1, stream)
		func() {
			defer told()
			a.publish("AA")
			a.receive(2)
			a.starts(0, "A1")
			a.linkDies()
			a.handOut(2)
			a.pump() // the end of the epoch
			a.are("A1 lent, A2 gone")
			a.pump() // A1', A2'
			a.are("A1' queued, A2' queued")
			a.startsNothing(0)
			a.succeeds(0)
			a.settled("A1", false)
			a.reports()
			a.settled("A1'", false)
			a.runs(0, "A1'", "A2'")
			a.settled("A1'", true)
			a.end()
		}()
	}
}

// Credit 8, 100 messages of one key, the head abandoned again and again, by an
// epoch reset each time: there is progress after each.
func TestHeadAbandonedAgainAndAgain(t *testing.T) {
	t.Parallel()
	a, told := beginWith(t, scenario{mode: plan.ByKey, lanes: 2, broker: stream, ids: true, target: true, keys: 1, credit: 8})
	defer told()
	for range 100 {
		a.publish("A")
	}
	w, l := a.w, &a.w.lanes[laneOf(0, 2)]
	resets, progress := 0, 0
	abandon := func(*world, *hand) supervision.Directive { return supervision.Abandon(0) }
	for steps := 0; w.first[0] < 100; steps++ {
		if steps > 100*60 {
			a.failf("%d of 100 after %d resets", w.first[0], resets)
		}
		switch {
		case w.closing:
			if resets > 0 && w.first[0] == progress {
				a.failf("no progress since the last reset, at %d of 100", progress)
			}
			resets, progress = resets+1, w.first[0]
			a.closes()
		case l.cur != nil && l.cur.item.Attempt == 1:
			a.fails(l.lane)
		case l.cur != nil:
			a.succeeds(l.lane)
		case w.step(l), w.reported(abandon), w.pumped(), w.handOut(8):
		default:
			a.later(time.Second) // resets keep a distance
		}
	}
	if resets != 100 {
		a.failf("%d resets, want one for each message", resets)
	}
	a.end()
}

// Drain while A1 runs: A2 isn't given back before A1 has ended, and A1's success
// counts.
func TestDrainWhileItRuns(t *testing.T) {
	t.Parallel()
	for _, b := range []broker{stream, fifo, standard} {
		a, told := begin(t, plan.ByKey, 1, b)
		func() {
			defer told()
			a.publish("AAB")
			a.receive(3)
			first := a.w.held[0].String()
			a.starts(0, first)
			a.w.drain()
			if a.w.drained {
				a.failf("drained while %s runs", first)
			}
			for _, h := range a.w.held[1:] {
				a.settled(h.String(), false)
			}
			a.succeeds(0)
			a.startsNothing(0)
			a.reports()
			if !a.w.drained || len(a.w.held) != 2 {
				a.failf("drained %t, %d held, want two to be given back", a.w.drained, len(a.w.held))
			}
			a.end() // the next subscription gets them
		}()
	}
}

// The extension fails for A1 alone: A2 to A9, held, are void, don't start, and go
// back when A1's handler has returned, the last one first.
func TestExtensionFailsForOne(t *testing.T) {
	t.Parallel()
	for _, mode := range []plan.Mode{plan.Sequential, plan.ByKey, plan.PerKey} {
		a, told := begin(t, mode, 1, fifo)
		func() {
			defer told()
			a.publish("AAAAAAAAA")
			a.receive(9)
			a.starts(0, "A1")
			a.losesLease("A1")
			a.hears()
			for n := 2; n <= 9; n++ {
				a.are(fmt.Sprintf("A%d void", n))
			}
			if !a.hand("A1").cancelled {
				a.failf("A1's handler isn't cancelled")
			}
			a.receive(1) // A1 comes again: it is the head of its group
			a.startsNothing(0)
			a.settled("A9", false)
			a.succeeds(0)
			a.reports()
			for n := 2; n <= 9; n++ {
				a.settled(fmt.Sprintf("A%d", n), true)
			}
			a.runs(0, "A1'")
			a.end()
		}()
	}
}

// On a standard queue the others are none of A1's business.
func TestExtensionFailsForOneOfMany(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.Workers, 1, standard)
	defer told()
	a.publish("---")
	a.receive(3)
	first, second, third := a.w.held[0].String(), a.w.held[1].String(), a.w.held[2].String()
	a.starts(0, first)
	a.losesLease(first)
	a.hears()
	a.are(second + " lent, " + third + " lent")
	a.receive(1)
	a.are(first + "' fenced")
	a.succeeds(0)
	a.reports()
	a.runs(0, second, third, first+"'")
	a.end()
}

// The clock jumps past every lease before a timer ticks: nothing starts, and
// nothing is accepted, on a lapsed lease.
func TestClockJumpsPastEveryLease(t *testing.T) {
	t.Parallel()
	for _, b := range []broker{fifo, standard} {
		a, told := begin(t, plan.PerKey, 1, b)
		func() {
			defer told()
			a.publish("AAAA")
			a.receive(4)
			first, second := a.w.held[0].String(), a.w.held[1].String()
			a.starts(0, first)
			a.fails(0)
			a.decides(first, 1, retry(time.Second))
			a.w.now += int64(time.Hour)
			a.w.lapseAll()
			a.w.tick() // before anybody has told the router
			a.are(first + " lent, " + second + " lent")
			a.startsNothing(0)
			a.reports() // lapsed
			for len(a.w.losses) > 0 {
				a.hears()
			}
			if len(a.w.held) > 0 || a.w.tally[nLapsed] != 1 {
				a.failf("%d held, %d lapsed", len(a.w.held), a.w.tally[nLapsed])
			}
			a.end()
		}()
	}
}

// Stop during a receive: what the broker hands out meanwhile isn't started, and
// is held until the receiver is closed, which gives it back.
func TestStopDuringAReceive(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.ByKey, 2, stream)
	defer told()
	a.publish("ABA")
	a.handOut(2)
	a.w.drain()
	a.pump()
	a.are("A1 queued, B1 queued")
	a.handOut(1)
	a.pump()
	a.are("A2 queued")
	a.startsNothing(0)
	a.startsNothing(1)
	a.end()
}

// Pause races a receive in flight: what it brings waits for Resume.
func TestPauseDuringAReceive(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.PerKey, 2, fifo)
	defer told()
	a.publish("AAA")
	a.handOut(2)
	a.w.pause()
	a.pump()
	a.are("A1 queued, A2 queued")
	a.w.resume()
	a.are("A1 lent, A2 lent")
	a.end()
}

// A park's timer fires after its delivery was unparked, lost, given back with its
// epoch, or dead-lettered: nothing happens.
func TestTimerOfWhatIsGone(t *testing.T) {
	t.Parallel()
	ends := map[string]func(a *tale){
		"unparked, done":    func(a *tale) { a.w.unpark(0, false); a.runs(0, "A1") },
		"unparked, skipped": func(a *tale) { a.w.unpark(0, true) },
		"lost":              func(a *tale) { a.losesLease("A1"); a.hears() },
		"epoch ended":       func(a *tale) { a.linkDies(); a.pump() },
		"dead-lettered": func(a *tale) {
			a.w.unpark(0, false)
			a.starts(0, "A1")
			a.fails(0)
			a.decides("A1", 2, supervision.DeadLetter("poison", ""))
			a.copied(true)
		},
		"drained": func(a *tale) { a.w.drain() },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, told := begin(t, plan.ByKey, 1, fifo)
			defer told()
			a.publish("A")
			a.receive(1)
			a.starts(0, "A1")
			a.fails(0)
			a.decides("A1", 1, retry(time.Minute))
			end(a)
			if at := a.w.p.NextTimer(); at != 0 {
				a.failf("a timer is set for %v", time.Duration(at))
			}
			before := a.w.tally
			a.later(time.Minute)
			if a.w.tally != before || len(a.w.lanes[0].mail) > 0 {
				a.failf("something happened")
			}
			a.end()
		})
	}
}

// The dead-letter copy is confirmed and the accept is lost: when the message comes
// again it is accepted, without a second copy and without a run.
func TestAcceptOfACopiedDeliveryIsLost(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.ByKey, 1, fifo)
	defer told()
	a.publish("AA")
	a.receive(2)
	a.starts(0, "A1")
	a.fails(0)
	a.decides("A1", 1, supervision.DeadLetter("poison", ""))
	a.losesLease("A1") // unnoticed
	a.copied(true)
	a.pump() // the accept was lost
	a.receive(1)
	a.are("A1' gone")
	a.settled("A1'", true)
	a.end()
}

// A settlement lingers, and at last fails, while the key goes on: neither A2, which
// is held behind it, nor another key is torn down, and A1 comes again as a duplicate.
func TestSettlementLingersAndFails(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.PerKey, 2, fifo)
	defer told()
	a.publish("BBAA")
	a.receive(4)
	a.starts(0, "A1")
	a.starts(1, "B1")
	a.ends(0, swallows)
	a.starts(0, "A2")
	a.losesLease("A1") // its settlement has failed for good
	a.are("A2 lent, B1 lent, B2 lent")
	a.succeeds(1)
	a.runs(1, "B2")
	a.succeeds(0)
	a.startsNothing(0)
	a.reports()
	a.receive(1)
	a.are("A1' lent")
	a.settled("A2", true)
	a.end()
}

// A key counts as idle, so that its actor may be passivated, only while nothing of
// it is held or parked by choice; what comes afterwards isn't stranded.
func TestKeyComesAndGoes(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.PerKey, 1, fifo)
	defer told()
	idle := func(want bool) {
		t.Helper()
		if a.w.p.KeyIdle("A") != want {
			a.failf("A is idle: %t, want %t", !want, want)
		}
	}
	idle(true)
	for i, name := range []string{"A1", "A2", "A3"} {
		a.publish("A")
		a.handOut(1)
		idle(true) // nobody knows of it yet
		a.pump()
		idle(false)
		a.starts(0, name)
		a.fails(0)
		a.decides(name, 1, retry(time.Second)) // parked, with nothing lent or queued
		idle(false)
		a.later(time.Second)
		if i == 1 { // by choice, also when nothing of it is held
			a.starts(0, name)
			a.fails(0)
			d := supervision.DeadLetter("poison", "")
			d.Park = true
			a.decides(name, 2, d)
			a.copied(true)
			a.are(name + " gone")
			idle(false)
			a.w.unpark(0, false)
			idle(true)
			continue
		}
		a.runs(0, name)
		idle(true)
	}
	a.end()
}

// The lease of a keyless delivery can't be extended any more, and lapses unsaid:
// the copy that comes then waits for its handler, whether that ran before or not.
func TestCopyWaitsWhereALeaseEnds(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprintf("lent before %t", before), func(t *testing.T) {
			t.Parallel()
			a, told := begin(t, plan.Workers, 2, standard)
			defer told()
			a.publish("-")
			if !before {
				a.w.pause()
			}
			a.receive(1)
			if !before {
				a.leaseEnds("-1")
				a.w.resume()
			}
			a.starts(1, "-1")
			if before {
				a.leaseEnds("-1")
			}
			a.losesLease("-1")
			a.receive(1)
			a.are("-1' fenced")
			a.startsNothing(0)
			a.succeeds(1)
			a.startsNothing(1)
			a.reports()
			a.are("-1 gone, -1' lent")
			a.end()
		})
	}
}

// A settlement begins while the epoch is being closed: it is refused, and the
// message comes again, once, as a duplicate.
func TestSettleWhileTheEpochCloses(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.ByKey, 1, stream)
	defer told()
	a.publish("AA")
	a.receive(2)
	a.starts(0, "A1")
	a.linkDies()
	a.ends(0, swallows) // its accept meets the closed receiver
	a.startsNothing(0)  // A2: its lease has lapsed
	a.reports()
	a.pump()
	a.receive(2)
	a.runs(0, "A1'", "A2'")
	a.end()
}
