package plan

import (
	"fmt"
	"testing"

	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// runAll runs everything that es lends, and what follows, and gives the ids in
// the order of their starts.
func runAll(p *Planner, now int64, es []Effect) (ids []string) {
	rs := lends(es)
	for len(rs) > 0 {
		r := rs[0]
		rs = rs[1:]
		for {
			i, ok := r.Claim()
			if !ok {
				break
			}
			ids = append(ids, r.Items[i].D.ID)
		}
		r.Finished = r.Claimed()
		rs = append(rs, lends(p.Done(now, r))...)
	}
	return ids
}

// Keys come and go, more than are kept: what is forgotten of a key is nothing, and
// its name is used again without mixing up what it stands for.
func TestKeysComeAndGo(t *testing.T) {
	t.Parallel()
	const keys = 3 * coldKeys
	for _, mode := range []Mode{ByKey, PerKey} {
		p := New(Config{Mode: mode, Lanes: 4, Traits: transport.Traits{Ordered: true}})
		n := 0
		for range 2 {
			for at := 0; at < keys; at += 2 {
				a, b := fmt.Sprint("k", at), fmt.Sprint("k", at+1)
				ids := runAll(p, 1, p.Arrive(1, items(1, n, a, b, a, b)))
				if len(ids) != 4 {
					t.Fatalf("mode %d: %d of 4 ran: %v", mode, len(ids), ids)
				}
				place := make(map[string]int)
				for i, id := range ids {
					place[id] = i
				}
				if place[fmt.Sprint(n)] > place[fmt.Sprint(n+2)] || place[fmt.Sprint(n+1)] > place[fmt.Sprint(n+3)] {
					t.Fatalf("mode %d: out of order: %v, from %d on", mode, ids, n)
				}
				n += 4
			}
		}
		if s := p.Snapshot(); s.Held != 0 || s.Keys != 0 || s.Queued != 0 || s.Runnable != 0 {
			t.Fatalf("mode %d: left over: %+v", mode, s)
		}
		if len(p.keys) > coldKeys+1 {
			t.Fatalf("mode %d: %d keys are kept, want at most %d", mode, len(p.keys), coldKeys)
		}
	}
}

// A key that is parked is never among those that are forgotten.
func TestParkedKeysAreKept(t *testing.T) {
	t.Parallel()
	p := New(Config{Mode: PerKey, Lanes: 1, Traits: transport.Traits{Ordered: true}})
	r := lends(p.Arrive(1, items(1, 0, "parked")))[0]
	r.Claim()
	r.Claw()
	r.Finished, r.Verdict = 1, VerdictFailed
	it := p.Done(1, r)[0].Item
	p.Decide(1, it, supervision.DeadLetter("poison", "")) // there is no target
	for at := range 2 * coldKeys {
		runAll(p, 1, p.Arrive(1, items(1, at+1, fmt.Sprint("k", at))))
	}
	if ids := runAll(p, 1, p.Arrive(1, items(1, 1_000_000, "parked"))); len(ids) != 0 {
		t.Fatal("the parked key ran")
	}
	es, found := p.Unpark(1, "parked", true)
	if ids := runAll(p, 1, es); !found || len(ids) != 1 {
		t.Fatalf("unparked %t, ran %v", found, ids)
	}
}

// Attempts are remembered of the last messages that went away, and of no more.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	var m memory
	item := func(i, attempt int) *Item {
		it := &items(1, i, "")[0]
		it.inTrouble()
		it.Attempt = attempt
		return it
	}
	const many = 3*memoryCap + 7
	for i := range many {
		m.remember(item(i, 4))
		m.remember(item(i, 5)) // the same message again takes no second place
	}
	if len(m.by) != memoryCap || len(m.order) != memoryCap {
		t.Fatalf("%d remembered, %d in order, want %d", len(m.by), len(m.order), memoryCap)
	}
	for i := range many {
		it := item(i, 1)
		m.inherit(it)
		want := 1
		if i >= many-memoryCap {
			want = 5
		}
		if it.Attempt != want {
			t.Fatalf("message %d: attempt %d, want %d", i, it.Attempt, want)
		}
	}
}

// One message that goes away and comes again for ever is remembered each time,
// although its old places in the order are passed over and used again.
func TestMemoryOfOneThatComesAgain(t *testing.T) {
	t.Parallel()
	var m memory
	it := &items(1, 0, "")[0]
	it.inTrouble()
	for attempt := 2; attempt < 3*memoryCap; attempt++ {
		it.Attempt = attempt
		m.remember(it)
		it.Attempt = 1
		if m.inherit(it); it.Attempt != attempt {
			t.Fatalf("attempt %d, want %d", it.Attempt, attempt)
		}
	}
	if len(m.by) != 0 {
		t.Fatalf("%d remembered, want none", len(m.by))
	}
}
