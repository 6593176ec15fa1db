package plan

// timers is a binary heap of items by due time. It is hand-made because an item
// has to know its place, so that a timer can be taken out when its delivery was
// unparked, lost or given back, and because container/heap allocates for each
// push of an interface.
type timers struct{ h []*Item }

func (t *timers) add(it *Item, due int64) {
	it.due = due
	t.h = append(t.h, it)
	it.heapAt = len(t.h)
	t.up(len(t.h) - 1)
}

func (t *timers) remove(it *Item) {
	if it.trouble == nil || it.heapAt == 0 {
		return
	}
	i := it.heapAt - 1
	last := len(t.h) - 1
	t.swap(i, last)
	t.h[last] = nil
	t.h = t.h[:last]
	it.heapAt = 0
	if i < last {
		t.up(i)
		t.down(i)
	}
}

func (t *timers) peek() *Item {
	if len(t.h) == 0 {
		return nil
	}
	return t.h[0]
}

func (t *timers) swap(i, j int) {
	t.h[i], t.h[j] = t.h[j], t.h[i]
	t.h[i].heapAt, t.h[j].heapAt = i+1, j+1
}

func (t *timers) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if t.h[p].due <= t.h[i].due {
			return
		}
		t.swap(i, p)
		i = p
	}
}

func (t *timers) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(t.h) {
			return
		}
		if c+1 < len(t.h) && t.h[c+1].due < t.h[c].due {
			c++
		}
		if t.h[i].due <= t.h[c].due {
			return
		}
		t.swap(i, c)
		i = c
	}
}

// rebuild restores the heap after due times were changed in place.
func (t *timers) rebuild() {
	for i := len(t.h)/2 - 1; i >= 0; i-- {
		t.down(i)
	}
}
