//go:build unix

package actors_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// Handlers that always fail at once leave the CPU idle: ten minutes of them cost less
// than six seconds of CPU time. Not parallel: it counts what the process
// uses.
func TestAlwaysFailingLeavesTheCPUIdle(t *testing.T) { //nolint:paralleltest // counts the process's CPU time
	for name, c := range map[string]struct {
		policy  supervision.Policy
		healthy bool
	}{
		"nothing but failures":     {supervision.Default(), false}, // an outage: lanes probe
		"beside a healthy flow":    {supervision.RetryForever(supervision.Backoff{}), true},
		"abandoned at once, again": {supervision.Always(supervision.Abandon(0)), true},
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // as above
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				var calls atomic.Int64
				pid := r.spawn(func(_ context.Context, d *transport.Delivery) error {
					if d.Key == "good" {
						return nil
					}
					calls.Add(1)
					return errBoom
				}, actors.Options{Dispatch: actors.PerKey(8), Policy: c.policy, OutageAfter: 2 * time.Hour})
				keys := manyKeys(50, 50)
				if strings.HasPrefix(name, "abandoned") { // what is keyless comes again at once, as it was ordered
					keys = slices.DeleteFunc(keys, func(k string) bool { return k == "" })
				}
				r.publish(1, keys...)
				before := cpu(t)
				for i := range 600 {
					if c.healthy {
						r.publish(100+i, "good")
					}
					time.Sleep(time.Second)
				}
				used := cpu(t) - before
				t.Logf("%d calls and %v of CPU time in ten minutes", calls.Load(), used)
				if used > 6*time.Second {
					t.Errorf("%v of CPU time in ten minutes", used)
				}
				if n := calls.Load(); n < 50 || n > 5*8*600 {
					t.Errorf("%d calls in ten minutes, want at most a handful a second a lane", n)
				}
				r.stop(pid)
			})
		})
	}
}

// cpu is the CPU time that the process has used.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
