package plan

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// items makes a slab of deliveries with these keys, ids counting from from.
func items(epoch uint64, from int, keys ...string) []Item {
	var slab transport.Slab
	lease := transport.NewLease()
	its := make([]Item, len(keys))
	for i, k := range keys {
		d := slab.New(lease, nil)
		d.Key, d.ID, d.Epoch, d.Count = k, fmt.Sprint(from+i), epoch, 0
		its[i] = Item{D: d, Key: k}
	}
	return its
}

// lends gives the runs among the effects.
func lends(es []Effect) (rs []*Run) {
	for _, e := range es {
		if e.Kind == Lend {
			rs = append(rs, e.Run)
		}
	}
	return rs
}

// finish claims everything of r and reports it as done.
func finish(p *Planner, now int64, r *Run) []Effect {
	r.Finished = 0
	for {
		if _, ok := r.Claim(); !ok {
			break
		}
	}
	r.Finished = r.Claimed()
	return p.Done(now, r)
}

func TestOneKeyKeepsItsOrderThroughAFailure(t *testing.T) {
	t.Parallel()
	p := New(Config{Mode: ByKey, Lanes: 1, Traits: transport.Traits{Ordered: true}, HasTarget: true})
	rs := lends(p.Arrive(1, items(1, 0, "a", "b", "a", "b")))
	if len(rs) != 1 || rs[0].N != 4 {
		t.Fatalf("lent %v, want one run of 4", rs)
	}
	r := rs[0]
	r.Claim()
	r.Claw() // the lane closes the run at the failure
	r.Finished, r.Verdict = 1, VerdictFailed
	es := p.Done(2, r)
	if len(es) != 1 || es[0].Kind != Ask || es[0].Item.D.ID != "0" {
		t.Fatalf("effects %v, want Ask of item 0", es)
	}
	rs = lends(p.Decide(3, es[0].Item, supervision.Retry(time.Second)))
	if len(rs) != 1 || rs[0].N != 2 || rs[0].Items[0].D.ID != "1" || rs[0].Items[1].D.ID != "3" {
		t.Fatal("want b's deliveries to go on alone")
	}
	finish(p, 4, rs[0])
	if at := p.NextTimer(); at != 3+int64(time.Second) {
		t.Fatalf("timer at %d", at)
	}
	rs = lends(p.Tick(p.NextTimer()))
	if len(rs) != 1 || rs[0].N != 2 || rs[0].Items[0].D.ID != "0" || rs[0].Items[1].D.ID != "2" {
		t.Fatal("want the failed delivery first, its successor behind it")
	}
	if rs[0].Items[0].Attempt != 2 {
		t.Fatalf("attempt %d, want 2", rs[0].Items[0].Attempt)
	}
	finish(p, 5, rs[0])
	if s := p.Snapshot(); s.Held != 0 || s.Queued != 0 || s.Runnable != 0 {
		t.Fatalf("left over: %+v", s)
	}
}

// A lane claims from the front while the planner claws back: every item goes to
// exactly one of them. A million races, also with the lane closing its own run.
func TestClaimAndClawRace(t *testing.T) {
	t.Parallel()
	const rounds = 1_000_000
	var r Run
	// Both spin, so that they begin at the same time: waking a goroutine takes
	// longer than a run.
	var begun, ended, claimed atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for round := range int64(rounds) {
			for begun.Load() <= round {
				runtime.Gosched()
			}
			n := 0
			for {
				i, ok := r.Claim()
				if !ok {
					break
				}
				if i != n {
					panic("claimed out of order")
				}
				n++
			}
			claimed.Add(int64(n))
			ended.Store(round + 1)
		}
	})
	clawed, both := 0, 0
	for round := range int64(rounds) {
		r.N = MaxRun
		r.open()
		before := claimed.Load()
		begun.Store(round + 1)
		for range round % 97 { // vary where the claw meets the claims
			r.Claimed()
		}
		c := r.Claw()
		for ended.Load() <= round {
			runtime.Gosched()
		}
		if n := int(claimed.Load() - before); n != c {
			t.Fatalf("round %d: the lane claimed %d, the claw said %d", round, n, c)
		}
		clawed += MaxRun - c
		if c > 0 && c < MaxRun {
			both++
		}
	}
	wg.Wait()
	if got := int(claimed.Load()) + clawed; got != rounds*MaxRun {
		t.Fatalf("%d items accounted for, want %d", got, rounds*MaxRun)
	}
	t.Logf("%d rounds, %d of them split", rounds, both)
	if both == 0 && runtime.GOMAXPROCS(0) > 1 { // one processor hardly ever changes sides in between
		t.Error("no claw-back met a lane in the middle of its run")
	}
}

func BenchmarkPlanner(b *testing.B) {
	for _, nkeys := range []int{64, 1000, 1_000_000} {
		for _, mode := range []Mode{ByKey, PerKey} {
			b.Run(fmt.Sprintf("mode=%d/keys=%d", mode, nkeys), func(b *testing.B) {
				p := New(Config{Mode: mode, Lanes: 8, Traits: transport.Traits{Ordered: true}})
				keys := make([]string, 1<<16)
				x := uint64(1)
				for i := range keys {
					x ^= x << 13
					x ^= x >> 7
					x ^= x << 17
					keys[i] = fmt.Sprint("key-", x%uint64(nkeys))
				}
				d := &transport.Delivery{}
				b.ReportAllocs()
				b.ResetTimer()
				const credit = 256
				slabs := [credit / 64][]Item{}
				for i := range slabs {
					slabs[i] = make([]Item, 64)
				}
				var out []*Run
				take := func(es []Effect) {
					for i := range es {
						if es[i].Kind == Lend {
							out = append(out, es[i].Run)
						}
					}
				}
				n, at := 0, 0
				for n < b.N {
					for s := range slabs {
						for i := range slabs[s] {
							slabs[s][i] = Item{D: d, Key: keys[at&(1<<16-1)]}
							at++
						}
						take(p.Arrive(int64(at), slabs[s]))
					}
					for len(out) > 0 {
						r := out[0]
						out = append(out[:0], out[1:]...)
						for {
							if _, ok := r.Claim(); !ok {
								break
							}
						}
						r.Finished = r.Claimed()
						n += r.Finished
						take(p.Done(int64(at), r))
					}
				}
				if p.Snapshot().Held != 0 {
					b.Fatal("left over")
				}
			})
		}
	}
}
