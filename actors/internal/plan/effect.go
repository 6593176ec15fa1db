package plan

import "github.com/keylanes/keylanes/transport"

// EffectKind says what the router has to do.
type EffectKind uint8

// The kinds of effect.
const (
	// Lend: give Run to its lane.
	Lend EffectKind = iota
	// Ask: ask the policy about Item, then call Decide.
	Ask
	// Settle: hand Item's Outcome to the receiver of its epoch.
	Settle
	// Copy: publish Item's dead-letter copy, then call Copied.
	Copy
	// Cancel: end the context of Item's handler, its lease is lost.
	Cancel
	// CancelAll: end the context of every running handler, the epoch ends.
	CancelAll
	// Restart: give Lane a new incarnation.
	Restart
	// EndEpoch: close the receiver and open the next; EpochEnded follows.
	EndEpoch
	// Drained: nothing runs any more, and nothing will start.
	Drained
	// Stop: the policy stops the subscription because of Item.
	Stop
	// Escalate: the policy fails the subscription because of Item.
	Escalate
	// Note: nothing to do, something to tell.
	Note
)

var effectNames = [...]string{"lend", "ask", "settle", "copy", "cancel", "cancel-all", "restart", "end-epoch", "drained", "stop", "escalate", "note"}

// String names the kind.
func (k EffectKind) String() string { return effectNames[k] }

// NoteKind says what a Note tells.
type NoteKind uint8

// The kinds of note.
const (
	_ NoteKind = iota
	// NoteParked: Item waits for its retry at Item.Due.
	NoteParked
	// NoteNoEvidence: Item's attempts are exhausted (Count), but nothing else
	// has succeeded since it first failed: it is retried instead.
	NoteNoEvidence
	// NoteNoTarget: Item should be dead-lettered and there is no target; its
	// key is parked until Unpark.
	NoteNoTarget
	// NotePinned: Item's key stays parked after the dead-letter, by choice.
	NotePinned
	// NoteLapsed: Item's lease was gone before its handler could be believed.
	NoteLapsed
	// NoteRetriedInstead: Item isn't abandoned, because a successor is too near
	// the broker's own limit of hand-outs.
	NoteRetriedInstead
	// NoteOutageBegan: Count failures in a row; lanes probe from now on.
	NoteOutageBegan
	// NoteOutageEnded: something succeeded.
	NoteOutageEnded
)

var noteNames = [...]string{"", "parked", "no-evidence", "no-target", "pinned", "lapsed", "retried-instead", "outage-began", "outage-ended"}

// String names the kind.
func (k NoteKind) String() string { return noteNames[k] }

// Effect is one thing for the router to do. It is valid until the planner's
// next event.
type Effect struct {
	Kind    EffectKind
	Note    NoteKind
	Lane    int
	Count   int
	Run     *Run
	Item    *Item
	Outcome transport.Outcome
}

func (p *Planner) emit(e Effect) { p.effects = append(p.effects, e) }
