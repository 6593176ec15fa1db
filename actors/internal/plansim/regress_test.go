package plansim

import (
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
)

// What the simulation found, one tale each.

// A lane is replaced in its second run while the report of the first is on its
// way. The first is done; it is the second's item that is stuck.
func TestStuckInTheSecondRun(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.ByKey, 1, stream)
	defer told()
	a.publish("AA")
	a.receive(1)
	a.starts(0, "A1")
	a.receive(1)
	a.succeeds(0)
	a.startsNothing(0) // reports
	a.starts(0, "A2")
	a.replaced(0)
	a.are("A1 gone, A2 stuck")
	a.reports() // of the first run: it changes nothing
	a.are("A2 stuck")
	a.returns(succeeds)
	a.returns(succeeds) // its runner finds nothing more
	a.reports()
	a.are("A2 gone")
	a.end()
}

// A stuck delivery fences its key once, also when it loses its lease as well.
func TestStuckAndLost(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.ByKey, 1, stream)
	defer told()
	a.publish("A")
	a.receive(1)
	a.starts(0, "A1")
	a.replaced(0)
	a.linkDies()
	a.pump()
	a.receive(1)
	a.are("A1 stuck, A1' queued")
	a.returns(succeeds)
	a.reports()
	a.runs(0, "A1'")
	a.end()
}

// Without a dead-letter target what is keyless stands still too, until Unpark of
// the key "".
func TestKeylessWithoutTarget(t *testing.T) {
	t.Parallel()
	a, told := beginWith(t, scenario{mode: plan.PerKey, lanes: 1, broker: stream, ids: true, keys: 1, credit: 8})
	defer told()
	a.publish("--")
	a.receive(2)
	a.starts(0, "-1")
	a.fails(0)
	a.decides("-1", 1, supervision.DeadLetter("poison", ""))
	a.are("-1 pinned, -2 lent")
	a.w.unpark(0, false) // a key of that name isn't parked
	a.are("-1 pinned")
	a.w.unpark(-1, false)
	a.are("-1 lent")
	a.runs(0, "-2")
	a.runs(0, "-1")
	a.end()
}

// The lease is lost while the copy is on its way, and the message comes again
// before the copy is confirmed: the newer hand-out isn't copied a second time,
// whatever its attempts came to meanwhile.
func TestCopyConfirmedAfterItCameAgain(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.ByKey, 1, stream)
	defer told()
	a.publish("A")
	a.receive(1)
	a.starts(0, "A1")
	a.fails(0)
	a.decides("A1", 1, supervision.DeadLetter("poison", ""))
	a.linkDies()
	a.pump()
	a.receive(1)
	a.are("A1 copying, A1' queued")
	a.copied(true)
	a.starts(0, "A1'")
	a.linkDies() // once more: its failure mustn't displace what is remembered
	a.pump()
	a.fails(0)
	a.reports()
	a.receive(1)
	a.are("A1'' gone")
	a.settled("A1''", true)
	a.end()
}

// The same with a newer hand-out that fails in its epoch.
func TestCopyConfirmedWhileItFails(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.ByKey, 1, stream)
	defer told()
	a.publish("A")
	a.receive(1)
	a.starts(0, "A1")
	a.fails(0)
	a.decides("A1", 1, supervision.DeadLetter("poison", ""))
	a.linkDies()
	a.pump()
	a.receive(1)
	a.copied(true)
	a.starts(0, "A1'")
	a.fails(0)
	a.decides("A1'", 1, supervision.DeadLetter("poison", "")) // attempts begin anew: it was decided
	a.are("A1' gone")
	a.settled("A1'", true)
	a.end()
}

// The message comes again while the handler that lost its lease still runs, and
// fails: that attempt counts for the hand-out that is already here.
func TestAttemptsReachWhatCameEarly(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.ByKey, 1, stream)
	defer told()
	a.publish("A")
	a.receive(1)
	a.starts(0, "A1")
	a.fails(0)
	a.decides("A1", 1, retry(0))
	a.later(time.Millisecond)
	a.starts(0, "A1")
	a.linkDies()
	a.pump()
	a.receive(1)
	a.fails(0)
	a.reports()
	a.starts(0, "A1'")
	a.fails(0)
	a.decides("A1'", 3, retry(0))
	a.end()
}

// Sixteen failures in a row look like an outage, but a success is on its way: it
// is none, and nobody is told of one that ends before it begins.
func TestOutageThatIsNone(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.Workers, 2, standard)
	defer told()
	a.publish("----")
	a.receive(1)
	name, lane := a.w.held[0].String(), a.w.held[0].run.Lane
	for attempt := 1; attempt <= 16; attempt++ {
		a.starts(lane, name)
		if attempt == 16 { // the other lane gets two, and is at the second
			a.receive(3)
			run := a.w.lanes[1-lane].mail[0]
			first, second := handOf(run.Items[0]).String(), handOf(run.Items[1]).String()
			a.starts(1-lane, first)
			a.succeeds(1 - lane)
			a.starts(1-lane, second)
		}
		a.fails(lane)
		a.decides(name, attempt, retry(0))
		if attempt < 16 {
			a.later(time.Millisecond)
			lane = a.w.held[0].run.Lane
		}
	}
	if a.w.outage || a.w.tally[nOutages] != 0 {
		a.failf("outage %t, told %d times", a.w.outage, a.w.tally[nOutages])
	}
	a.end()
}

// Two leases of one group are lost, the later one first: what is void goes back
// in reverse order all the same.
func TestVoidInTwoSteps(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.ByKey, 1, fifo)
	defer told()
	a.publish("AAAA")
	a.receive(4)
	a.starts(0, "A1")
	a.replaced(0)
	a.losesLease("A3")
	a.hears()
	a.are("A2 queued, A3 gone, A4 void")
	a.losesLease("A1")
	a.hears()
	a.are("A2 void, A4 void")
	a.returns(succeeds)
	a.reports() // A4 goes back before A2: the promise "reverse"
	a.settled("A2", true)
	a.settled("A4", true)
	a.end()
}

// A replaced lane's handler fails at last, and the policy wants the lane
// restarted: its next incarnation is at something, and is left alone, without
// what it hasn't begun being lost from sight.
func TestLateFailureOfAReplacedLane(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.PerKey, 2, stream)
	defer told()
	a.publish("BACC")
	a.receive(2)
	lane := a.hand("B1").run.Lane
	a.starts(lane, "B1")
	a.replaced(lane)
	a.starts(1-lane, "A1")
	a.receive(2)
	a.starts(lane, "C1")
	a.returns(fails)
	d := retry(time.Minute)
	d.RestartLane = true
	a.decides("B1", 1, d)
	a.are("C1 lent, C2 queued")
	a.succeeds(lane)
	a.startsNothing(lane)
	a.reports()
	a.runs(lane, "C2")
	a.end()
}

// The leases of a running head and of a delivery behind it are lost at the same
// time, and told in the wrong order: what is behind both waits for the head.
func TestLostInTheWrongOrder(t *testing.T) {
	t.Parallel()
	a, told := begin(t, plan.ByKey, 1, fifo)
	defer told()
	a.publish("AAA")
	a.receive(3)
	a.starts(0, "A1")
	a.losesLease("A2")
	a.losesLease("A1")
	a.must(a.w.lost(2), "news of two lost leases")
	a.are("A1 lent, A2 gone, A3 void")
	a.settled("A3", false)
	a.succeeds(0)
	a.reports()
	a.settled("A3", true)
	a.end()
}
