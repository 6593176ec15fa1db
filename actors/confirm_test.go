package actors_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// With SettleBeforeNext a key's next delivery starts only when the accept of the
// one before is with the broker; without, as soon as it is on its way. Another
// key's delivery on another lane doesn't wait, in any case.
func TestSettleBeforeNext(t *testing.T) {
	const takes = time.Second // a settlement
	for _, batch := range []bool{false, true} {
		for _, on := range []bool{false, true} {
			for _, d := range []actors.Dispatch{actors.Sequential(), actors.ByKey(2), actors.PerKey(2), actors.Workers(1)} {
				t.Run(fmt.Sprintf("%v/%t/batches %t", d, on, batch), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						r := newRig(t, nil)
						r.queue.SetFault(func(op memory.Op) memory.Reply {
							if op.Kind == memory.OpSettle {
								return memory.Reply{Delay: takes}
							}
							return memory.Reply{}
						})
						var mu sync.Mutex
						starts := map[string]time.Duration{}
						begun, done := time.Now(), make(chan struct{})
						start := func(m *transport.Delivery) {
							mu.Lock()
							defer mu.Unlock()
							if starts[m.ID] = time.Since(begun); len(starts) == 3 {
								close(done)
							}
						}
						r.publish(1, "A", "A", "A")
						var pid *actorPID
						if batch {
							pid = r.spawnBatch(func(_ context.Context, ds []*transport.Delivery) error {
								start(ds[0])
								return nil
							}, actors.Options{Dispatch: d, SettleBeforeNext: on, Batch: 1})
						} else {
							pid = r.spawn(func(_ context.Context, m *transport.Delivery) error {
								start(m)
								return nil
							}, actors.Options{Dispatch: d, SettleBeforeNext: on})
						}
						r.await(pid, done)
						r.drain(pid)
						r.left(0)
						want := time.Duration(0)
						if on && d != actors.Workers(1) {
							want = takes
						}
						for i, id := range []string{"1", "2", "3"} {
							if got, at := starts[id], time.Duration(i)*want; got < at || got > at+100*time.Millisecond {
								t.Errorf("%s starts after %v, want %v: %v", id, got, at, starts)
							}
						}
					})
				})
			}
		}
	}
}

// A stop, and a lost link, end the wait for a confirmation that doesn't come.
func TestSettleBeforeNextIsBounded(t *testing.T) {
	for name, act := range map[string]func(r *rig){
		"stop": func(*rig) {},
		"link": func(r *rig) { r.queue.CutLinks() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				r.queue.SetFault(func(op memory.Op) memory.Reply {
					if op.Kind == memory.OpSettle && op.Delivery.Epoch == 1 {
						return memory.Reply{Lost: true} // no reply, ever
					}
					return memory.Reply{}
				})
				ended := listen(r.sys)
				ran, again := make(chan struct{}), make(chan struct{})
				n := 0
				pid := r.spawn(func(context.Context, *transport.Delivery) error {
					switch n++; n {
					case 1:
						close(ran)
					case 2:
						close(again)
					}
					return nil
				}, actors.Options{SettleBeforeNext: true, StopTimeout: time.Second})
				r.publish(1, "A", "A")
				<-ran
				time.Sleep(time.Second)
				if n != 1 {
					t.Errorf("%d deliveries started without a confirmation", n)
				}
				act(r)
				if name == "link" {
					r.await(pid, again)
				}
				// The receiver's close waits for the reply too, within bounds of its own.
				r.sys.Root.Stop(pid)
				for i := 0; len(ended.of(actors.EventStopped)) == 0; i++ {
					if time.Sleep(time.Second); i > 60 {
						t.Fatal("the stop doesn't end")
					}
				}
			})
		})
	}
}
