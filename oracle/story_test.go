package oracle

import (
	"fmt"
	"math/rand/v2"

	"github.com/keylanes/keylanes/transport"
)

// story is a correct run, told from a seed: messages of a few keys and some
// keyless ones are published, started, fail, retried, dead-lettered, returned.
type story struct {
	log      *Log
	rules    Rules
	rnd      *rand.Rand
	credit   int
	keys     [][]*msg // waiting, in order; the last list is keyless
	running  []*msg
	held     int
	expected Verdict
}

type msg struct {
	m        transport.Message
	run      Run
	key      int
	busy     bool
	failures int
	decided  bool
}

// tell makes a random log that keeps every promise, and the figures that a
// verdict on it must have.
func tell(seed uint64, log *Log) *story {
	s := &story{log: log, rnd: rand.New(rand.NewPCG(seed, 7)), credit: 8}
	s.rules.Credit = s.credit
	s.keys = make([][]*msg, 2+s.rnd.IntN(5))
	toPublish := 10 + s.rnd.IntN(40)
	for toPublish > 0 || s.waiting() > 0 || len(s.running) > 0 {
		switch s.rnd.IntN(3) {
		case 0:
			if toPublish > 0 {
				toPublish--
				s.publish()
			}
		case 1:
			s.start()
		case 2:
			s.end()
		}
	}
	s.expected.Processes = 1
	return s
}

func (s *story) waiting() int {
	n := 0
	for _, k := range s.keys {
		n += len(k)
	}
	return n
}

func (s *story) publish() {
	key := s.rnd.IntN(len(s.keys))
	m := &msg{key: key, m: transport.Message{ID: fmt.Sprintf("m%d", s.log.Len())}}
	if key < len(s.keys)-1 {
		m.m.Key = fmt.Sprintf("key-%d", key)
	}
	s.log.Record(Published, &m.m)
	s.expected.Published++
	if s.rnd.IntN(10) == 0 {
		// It never arrived, or it did although nobody said so.
		s.log.Record(Unconfirmed, &m.m)
		s.expected.Published--
		s.expected.Unconfirmed++
		if s.rnd.IntN(2) == 0 {
			return
		}
	}
	s.keys[key] = append(s.keys[key], m)
}

// start starts the head of a key, or any keyless message.
func (s *story) start() {
	key := s.rnd.IntN(len(s.keys))
	list := s.keys[key]
	i := 0
	if key == len(s.keys)-1 && len(list) > 0 {
		i = s.rnd.IntN(len(list))
	}
	if len(list) == 0 || list[i].busy || len(s.running) == s.credit {
		return
	}
	m := list[i]
	m.busy = true
	s.log.Received(1)
	s.held++
	s.expected.MostHeld = max(s.expected.MostHeld, s.held)
	if m.failures > 0 || m.run.log != nil {
		s.expected.Retries++
	}
	m.run = s.log.Start(&m.m, m.failures+1)
	s.running = append(s.running, m)
	s.expected.Started++
}

func (s *story) end() {
	if len(s.running) == 0 {
		return
	}
	i := s.rnd.IntN(len(s.running))
	m := s.running[i]
	s.running = append(s.running[:i], s.running[i+1:]...)
	m.busy = false
	switch n := s.rnd.IntN(10); {
	case n < 6:
		m.run.End(Succeeded)
		s.expected.Succeeded++
		m.decided = true
	case n < 8:
		m.run.End(Failed)
		s.expected.Failed++
		m.failures++
	default:
		m.run.End(Panicked)
		s.expected.Panicked++
		m.failures++
	}
	if !m.decided && s.rnd.IntN(3) == 0 {
		m.decided = true
		if s.rnd.IntN(4) == 0 {
			s.log.Record(AcceptedAnyway, &m.m)
			s.expected.AcceptedAnyway++
		} else {
			s.log.Record(DeadLettered, &m.m)
			s.expected.DeadLettered++
		}
	}
	if !m.decided && s.rnd.IntN(5) == 0 {
		s.log.Record(Returned, &m.m)
		s.expected.Returned++
	}
	if m.decided {
		list := s.keys[m.key]
		for i := range list {
			if list[i] == m {
				s.keys[m.key] = append(list[:i:i], list[i+1:]...)
				break
			}
		}
	}
	s.log.Settled(1)
	s.held--
}

// entries copies a log's records, to be changed.
func entries(l *Log) []entry {
	chunks, _ := l.snapshot()
	var es []entry
	for _, c := range chunks {
		es = append(es, c...)
	}
	return es
}

// retold makes a log of changed records, with their order as their time.
func retold(l *Log, es []entry) *Log {
	to := New()
	to.processes, to.most = l.processes, l.most
	for i, e := range es {
		e.at = to.baseNanos + int64(i)*1000
		to.keep(e)
	}
	to.n = uint64(len(es))
	return to
}
