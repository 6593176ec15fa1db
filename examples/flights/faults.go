package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"sort"

	"github.com/cespare/xxhash/v2"
)

// fault is what an attempt is made to do.
type fault uint8

const (
	noFault fault = iota
	errorFault
	panicFault
)

// errInjected is the error that faults make handlers return.
var errInjected = errors.New("injected error")

// errPoison is what every attempt at a poisonous aircraft's flight returns.
var errPoison = errors.New("poisonous aircraft")

// faults decides what goes wrong, from the seed, the message and the attempt
// alone: the same run fails the same way again.
type faults struct {
	seed                 uint64
	errorRate, panicRate float64
	poison, slow         map[string]bool // keys
	undecodable          map[int]bool    // messages whose body is broken
}

// plan chooses the poisonous and the slow aircraft and the undecodable messages.
func plan(c *config, events []event) *faults {
	f := &faults{
		seed: c.seed, errorRate: c.errorRate, panicRate: c.panicRate,
		poison: map[string]bool{}, slow: map[string]bool{}, undecodable: map[int]bool{},
	}
	// A poisonous aircraft with few flights, for two reasons. Each of its
	// flights takes five attempts, while whole days of the others go by; and
	// what is left of it when all others are done looks like an outage, in
	// which lanes only probe.
	for _, key := range f.candidates(events, 8, 14) {
		if len(f.poison) < c.poison {
			f.poison[key] = true
		}
	}
	for _, key := range f.candidates(events, 15, 40) {
		if len(f.slow) < c.slow && !f.poison[key] {
			f.slow[key] = true
		}
	}
	total := len(events) * c.repeat
	for i := 0; len(f.undecodable) < min(c.undecodable, total/2); i++ {
		f.undecodable[int(f.hash(uint64(i), 1<<32)%uint64(total))] = true
	}
	return f
}

// candidates gives the keys in an order that the seed decides, those with low
// to high messages first.
func (f *faults) candidates(events []event, low, high int) []string {
	count := map[string]int{}
	for _, e := range events {
		if e.key != "" {
			count[e.key]++
		}
	}
	keys := make([]string, 0, len(count))
	for key := range count {
		keys = append(keys, key)
	}
	rank := func(key string) (bool, uint64) {
		n := count[key]
		return n < low || n > high, f.hash(xxhash.Sum64String(key), 1<<33)
	}
	sort.Slice(keys, func(i, j int) bool {
		oddI, hashI := rank(keys[i])
		oddJ, hashJ := rank(keys[j])
		if oddI != oddJ {
			return oddJ
		}
		if hashI != hashJ {
			return hashI < hashJ
		}
		return keys[i] < keys[j]
	})
	return keys
}

// hash mixes the seed with two numbers.
func (f *faults) hash(a, b uint64) uint64 {
	var in [24]byte
	binary.LittleEndian.PutUint64(in[0:], f.seed)
	binary.LittleEndian.PutUint64(in[8:], a)
	binary.LittleEndian.PutUint64(in[16:], b)
	return xxhash.Sum64(in[:])
}

// at says what attempt (from 1) at a message is made to do.
func (f *faults) at(message, attempt int) fault {
	if f.errorRate+f.panicRate == 0 {
		return noFault
	}
	u := float64(f.hash(uint64(message), uint64(attempt))>>11) / (1 << 53)
	switch {
	case u < f.errorRate:
		return errorFault
	case u < f.errorRate+f.panicRate:
		return panicFault
	}
	return noFault
}

// body is what message i is published with.
func (f *faults) body(i int, e *event) []byte {
	if f.undecodable[i] {
		return append([]byte(`{"broken": `), e.body...)
	}
	return e.body
}

// deadLetters gives the messages that must end as dead letters: what doesn't
// decode, and what fails in every attempt.
func (f *faults) deadLetters(events []event, repeat, attempts int) map[int]bool {
	dead := map[int]bool{}
	decodes := make([]bool, len(events))
	for i := range events {
		var l leg
		decodes[i] = json.Unmarshal(events[i].body, &l) == nil
	}
	for i := range len(events) * repeat {
		e := &events[i%len(events)]
		if f.undecodable[i] || !decodes[i%len(events)] || f.poison[e.key] || f.exhausts(i, attempts) {
			dead[i] = true
		}
	}
	return dead
}

func (f *faults) exhausts(message, attempts int) bool {
	for a := 1; a <= attempts; a++ {
		if f.at(message, a) == noFault {
			return false
		}
	}
	return true
}
