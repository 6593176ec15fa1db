package plan

import "github.com/keylanes/keylanes/supervision"

// SetMaxReceives tells the broker's own limit of hand-outs, 0 without one, once
// a receiver has learnt it.
func (p *Planner) SetMaxReceives(n int) { p.cfg.MaxReceives = n }

// KeyIdle says that nothing of the key is held, and nothing bars it.
func (p *Planner) KeyIdle(name string) bool {
	k := p.keys[name]
	return k == nil || k.idle()
}

// Idle says whether a lane has nothing to do.
func (p *Planner) Idle() bool { return p.idleN > 0 }

// AnyLost says whether something that may run has lost its lease, or its lane.
func (p *Planner) AnyLost() bool { return p.fencesN > 0 }

// Directive is what the policy last ordered for it.
func (it *Item) Directive() supervision.Directive {
	if it.trouble == nil {
		return supervision.Directive{}
	}
	return it.dir
}
