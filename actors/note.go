package actors

import (
	"time"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/transport"
)

// evidenceEvery is how often it is told, at most, that a dead letter waits for
// evidence.
const evidenceEvery = 10 * time.Second

// note tells what the planner has to tell.
func (r *router) note(e plan.Effect) {
	t, it := r.t, e.Item
	ev := Event{Lane: -1, Count: e.Count}
	if it != nil {
		ev.Key, ev.ID, ev.Err = it.D.Key, it.D.ID, r.failureOf(it).err
	}
	switch e.Note {
	case plan.NoteParked:
		wait := time.Duration(it.Due() - r.now())
		t.observe(Observation{Kind: ObserveParked, Delivery: it.D, Lane: -1, Attempt: it.Attempt, Took: wait, Err: ev.Err})
		return
	case plan.NoteNoEvidence:
		if r.now() < r.evidenceAt {
			return // each probe of an outage would say it
		}
		r.evidenceAt = r.now() + int64(evidenceEvery)
		ev.Kind = EventWaitsForEvidence
		ev.Reason = "nothing else has succeeded since this delivery first failed: this looks like an outage, so it is retried and not dead-lettered"
	case plan.NoteNoTarget:
		ev.Kind = EventKeyParked
		ev.Reason = "it should be dead-lettered and Options.DeadLetter is not set: Unpark goes on"
	case plan.NotePinned:
		ev.Kind = EventKeyParked
		ev.Reason = "the policy parks the key after a dead letter: Unpark goes on"
	case plan.NoteOutageBegan:
		ev.Kind = EventOutageBegan
	case plan.NoteOutageEnded:
		ev.Kind = EventOutageEnded
	case plan.NoteRetriedInstead:
		t.log.Warn("keylanes: retried here instead of abandoned, a held successor is too near the queue's receive limit",
			"subscription", t.opts.Name, "key", ev.Key, "id", ev.ID)
		return
	case plan.NoteLapsed:
		// Nobody may have noticed: the refusal of this settlement gives the
		// credit back.
		t.settle(it.D, transport.Outcome{Kind: transport.Return})
		return
	default:
		return
	}
	t.event(ev)
}
