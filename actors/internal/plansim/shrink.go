package plansim

import "time"

// materialize turns a seed into the words that it stands for.
func (s *schedule) materialize() {
	if s.words != nil {
		return
	}
	r := rnd{s.seed}
	s.words = make([]uint64, s.scenario.steps)
	for i := range s.words {
		s.words[i] = r.next()
	}
}

// shrink gives a shorter schedule that breaks the same promise.
func shrink(w *world, s schedule, v *violation) (schedule, *violation) {
	s.materialize()
	fails := func(try schedule) bool {
		got := w.run(&try)
		if got == nil || got.name != v.name {
			return false
		}
		s, v = try, got
		return true
	}
	for again := true; again; {
		again = shrinkScenario(&s, fails)
		for size := max(len(s.words)/2, 1); ; size /= 2 {
			for at := 0; at+size <= len(s.words); {
				try := s
				try.words = append(append(make([]uint64, 0, len(s.words)), s.words[:at]...), s.words[at+size:]...)
				if fails(try) {
					again = true
				} else {
					at += size
				}
			}
			if size <= 1 {
				break
			}
		}
	}
	return s, v
}

// shrinkScenario tries simpler scenarios: fewer of everything, options off.
func shrinkScenario(s *schedule, fails func(schedule) bool) bool {
	some := false
	numbers := []func(*scenario) *int{
		func(c *scenario) *int { return &c.messages }, func(c *scenario) *int { return &c.lanes },
		func(c *scenario) *int { return &c.keys }, func(c *scenario) *int { return &c.credit },
		func(c *scenario) *int { return &c.batch }, func(c *scenario) *int { return &c.maxReceives },
	}
	for i, f := range numbers {
		least := 1
		if i >= len(numbers)-2 {
			least = 0
		}
		for n := least; n < *f(&s.scenario); n++ {
			try := *s
			*f(&try.scenario) = n
			if fails(try) {
				some = true
				break
			}
		}
	}
	switches := []func(*scenario) *bool{
		func(c *scenario) *bool { return &c.keyless }, func(c *scenario) *bool { return &c.native },
		func(c *scenario) *bool { return &c.delay },
	}
	for _, f := range switches {
		try := *s
		if v := f(&try.scenario); *v {
			*v = false
			some = fails(try) || some
		}
	}
	for _, f := range []func(*scenario) *time.Duration{
		func(c *scenario) *time.Duration { return &c.outageAfter }, func(c *scenario) *time.Duration { return &c.resetWait },
	} {
		try := *s
		if v := f(&try.scenario); *v != 0 {
			*v = 0
			some = fails(try) || some
		}
	}
	return some
}

// tellStory runs a schedule once more, and gives what happened.
func tellStory(w *world, s schedule) string {
	w.story = &story{}
	defer func() { w.story = nil }()
	_ = w.run(&s)
	return s.scenario.String() + "\n" + w.story.String()
}
