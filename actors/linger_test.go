package actors_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

var errNotNow = &transport.TemporaryError{Op: "settle", Err: errors.New("one entry of the batch failed")}

// Interleaving 9. A settlement lingers while the renewal of its lease is under
// way, and one entry of a batch of settlements fails: what is healthy isn't torn
// down, and the failed entry is tried again. When it fails for as long as its
// lease lives, its message comes again: a duplicate, and no loss.
func TestInterleaving09SettlementLingers(t *testing.T) {
	const lease = 8 * time.Second
	for name, c := range map[string]struct {
		fault func(memory.Op) memory.Reply
		again int // hand-outs of 2 beyond the first
	}{
		// Extensions are asked for within the fifth second, and take effect 1.5 s
		// later; handlers return after 5 s, their settlements take 2 s.
		"the renewal is answered while the settlement lingers": {fault: func(op memory.Op) memory.Reply {
			switch op.Kind {
			case memory.OpExtend:
				return memory.Reply{Delay: 1500 * time.Millisecond}
			case memory.OpSettle:
				return memory.Reply{Delay: 2 * time.Second}
			}
			return memory.Reply{}
		}},
		"the renewal of what lingers is refused": {fault: func(op memory.Op) memory.Reply {
			switch op.Kind {
			case memory.OpExtend:
				return memory.Reply{Delay: 2 * time.Second, Err: errors.New("it is gone")}
			case memory.OpSettle:
				return memory.Reply{Delay: 500 * time.Millisecond}
			}
			return memory.Reply{}
		}},
		"one entry fails": {fault: func(op memory.Op) memory.Reply {
			if op.Kind == memory.OpSettle && op.Delivery.ID == "2" && op.Try <= 3 {
				return memory.Reply{Err: errNotNow}
			}
			return memory.Reply{}
		}},
		"one entry fails until its lease is over": {again: 1, fault: func(op memory.Op) memory.Reply {
			if op.Kind == memory.OpSettle && op.Delivery.ID == "2" && op.Delivery.Count == 0 {
				return memory.Reply{Err: errNotNow}
			}
			return memory.Reply{}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, &memory.QueueOptions{FIFO: true, Lease: lease, CountsOnReturn: true, Fault: c.fault})
				var runs trail
				var mu sync.Mutex
				seen := map[actors.ObservationKind][]string{}
				pid := r.spawn(func(ctx context.Context, d *transport.Delivery) error {
					runs.add("%s", d.ID)
					if len(runs.all()) <= 3 {
						time.Sleep(5 * time.Second)
					}
					if ctx.Err() != nil {
						t.Errorf("%v was cancelled: %v", d, context.Cause(ctx))
					}
					return nil
				}, actors.Options{Dispatch: actors.PerKey(3), Observer: actors.ObserverFunc(func(o actors.Observation) {
					mu.Lock()
					defer mu.Unlock()
					seen[o.Kind] = append(seen[o.Kind], o.Delivery.ID)
				})})
				r.publish(1, "A", "B", "C", "A", "B", "C")
				time.Sleep(2 * time.Minute)
				r.drain(pid)
				r.left(0)
				mu.Lock()
				defer mu.Unlock()
				for id := 1; id <= 6; id++ {
					want := 1
					if id == 2 {
						want += c.again
					}
					if n := runs.count(fmt.Sprint(id)); n != want {
						t.Errorf("%d ran %d times, want %d", id, n, want)
					}
				}
				settled := slices.Sorted(slices.Values(seen[actors.ObserveSettled]))
				if !slices.Equal(settled, []string{"1", "2", "3", "4", "5", "6"}) {
					t.Errorf("settled are %q, want each once", settled)
				}
				failed := append(seen[actors.ObserveSettleFailed], seen[actors.ObserveLost]...)
				if len(failed) != c.again || c.again > 0 && failed[0] != "2" {
					t.Errorf("settlements failed, or leases were lost, of %q, want %d of 2", failed, c.again)
				}
				if n := len(seen[actors.ObserveReturned]) + len(seen[actors.ObserveFailed]); n != 0 {
					t.Errorf("%d went back or failed, want none", n)
				}
			})
		})
	}
}

// A settlement begins while Close is in progress: a handler that outlasts its stop
// returns then. It goes to its own receiver, once, and what that says is final.
func TestSettleBeginsWhileCloseIsInProgress(t *testing.T) {
	for _, takes := range []bool{true, false} {
		t.Run(fmt.Sprint("taken ", takes), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, s := newRig(t, nil), newScript()
				closing, goOn := make(chan struct{}), make(chan struct{})
				s.closing = func(context.Context, *scriptRcv) error {
					close(closing)
					<-goOn
					return nil
				}
				var settled trail
				s.settle = func(rcv *scriptRcv, d *transport.Delivery, o transport.Outcome) {
					settled.add("%s %s", d.ID, o.Kind)
					if takes {
						rcv.confirm(d, o)
						return
					}
					rcv.sink.Settled(d, o, fmt.Errorf("closing: %w", transport.ErrLeaseLost))
				}
				running, release := make(chan struct{}), make(chan struct{})
				pid := r.spawnOn(s, func(context.Context, *transport.Delivery) error {
					close(running)
					<-release
					return nil
				}, actors.Options{StopTimeout: time.Second})
				synctest.Wait()
				s.last(t).deliver("1:A", "2:A")
				<-running
				drained := make(chan error, 1)
				go func() { drained <- actors.Drain(context.Background(), r.sys.Root, pid) }()
				<-closing // after StopTimeout and the grace
				close(release)
				synctest.Wait()
				settled.want(t, "1 accept")
				close(goOn)
				if err := <-drained; err != nil {
					t.Errorf("drain: %v, want none: the handler has returned", err)
				}
				settled.want(t, "1 accept")
				if want := map[bool]int{true: 1, false: 0}[takes]; len(s.last(t).outcomes()) != want {
					t.Errorf("settled %q, want %d", s.last(t).outcomes(), want)
				}
			})
		})
	}
}
