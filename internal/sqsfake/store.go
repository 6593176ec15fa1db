package sqsfake

// store holds a queue's messages in the order in which they came, so that tens
// of thousands of them cost little.
type store struct {
	ms     []*message
	holes  int // of ms, those that were removed
	byID   map[string]*message
	groups map[string][]*message
}

func newStore() store {
	return store{byID: map[string]*message{}, groups: map[string][]*message{}}
}

func (s *store) add(m *message) {
	s.ms = append(s.ms, m)
	s.byID[m.id] = m
	g := m.e.MessageGroupID
	s.groups[g] = append(s.groups[g], m)
}

// remove marks m as gone. It never moves what a running loop over ms or a group
// still has before it.
func (s *store) remove(m *message) {
	m.gone = true
	delete(s.byID, m.id)
	s.holes++
	if g := m.e.MessageGroupID; len(s.groups[g]) > 0 {
		ms := s.groups[g]
		for len(ms) > 0 && ms[0].gone {
			ms = ms[1:]
		}
		if s.groups[g] = ms; len(ms) == 0 {
			delete(s.groups, g)
		}
	}
	if s.holes > len(s.ms)/2 {
		left := make([]*message, 0, len(s.ms)-s.holes)
		for _, m := range s.ms {
			if !m.gone {
				left = append(left, m)
			}
		}
		s.ms, s.holes = left, 0
	}
}
