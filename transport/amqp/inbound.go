package amqp

import "fmt"

// The receiver as the peer of its demux: all on the connection's reading
// goroutine.

func (r *receiver) began(nextOutgoing uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.in.nextIncoming = nextOutgoing
}

func (r *receiver) attached(handle, deliveryCount uint32, peerSends bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if peerSends && !r.in.attached {
		r.in.attached, r.in.handle, r.in.count0 = true, handle, deliveryCount
	}
}

func (r *receiver) transferred(t transfer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := &r.in
	in.nextIncoming++
	if in.unsaid++; in.unsaid >= sessionWindow/2 {
		r.needFlow = true // heard pokes
		in.moved = true
	}
	if !in.attached || t.handle != in.handle {
		return fmt.Errorf("%w: a transfer on handle %d, which isn't attached", errFraming, t.handle)
	}
	if !in.partial {
		if !t.hasID {
			return fmt.Errorf("%w: a delivery without an id", errFraming)
		}
		in.first = arrival{id: t.id, payload: t.payload}
	} else {
		if t.hasID && t.id != in.first.id {
			return fmt.Errorf("%w: delivery %d begins before %d has ended", errFraming, t.id, in.first.id)
		}
		// The first part has no room behind it (demux cuts capacities), so
		// append moves it out of its slab and never writes to one.
		in.first.payload = append(in.first.payload, t.payload...)
	}
	in.first.preSettled = in.first.preSettled || t.settled
	in.partial = t.more && !t.aborted
	if in.partial {
		return nil
	}
	in.arrived++
	a := in.first
	in.first = arrival{}
	if !t.aborted {
		r.arrivals.push(a)
		in.moved = true
	}
	return nil
}

func (r *receiver) flowed(f flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.in.nextIncoming = f.nextOutgoing
	r.barrierCredit(f)
	if f.echo {
		r.needFlow, r.in.moved = true, true
	}
}

func (r *receiver) detached(handle uint32) {
	r.mu.Lock()
	ours := r.in.attached && handle == r.in.handle
	r.mu.Unlock()
	if ours {
		r.kill(errDetached)
	}
}

func (r *receiver) ended() { r.kill(errEnded) }

// heard wakes whoever waits for what one read brought.
func (r *receiver) heard() {
	r.mu.Lock()
	moved := r.in.moved
	r.in.moved = false
	r.issueLocked() // less is open now than when the last grant was made to wait
	flow := r.needFlow
	r.mu.Unlock()
	if moved {
		wake(r.ready)
	}
	if flow {
		r.wire.poke()
	}
}

// The receiver as the injector of its wire: all on the flusher.

func (r *receiver) gather(buf []byte) []byte {
	buf = r.settle.gather(buf)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.needFlow && r.in.attached && !r.quiet {
		r.needFlow = false
		r.in.unsaid = 0
		buf = r.appendFlow(buf)
	}
	return buf
}

func (r *receiver) flushed(err error) { r.settle.flushed(err) }

func (r *receiver) waiting() int { return r.settle.pending() }

// appendFlow appends the frame that says how much the broker may send: on the
// link, and on the session.
func (r *receiver) appendFlow(buf []byte) []byte {
	in := &r.in
	buf, frame := appendFrame(buf)
	buf, list := appendList(buf, codeFlow, 7)
	for _, v := range [...]uint32{
		in.nextIncoming, sessionWindow, // incoming
		0, sessionWindow, // outgoing: nothing is sent before the barrier, and no flow after it
		0, // handle: the session's first link, and go-amqp numbers from 0
		in.count0 + uint32(in.arrived), uint32(max(r.issued-in.arrived, 0)),
	} {
		buf = appendUint(buf, v)
	}
	closeList(buf, list)
	closeFrame(buf, frame)
	return buf
}
