package plan

// What keeps every lane from being given anything.
const (
	gatePause = 1 << iota
	gateDrain
	gateReset
	gateHalt
)

// Pause keeps everything from starting; what is held stays held. Resume ends it.
func (p *Planner) Pause(now int64) []Effect {
	p.begin(now)
	p.gate |= gatePause
	p.clawAll()
	return p.end()
}

// Resume ends a pause.
func (p *Planner) Resume(now int64) []Effect {
	p.begin(now)
	p.gate &^= gatePause
	p.allDirty()
	return p.end()
}

// Drain starts nothing any more; the effect Drained follows when nothing runs.
// What isn't decided by then stays held: closing the receiver gives it back.
func (p *Planner) Drain(now int64) []Effect {
	p.begin(now)
	p.gate |= gateDrain
	p.clawAll()
	return p.end()
}

// halt is Drain without the effect: the subscription is stopped from outside.
func (p *Planner) halt() {
	p.gate |= gateHalt
	p.clawAll()
}
