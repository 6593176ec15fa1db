package actors_test

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/transport"
)

// job is a message of the tests that compare the tree with what is possible.
type job struct {
	key  int
	took time.Duration
}

// listSchedule is the physical bound: how long the jobs take when each starts as
// soon as it may. They are handed out in order, never more than credit at once
// from the hand-out to the end; at most lanes run, and one of each key.
func listSchedule(jobs []job, keys, lanes, credit int) time.Duration {
	waiting := make([][]int, keys) // of each key, in order
	busy := make([]bool, keys)
	var ready []int // keys that may start, in order
	var running ends
	now, next, held := time.Duration(0), 0, 0
	for next < len(jobs) || len(running) > 0 {
		for held < credit && next < len(jobs) {
			k := jobs[next].key
			if waiting[k] = append(waiting[k], next); len(waiting[k]) == 1 && !busy[k] {
				ready = append(ready, k)
			}
			next++
			held++
		}
		for len(running) < lanes && len(ready) > 0 {
			k := ready[0]
			ready = ready[1:]
			j := waiting[k][0]
			waiting[k] = waiting[k][1:]
			busy[k] = true
			heap.Push(&running, end{now + jobs[j].took, k})
		}
		e := heap.Pop(&running).(end)
		now = e.at
		held--
		if busy[e.key] = false; len(waiting[e.key]) > 0 {
			ready = append(ready, e.key)
		}
	}
	return now
}

type end struct {
	at  time.Duration
	key int
}

type ends []end

func (h ends) Len() int           { return len(h) }
func (h ends) Less(i, j int) bool { return h[i].at < h[j].at }
func (h ends) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *ends) Push(x any)        { *h = append(*h, x.(end)) }
func (h *ends) Pop() any {
	e := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return e
}

// work lets a subscription do the jobs, in virtual time; each call of done says
// that one has ended. It returns how long all took, or d when that is less.
func (r *rig) work(jobs []job, d time.Duration, o actors.Options, done func(j job)) time.Duration {
	r.t.Helper()
	p := r.queue.Publisher()
	ms := make([]transport.Message, 0, 1000)
	for i, j := range jobs {
		ms = append(ms, transport.Message{ID: strconv.Itoa(i), Key: strconv.Itoa(j.key)})
		if len(ms) == cap(ms) || i == len(jobs)-1 {
			if err := p.Publish(context.Background(), ms...); err != nil {
				r.t.Fatal(err)
			}
			ms = ms[:0]
		}
	}
	var left atomic.Int64
	left.Store(int64(len(jobs)))
	all := make(chan struct{})
	o.StopTimeout = time.Millisecond
	begun := time.Now()
	pid := r.spawn(func(ctx context.Context, m *transport.Delivery) error {
		i, _ := strconv.Atoi(m.ID)
		if jobs[i].took > 0 {
			select {
			case <-time.After(jobs[i].took):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		done(jobs[i])
		if left.Add(-1) == 0 {
			close(all)
		}
		return nil
	}, o)
	select {
	case <-all:
	case <-time.After(d):
	}
	took := time.Since(begun)
	_ = actors.Drain(context.Background(), r.sys.Root, pid)
	return took
}

// 100,000 messages of 0 to 5 ms, 100 at once: the tree takes hardly longer than
// what is physically possible, whatever the keys. In virtual time, so this is the
// planning alone, and holds on any machine.
func TestTimeOverThePhysicalBound(t *testing.T) {
	const n, lanes, credit = 100_000, 100, 256
	for _, keys := range []int{1, 10, 20, 1000} {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(1, uint64(keys)))
				jobs := make([]job, n)
				for i := range jobs {
					jobs[i] = job{random.IntN(keys), time.Duration(random.Int64N(int64(5 * time.Millisecond)))}
				}
				bound := listSchedule(jobs, keys, lanes, credit)
				took := newRig(t, nil).work(jobs, 24*time.Hour, actors.Options{Dispatch: actors.PerKey(lanes), Credit: credit}, func(job) {})
				ratio := float64(took) / float64(bound)
				t.Logf("%v took %v, the bound is %v: %.3f", actors.PerKey(lanes), took, bound, ratio)
				if ratio > 1.1 {
					t.Errorf("it takes %.3f times what is possible, want at most 1.1", ratio)
				}
			})
		})
	}
}

// 400,000 messages of 1,000 keys, one in a hundred of a key whose messages take
// 50 ms: how many of the others are done within two seconds. The slow key fills
// the credit in the end, whatever the dispatch: the bound counts that.
func TestSlowKeyAmongThousand(t *testing.T) {
	const n, keys, lanes, credit, span = 400_000, 1000, 16, 256, 2 * time.Second
	jobs := make([]job, n)
	for i := range jobs {
		if jobs[i] = (job{key: 1 + i%(keys-1)}); i%100 == 50 {
			jobs[i] = job{0, 50 * time.Millisecond}
		}
	}
	// In two seconds 40 of the slow key end, and credit of it are held beside:
	// what lies between them on the queue is what can be done.
	ceiling := (credit + int(span/(50*time.Millisecond))) * 99
	for _, c := range []struct {
		d    actors.Dispatch
		want int
	}{
		{actors.PerKey(lanes), ceiling * 95 / 100},
		// It may lose the slow key's lane, whose other keys take turns with it and
		// fill a part of the credit.
		{actors.ByKey(lanes), ceiling / 2},
	} {
		t.Run(c.d.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var fast atomic.Int64
				newRig(t, nil).work(jobs, span, actors.Options{Dispatch: c.d, Credit: credit}, func(j job) {
					if j.key != 0 {
						fast.Add(1)
					}
				})
				t.Logf("%v: %d others in %v, the ceiling is %d", c.d, fast.Load(), span, ceiling)
				if int(fast.Load()) < c.want {
					t.Errorf("%d others are done, want at least %d", fast.Load(), c.want)
				}
			})
		})
	}
}
