package actors_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// Forty keys whose messages take 10 ms to fail, beside a healthy flow: between
// the publishing of a healthy message and its start each of them runs at most
// once more, not counting what ran already.
func TestPoisonousKeysBesideAHealthyFlow(t *testing.T) {
	for _, d := range []actors.Dispatch{actors.ByKey(1), actors.ByKey(4), actors.PerKey(1), actors.PerKey(4)} {
		t.Run(d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const poisonous, healthy, takes = 40, 100, 10 * time.Millisecond
				r := newRig(t, nil)
				var mu sync.Mutex
				ran := map[string]int{}
				published := map[string]map[string]int{} // what had run, by healthy id
				times := map[string]time.Time{}
				var worst, settled time.Duration
				begun := time.Now()
				most, later := 0, 0 // and of what was published after the first second
				j := newJournal(healthy)
				pid := r.spawn(func(_ context.Context, m *transport.Delivery) error {
					if m.Key[0] == 'p' {
						mu.Lock()
						ran[m.Key]++
						mu.Unlock()
						time.Sleep(takes)
						return errBoom
					}
					j.begin(m)
					defer j.end(m, true)
					mu.Lock()
					defer mu.Unlock()
					wait := time.Since(times[m.ID])
					worst = max(worst, wait)
					if times[m.ID].Sub(begun) > time.Second {
						settled = max(settled, wait)
					}
					for k, n := range ran {
						most = max(most, n-published[m.ID][k])
						if times[m.ID].Sub(begun) > time.Second {
							later = max(later, n-published[m.ID][k])
						}
					}
					return nil
				}, actors.Options{Dispatch: d, Policy: supervision.RetryForever(supervision.Backoff{})})
				var poison []string
				for i := range poisonous {
					poison = append(poison, fmt.Sprint("p", i), fmt.Sprint("p", i))
				}
				r.publish(1000, poison...)
				for i := range healthy {
					mu.Lock()
					id := fmt.Sprint(i)
					published[id], times[id] = maps.Clone(ran), time.Now()
					mu.Unlock()
					r.publish(i, fmt.Sprint("h", i%7))
					time.Sleep(17 * time.Millisecond)
				}
				r.await(pid, j.done)
				t.Logf("the longest wait is %v, and %v after a second; the most runs of one poisonous key before it %d", worst, settled, most)
				// With several lanes others run them, ahead of nothing. In the beginning
				// all forty are tried once, and each success in between lets one of them
				// be tried again.
				if d.Lanes() == 1 && (later > 1 || most > 2) {
					t.Errorf("a poisonous key ran %d times ahead of a healthy message, and %d times after the first second", most, later)
				}
				if worst > (poisonous+1)*takes {
					t.Errorf("a healthy message waited for %v", worst)
				}
				if settled > 3*takes {
					t.Errorf("after the first second a healthy message waited for %v, want a run or two of something poisonous", settled)
				}
				j.check(t)
				r.stop(pid)
				r.left(2 * poisonous)
			})
		})
	}
}
