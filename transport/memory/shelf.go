package memory

import "math/rand/v2"

// shelf keeps the entries that are ready, in the order in which a queue hands
// them out. Only Queue.mu's holder uses it. What says whether an entry is ready
// is its place; a shelf may still list entries that aren't, and skips them.
type shelf interface {
	// add gives the slot for the next published message, whose key is given.
	add(key string) *entry
	// fresh is called once add's entry is filled in and is ready.
	fresh(e *entry)
	// put takes back an entry that is ready again.
	put(e *entry)
	// take appends up to n ready entries to dst, and puts them out.
	take(dst []*entry, n int) []*entry
	// drop is told of an entry that is gone, so that what stood behind it may move.
	drop(e *entry)
	// each calls f for every ready entry, in order where there is one.
	each(f func(e *entry))
}

// log allocates entries, chunkSize at a time.
type log struct {
	tail *chunk
	rich bool // every entry needs a more
}

func (l *log) add(string) *entry {
	if l.tail == nil || l.tail.n == chunkSize {
		c := &chunk{}
		if l.rich {
			c.more = make([]more, chunkSize)
		}
		if l.tail != nil {
			l.tail.next = c
		}
		l.tail = c
	}
	e := &l.tail.items[l.tail.n]
	if l.rich {
		e.more = &l.tail.more[l.tail.n]
	}
	l.tail.n++
	return e
}

// ordered hands out by order of publishing: it reads along the log, and takes
// what came back from a heap. An entry may be in both, or twice in the heap
// (published held back, became ready before the reader got there); whichever
// comes first puts it out, and the other skips it.
type ordered struct {
	log
	head *chunk // what the reader reads next
	at   int
	back bySeq
}

func (o *ordered) add(key string) *entry {
	e := o.log.add(key)
	if o.head == nil {
		o.head = o.tail
	}
	return e
}

func (o *ordered) fresh(*entry) {} // the reader finds it

func (o *ordered) put(e *entry) { o.back.push(e) }

func (o *ordered) drop(*entry) {}

func (o *ordered) take(dst []*entry, n int) []*entry {
	for n > 0 {
		e := o.next()
		if len(o.back) > 0 && (e == nil || o.back[0].seq <= e.seq) {
			e = o.back.pop()
			if e.place != ready {
				continue
			}
		} else if e == nil {
			return dst
		} else {
			o.at++
		}
		e.place = out
		dst = append(dst, e)
		n--
	}
	return dst
}

// next is the first ready entry of the log that wasn't read yet, or nil.
func (o *ordered) next() *entry {
	for o.head != nil {
		for ; o.at < o.head.n; o.at++ {
			if e := &o.head.items[o.at]; e.place == ready {
				return e
			}
		}
		if o.head.next == nil {
			return nil
		}
		o.head, o.at = o.head.next, 0
	}
	return nil
}

func (o *ordered) each(f func(e *entry)) {
	back := append(bySeq(nil), o.back...)
	c, i := o.head, o.at
	var last *entry
	for {
		for c != nil && (i == c.n || c.items[i].place != ready) {
			if i < c.n {
				i++
			} else {
				c, i = c.next, 0
			}
		}
		var e *entry
		switch {
		case len(back) > 0 && (c == nil || back[0].seq <= c.items[i].seq):
			e = back.pop()
		case c != nil:
			e = &c.items[i]
			i++
		default:
			return
		}
		if e.place == ready && e != last {
			f(e)
			last = e
		}
	}
}

// shuffled hands out at random.
type shuffled struct {
	log
	rand  *rand.Rand
	items []*entry
}

func (s *shuffled) fresh(e *entry) { s.items = append(s.items, e) }

func (s *shuffled) put(e *entry) { s.items = append(s.items, e) }

func (s *shuffled) drop(*entry) {}

func (s *shuffled) take(dst []*entry, n int) []*entry {
	for n > 0 && len(s.items) > 0 {
		i, end := s.rand.IntN(len(s.items)), len(s.items)-1
		e := s.items[i]
		s.items[i], s.items[end] = s.items[end], nil
		s.items = s.items[:end]
		if e.place != ready {
			continue
		}
		e.place = out
		dst = append(dst, e)
		n--
	}
	return dst
}

func (s *shuffled) each(f func(e *entry)) {
	for _, e := range s.items {
		if e.place == ready {
			f(e)
		}
	}
}
