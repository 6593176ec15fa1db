package actors_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/transport"
)

var dispatches = []actors.Dispatch{actors.Sequential(), actors.ByKey(1), actors.ByKey(8), actors.PerKey(8), actors.Workers(8)}

func manyKeys(n, keys int) []string {
	ks := make([]string, n)
	for i := range ks {
		if i%11 == 7 {
			continue // keyless
		}
		ks[i] = fmt.Sprint("key-", i*7919%keys)
	}
	return ks
}

// inTurn gives n keys, so many different ones in turn, and none empty.
func inTurn(n, keys int) []string {
	ks := make([]string, n)
	for i := range ks {
		ks[i] = fmt.Sprint("k", i%keys)
	}
	return ks
}

func TestEverythingIsHandledInOrderThroughFailures(t *testing.T) {
	t.Parallel()
	for _, d := range dispatches {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const n = 2000
				r := newRig(t, nil)
				r.publish(0, manyKeys(n, 50)...)
				j := newJournal(n)
				pid := r.spawn(func(ctx context.Context, d *transport.Delivery) (err error) {
					j.begin(d)
					ok := false
					defer func() { j.end(d, ok) }()
					if transport.Attempt(ctx) == 1 {
						switch len(d.ID) + int(d.ID[len(d.ID)-1]) {
						case 3 + '1':
							return errors.New("not today")
						case 3 + '2':
							panic("boom")
						case 3 + '3':
							runtime.Goexit()
						case 4 + '4':
							time.Sleep(time.Millisecond)
						}
					}
					ok = true
					return nil
				}, actors.Options{Dispatch: d, Policy: fast()})
				r.await(pid, j.done)
				r.drain(pid)
				if d != actors.Workers(8) {
					j.check(t)
				}
				r.left(0)
				if dead := r.dead.Depth(); dead != 0 {
					t.Errorf("%d dead letters, want none", dead)
				}
			})
		})
	}
}
