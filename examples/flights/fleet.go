package main

import (
	"bytes"
	"encoding/json"
	"math"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// leg is what the handler reads of a flight. Other files than the built-in one
// may lack both fields.
type leg struct {
	Distance number `json:"distance"`  // miles
	DepDelay number `json:"dep_delay"` // minutes; negative is early
}

// number is a number, or a string that holds one. Everything else, "NA" too, is
// unknown and counts as 0.
type number float64

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(b []byte) error {
	*n = 0
	f, err := strconv.ParseFloat(string(bytes.Trim(b, `"`)), 64)
	if err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
		*n = number(f)
	}
	return nil
}

// aircraft is what is known of one key after its latest leg.
type aircraft struct {
	flights int
	miles   float64
	delay   float64 // minutes late, all legs together
	carried float64 // of these, the minutes that the leg before was late already
	late    float64 // minutes that the latest leg was late
	digest  uint64  // of all legs, in their order
}

// fly adds a leg. The digest of what came before is the seed of the next, so
// another order gives another digest.
func (a *aircraft) fly(l leg, body []byte) {
	late := max(float64(l.DepDelay), 0)
	a.flights++
	a.miles += float64(l.Distance)
	a.delay += late
	a.carried += min(a.late, late)
	a.late = late
	var d xxhash.Digest
	d.ResetWithSeed(a.digest)
	_, _ = d.Write(body) // it never fails
	a.digest = d.Sum64()
}

// fleet is the state of all aircraft. It lives outside of the lanes, as a
// database would: a lane's restart doesn't touch it.
type fleet struct {
	shards [64]struct {
		sync.Mutex
		aircraft map[string]*aircraft
	}
	// keyless counts legs without an aircraft, and sums their digests: they
	// have no order.
	keyless    atomic.Int64
	keylessSum atomic.Uint64
}

func newFleet() *fleet {
	f := &fleet{}
	for i := range f.shards {
		f.shards[i].aircraft = make(map[string]*aircraft)
	}
	return f
}

// fly adds a leg of key's. Any goroutine.
func (f *fleet) fly(key string, l leg, body []byte) {
	if key == "" {
		f.keyless.Add(1)
		f.keylessSum.Add(xxhash.Sum64(body))
		return
	}
	s := &f.shards[xxhash.Sum64String(key)%uint64(len(f.shards))]
	s.Lock()
	defer s.Unlock()
	a := s.aircraft[key]
	if a == nil {
		a = &aircraft{}
		s.aircraft[key] = a
	}
	a.fly(l, body)
}

// all gives a copy of the state by key.
func (f *fleet) all() map[string]aircraft {
	all := make(map[string]aircraft)
	for i := range f.shards {
		s := &f.shards[i]
		s.Lock()
		for key, a := range s.aircraft {
			all[key] = *a
		}
		s.Unlock()
	}
	return all
}

// differences lists the keys, sorted, whose state isn't the same in both
// fleets; "" stands for the keyless legs.
func differences(got, want *fleet) []string {
	var keys []string
	g, w := got.all(), want.all()
	for key, a := range w {
		if g[key] != a {
			keys = append(keys, key)
		}
	}
	for key := range g {
		if _, ok := w[key]; !ok {
			keys = append(keys, key)
		}
	}
	if got.keyless.Load() != want.keyless.Load() || got.keylessSum.Load() != want.keylessSum.Load() {
		keys = append(keys, "")
	}
	sort.Strings(keys)
	return keys
}

// reference is the plain, single-threaded pass over the input, repeated as the
// run was, less what skip leaves out.
func reference(events []event, repeat int, skip func(index int) bool) *fleet {
	f := newFleet()
	for i := range len(events) * repeat {
		e := &events[i%len(events)]
		if skip(i) {
			continue
		}
		var l leg
		if json.Unmarshal(e.body, &l) != nil {
			continue // dead letters, whatever happens
		}
		f.fly(e.key, l, e.body)
	}
	return f
}
