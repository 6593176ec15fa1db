//go:build unix

package replicas

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/keylanes/keylanes/oracle"
)

// graceAfter is how long a process that stood still may take, once it goes on,
// to notice that its lease is gone.
const graceAfter = time.Second

// fault is what a scenario does while messages flow. It gives the fault window,
// if there is one, and how many processes lost what they held.
type fault func(f *fleet) (window *oracle.Window, lost int)

func TestReplicas(t *testing.T) {
	t.Parallel()
	faults := []struct {
		name string
		do   fault
	}{{"kill", kill}, {"freeze", freeze}, {"roll", roll}}
	for name := range brokers {
		for _, n := range []int{2, 3} {
			for _, c := range faults {
				t.Run(fmt.Sprintf("%s/%d/%s", name, n, c.name), func(t *testing.T) {
					t.Parallel()
					scenario(t, name, n, c.do)
				})
			}
		}
	}
}

// scenario publishes, makes the fault in the middle of the flow, and publishes
// as much again, half of it of new keys.
func scenario(t *testing.T, name string, n int, do fault) {
	f := newFleet(t, name, n)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	half := f.broker.messages

	f.everybodyWorks(ctx)
	old := keys("old", 48)
	published := f.publish(ctx, old, half)
	f.await("a quarter is handled, by all", func() bool { return f.allHandled(10) && len(f.handled) > half/4 })
	window, lost := do(f)
	over := time.Now()
	f.published(published)
	f.await("the first half is handled", f.allDone)
	half1 := time.Since(over)
	f.everybodyWorks(ctx)
	t.Logf("after the fault the rest of the first half took %v, and everybody worked after %v", half1, time.Since(over))
	f.published(f.publish(ctx, append(keys("new", 48), old...), half))
	f.await("the second half is handled", f.allDone)
	t.Logf("shares of the second half: %v", f.shares())

	rules := oracle.Rules{Duplicates: lost * f.broker.lostCredits * fleetCredit, Credit: fleetCredit}
	if window != nil {
		rules.Faults = []oracle.Window{*window}
	}
	f.finish(rules)
}

func keys(prefix string, n int) []string {
	ks := make([]string, n)
	for i := range ks {
		ks[i] = fmt.Sprint(prefix, "-", i)
	}
	return ks
}

// allHandled reports whether each living process has handled n; f.mu is held.
func (f *fleet) allHandled(n int) bool {
	for _, r := range f.replicas {
		if r.count < n {
			return false
		}
	}
	return true
}

// allDone reports whether all that was published is handled; f.mu is held.
func (f *fleet) allDone() bool { return len(f.handled) == f.sent }

func (f *fleet) published(failed <-chan error) {
	f.t.Helper()
	if err := <-failed; err != nil {
		f.t.Fatal(err)
	}
}

// busy gives a process that has handled a message this moment, so that it very
// likely holds others.
func (f *fleet) busy() *replica {
	f.t.Helper()
	r := f.replicas[0]
	f.mu.Lock()
	before := r.count
	f.mu.Unlock()
	f.await("a process handles one more", func() bool { return r.count > before })
	return r
}

// kill ends one process in the middle of its work.
func kill(f *fleet) (*oracle.Window, int) {
	r := f.busy()
	f.signal(r, syscall.SIGKILL)
	if err := f.remove(r); err == nil {
		f.t.Error("the killed process ended in good order")
	}
	return nil, 1
}

// freeze stops one process for longer than its lease lasts, and lets it go on.
func freeze(f *fleet) (*oracle.Window, int) {
	r := f.busy()
	f.mu.Lock()
	opens := r.opens
	f.mu.Unlock()
	w := &oracle.Window{From: time.Now()}
	f.signal(r, syscall.SIGSTOP)
	still := time.NewTimer(f.broker.freeze)
	defer still.Stop()
	<-still.C
	f.signal(r, syscall.SIGCONT)
	w.To = time.Now().Add(graceAfter)
	if f.broker.reopens {
		f.await("the process that stood still is attached again", func() bool { return r.opens > opens })
	}
	return w, 1
}

// roll replaces every process, one after the other, the old one first.
func roll(f *fleet) (*oracle.Window, int) {
	for _, old := range append([]*replica(nil), f.replicas...) {
		f.terminate(old)
		f.start()
	}
	return nil, 0
}
