package plansim

import (
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/transport"
)

// publish adds a message of key k, or a keyless one for -1.
func (w *world) publish(k int) *message {
	i := len(w.msgs)
	w.msgs = w.msgs[:i+1]
	m := &w.msgs[i]
	*m = message{index: i, key: k}
	if k >= 0 {
		m.seq = len(w.byKey[k])
		w.byKey[k] = append(w.byKey[k], m)
	} else {
		m.seq = i
	}
	return m
}

// ready says that the broker may hand m out.
func (w *world) ready(m *message) bool { return !m.acked && m.live == 0 && w.now >= m.readyAt }

// handOut hands out up to n messages, as the kind of broker does it, and puts
// them on their way to the router as one slab.
func (w *world) handOut(n int) bool {
	n = min(n, w.credit-w.outstanding, maxHands-w.nh)
	if n <= 0 {
		return false
	}
	from := w.nh
	switch w.broker {
	case stream:
		for i := range w.msgs {
			if w.nh-from == n {
				break
			}
			if m := &w.msgs[i]; w.ready(m) {
				w.hand(m)
			}
		}
	case fifo:
		w.handOutGroups(n)
	case standard:
		// From anywhere, forwards or backwards.
		many := len(w.msgs)
		at, by := w.r.n(many), 1+w.r.n(2)*(many-2)
		for range many {
			if w.nh-from == n {
				break
			}
			if m := &w.msgs[at]; w.ready(m) {
				w.hand(m)
			}
			at = (at + by) % many
		}
	}
	return w.onTheirWay(from)
}

// handOutGroups takes groups from a random one on: of each what is ready up to
// the first that isn't, so a group whose head is out gives nothing.
func (w *world) handOutGroups(n int) {
	from := w.nh
	start := w.r.n(w.keys + 1)
	for i := range w.keys + 1 {
		k := (start + i) % (w.keys + 1)
		if k == w.keys {
			for i := range w.msgs {
				if m := &w.msgs[i]; m.key < 0 && w.nh-from < n && w.ready(m) {
					w.hand(m)
				}
			}
			continue
		}
		for _, m := range w.byKey[k] {
			if m.acked {
				continue
			}
			if w.nh-from == n || !w.ready(m) {
				break
			}
			w.hand(m)
		}
	}
}

// duplicate hands out a message again of which an earlier copy is out, as a
// standard queue may.
func (w *world) duplicate() bool {
	m := &w.msgs[w.r.n(len(w.msgs))]
	return !m.acked && m.live > 0 && w.handOutAgain(m)
}

// handOutAgain hands out one message, in no order, as a standard queue may.
func (w *world) handOutAgain(m *message) bool {
	if w.broker != standard || w.nh == maxHands || w.outstanding >= w.credit {
		return false
	}
	from := w.nh
	w.hand(m)
	return w.onTheirWay(from)
}

func (w *world) hand(m *message) {
	h := &w.hands[w.nh]
	w.nh++
	h.m, h.live, h.group = m, true, w.groupOf(m)
	h.d.Key, h.d.Group, h.d.Epoch, h.d.Count, h.d.Native = keyName(m.key), keyName(m.key), w.epoch, m.count, h
	if w.ids {
		h.d.ID = idNames[m.index]
	}
	m.live++
	m.count++
	w.outstanding++
	*h.item = plan.Item{D: &h.d, Key: h.d.Key}
}

// groupOf is the planner's key of m.
func (w *world) groupOf(m *message) int {
	switch w.mode {
	case plan.Sequential:
		return 0
	case plan.Workers:
		return -1
	default:
		return m.key
	}
}

func (w *world) onTheirWay(from int) bool {
	if w.nh == from {
		return false
	}
	w.pump = append(w.pump, pumpEvent{kind: arrived, from: from, to: w.nh})
	if w.story != nil {
		w.tell("the broker hands out %v", w.names(from, w.nh))
	}
	return true
}

// lapse ends h's lease at the broker. The router hears of it later.
func (w *world) lapse(h *hand) {
	h.live = false
	h.m.live--
	if !h.settled {
		w.outstanding--
	}
}

// loseLease ends the lease of one held delivery.
func (w *world) loseLease(h *hand) bool {
	if !h.live || w.broker == stream {
		return false
	}
	if h.settled && !h.swallowed {
		return false
	}
	w.tell("the broker takes %v's lease back", h)
	w.lapse(h)
	if h.settled {
		w.returned(h)
		return true
	}
	if !h.ending { // else nobody says so
		w.losses = append(w.losses, h)
	}
	return true
}

// returned: the broker hands h's message out again although h was settled: the
// settlement was lost. A dead-lettered delivery's owner is told.
func (w *world) returned(h *hand) {
	if h.confirmed {
		w.pump = append(w.pump, pumpEvent{kind: acceptLost, h: h})
	}
}

// endEpoch ends every lease: the link is gone, or was closed. What is on its way
// still arrives before the news.
func (w *world) endEpoch() {
	for i := range w.hands[:w.nh] {
		h := &w.hands[i]
		if !h.live {
			continue
		}
		w.lapse(h)
		if h.settled {
			w.returned(h)
		}
	}
	w.pump = append(w.pump, pumpEvent{kind: epochEnded, epoch: w.epoch})
	w.epoch++
	w.tally[nEpochs]++
	w.closing = false
}

// settle is the broker's side of a settlement.
func (w *world) settle(h *hand, o transport.Outcome, lost bool) {
	h.settled = true
	if !h.live {
		w.returned(h) // refused: it is at the broker already
		return
	}
	w.outstanding--
	if lost {
		h.swallowed = true // until its lease ends
		return
	}
	h.live = false
	h.m.live--
	switch o.Kind {
	case transport.Accept, transport.Reject:
		h.m.acked = true
	case transport.Abandon:
		if o.Delay > 0 {
			if !w.delay {
				w.fail("delay", "%v is abandoned for %v, which this broker can't", h, o.Delay)
			}
			h.m.readyAt = w.now + int64(o.Delay)
		}
	}
}

// wait is how long the broker holds the next message back, 0 when none is.
func (w *world) heldBack() time.Duration {
	var least int64
	for i := range w.msgs {
		m := &w.msgs[i]
		if d := m.readyAt - w.now; !m.acked && d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	return time.Duration(least)
}
