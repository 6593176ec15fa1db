package memory

import "container/heap"

// groups hands out group by group: of each as many as are asked for, up to the
// first that is out or held back; groups in the order of their heads. So a
// group whose head is out, or waits, gives nothing (what AWS documents and
// ElasticMQ does).
type groups struct {
	log
	byKey map[string]*group
	ready heads
}

// group is the line of one key's messages, in order of publishing. Messages
// without a key, and duplicates, are each in a group of their own.
type group struct {
	key    string
	line   []*entry
	queued bool   // it is in groups.ready
	at     uint64 // its place there: the head's seq when it was queued
}

func (g *groups) add(key string) *entry {
	e := g.log.add(key)
	line := g.byKey[key]
	if line == nil {
		line = &group{key: key}
		if key != "" {
			g.byKey[key] = line
		}
	}
	line.line = append(line.line, e)
	e.extra().group = line
	return e
}

func (g *groups) fresh(e *entry) { g.check(e.more.group) }

func (g *groups) put(e *entry) {
	m := e.extra()
	if m.group == nil { // a duplicate: it isn't part of its message's group
		m.group = &group{line: []*entry{e}}
	}
	g.check(m.group)
}

func (g *groups) drop(e *entry) {
	if m := e.more; m != nil && m.group != nil {
		g.check(m.group)
	}
}

// check queues gr when its head is ready, and forgets it when it is empty.
func (g *groups) check(gr *group) {
	for len(gr.line) > 0 && gr.line[0].place == gone {
		gr.line[0] = nil
		gr.line = gr.line[1:]
	}
	if len(gr.line) == 0 {
		if gr.key != "" {
			delete(g.byKey, gr.key)
		}
		return
	}
	if !gr.queued && gr.line[0].place == ready {
		gr.queued, gr.at = true, gr.line[0].seq
		heap.Push(&g.ready, gr)
	}
}

func (g *groups) take(dst []*entry, n int) []*entry {
	for n > 0 && len(g.ready) > 0 {
		gr := heap.Pop(&g.ready).(*group)
		gr.queued = false
		for _, e := range gr.line {
			if e.place == gone {
				continue
			}
			if e.place != ready || n == 0 {
				break
			}
			e.place = out
			dst = append(dst, e)
			n--
		}
		g.check(gr) // its head may have expired before it was reached
	}
	return dst
}

func (g *groups) each(f func(e *entry)) {
	var all bySeq
	for _, c := range g.lines() {
		for _, e := range c.line {
			if e.place == ready {
				all.push(e)
			}
		}
	}
	for len(all) > 0 {
		f(all.pop())
	}
}

// lines are the groups that hold anything: those with a key, and the single
// ones that are queued (a ready one always is: it is its group's head).
func (g *groups) lines() []*group {
	ls := make([]*group, 0, len(g.byKey)+len(g.ready))
	for _, gr := range g.byKey {
		ls = append(ls, gr)
	}
	for _, gr := range g.ready {
		if gr.key == "" {
			ls = append(ls, gr)
		}
	}
	return ls
}

// heads orders the queued groups by their heads.
type heads []*group

func (h heads) Len() int           { return len(h) }
func (h heads) Less(i, j int) bool { return h[i].at < h[j].at }
func (h heads) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)        { *h = append(*h, x.(*group)) }
func (h *heads) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return x
}
