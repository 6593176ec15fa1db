package plan

import "github.com/keylanes/keylanes/transport"

// memoryCap bounds how many messages' attempts are remembered while they are
// away at the broker. The oldest are forgotten first: that costs attempts, never
// a message.
const memoryCap = 8192

// carried is what is remembered of a message that will come again.
type carried struct {
	attempt     int
	firstFailed int64
	mark        uint64
	n           uint64 // which put it was
	copied      bool   // its dead-letter copy was confirmed
	key         string // the transport's key, so that a reused id isn't taken for the same message
}

// memory remembers attempts across hand-outs: by message id, or by key for the
// first delivery of the key that comes again where messages have no ids.
type memory struct {
	by    map[string]carried
	order []remembered // in the order in which they were put, a ring once it is full
	at    int
	puts  uint64
}

// remembered is a place in the order. The entry may be gone, and another one may
// have come under its name since.
type remembered struct {
	name string
	n    uint64
}

func carryName(id string, k *key) string {
	switch {
	case id != "":
		return "i" + id
	case k != nil:
		return "k" + k.name
	default:
		return ""
	}
}

func (m *memory) put(name string, c carried) {
	if m.by == nil {
		m.by = make(map[string]carried)
	}
	if known, ok := m.by[name]; ok { // it keeps its place
		c.n = known.n
		m.by[name] = c
		return
	}
	m.puts++
	c.n = m.puts
	m.by[name] = c
	if len(m.order) < memoryCap {
		m.order = append(m.order, remembered{name, c.n})
		return
	}
	if old := m.order[m.at]; m.by[old.name].n == old.n {
		delete(m.by, old.name)
	}
	m.order[m.at] = remembered{name, c.n}
	m.at = (m.at + 1) % memoryCap
}

// remember keeps the attempts of an item that goes away undecided. That its
// message was copied outweighs them: it will be accepted when it comes again.
func (m *memory) remember(it *Item) {
	if it.Attempt <= 1 || m.wasCopied(it) {
		return
	}
	if name := carryName(it.D.ID, it.k); name != "" {
		m.put(name, carried{attempt: it.Attempt, firstFailed: it.FirstFailed, mark: it.mark, key: it.D.Key})
	}
}

// copied keeps that d's dead-letter copy was confirmed and its accept lost.
func (m *memory) copied(d *transport.Delivery) {
	if d.ID != "" {
		m.put("i"+d.ID, carried{attempt: 1, copied: true, key: d.Key})
	}
}

// find gives what is remembered of it.
func (m *memory) find(it *Item) (carried, bool) {
	if len(m.by) == 0 {
		return carried{}, false
	}
	c, ok := m.by[carryName(it.D.ID, it.k)]
	return c, ok && c.key == it.D.Key
}

// wasCopied says whether a dead-letter copy of it was confirmed. That is kept:
// the next accept may be lost as well.
func (m *memory) wasCopied(it *Item) bool {
	c, ok := m.find(it)
	return ok && c.copied
}

// inherit gives it the attempts that are remembered. It is called when it is
// lent, not when it arrives: the copy that its lease was lost to may have come
// while the handler of the earlier one still ran, and failed.
func (m *memory) inherit(it *Item) {
	if c, ok := m.find(it); ok && !c.copied {
		delete(m.by, carryName(it.D.ID, it.k))
		bad := it.inTrouble()
		it.Attempt, bad.FirstFailed, bad.mark = c.attempt, c.firstFailed, c.mark
	}
}
