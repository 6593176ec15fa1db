package oracle

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Check holds the log against r. It may be called while the log is still
// written to: it judges what is there, and what is running then counts as left.
// A log of Create's is judged from its file, with Load.
func (l *Log) Check(r Rules) Verdict {
	chunks, most := l.snapshot()
	j := &judge{rules: r, processes: l.processes, messages: make(map[string]*message)}
	if j.rules.MaxViolations <= 0 {
		j.rules.MaxViolations = 10
	}
	j.v = Verdict{Counts: make(map[Promise]int), MostHeld: most, Processes: len(l.processes)}
	l.mu.Lock()
	streaming := l.file != nil
	l.mu.Unlock()
	if streaming {
		j.object(Violation{Promise: Identified, Detail: "this log streams to a file: close it, and check what Load reads"})
	}
	for _, c := range chunks {
		for i := range c {
			j.events = append(j.events, &c[i])
		}
	}
	j.survey()
	j.replay()
	j.settleAccounts()
	return j.v
}

// message is what the judge knows of one message.
type message struct {
	id, key     string
	place       int // in the published order, from 0; -1 unknown
	published   int // how often
	unconfirmed int // how often of these
	started     int
	failedIn    []int  // processes that saw it fail
	decided     Kind   // what decided it first; 0: nothing yet
	decidedAt   int64  // when that will be, known from the survey; MaxInt64: never
	decidedBy   int    // the process
	copies      int    // at the dead-letter target
	runs        []*run // open ones, for a keyless message
}

// owed reports whether the broker has confirmed it.
func (m *message) owed() bool { return m.published > m.unconfirmed }

// uncertain reports whether its place in the broker's order is: an attempt to
// publish it that wasn't confirmed may have arrived at any time, or never.
func (m *message) uncertain() bool { return m.published > 1 || m.unconfirmed > 0 }

// run is one run of a handler.
type run struct {
	m       *message
	n       uint64
	at      int64
	process int
	end     int64 // known from the survey; MaxInt64: never
}

type runName struct {
	process uint16
	n       uint64
}

// lane is what the judge knows of one key.
type lane struct {
	order []*message // in their published order
	next  int        // everything before it is decided
	open  []*run
}

// judge replays a log's events in order.
type judge struct {
	rules     Rules
	processes []process
	events    []*entry
	messages  map[string]*message
	lanes     map[string]*lane
	runs      map[runName]*run
	inOrder   []*message // published, in order
	last      []int64    // each process's last event
	v         Verdict
}

// object counts a violation and keeps it while there is room.
func (j *judge) object(v Violation) {
	j.v.Counts[v.Promise]++
	if j.v.Counts[v.Promise] <= j.rules.MaxViolations {
		j.v.Violations = append(j.v.Violations, v)
	}
}

func (j *judge) message(e *entry) *message {
	m := j.messages[e.id]
	if m == nil {
		m = &message{id: e.id, key: e.key, place: -1, decidedAt: math.MaxInt64}
		j.messages[e.id] = m
	}
	return m
}

// survey reads the log once for what the replay must know ahead: each message's
// key and place, and when each run ends and each message is decided.
func (j *judge) survey() {
	j.runs = make(map[runName]*run)
	j.last = make([]int64, len(j.processes))
	for _, e := range j.events {
		j.last[e.process] = e.at
		if e.id == "" {
			continue
		}
		m := j.message(e)
		switch e.kind {
		case Published:
			m.published++
			j.line(m)
		case Unconfirmed:
			m.unconfirmed++
		case Started:
			// A broker may give the delivery another key than the published
			// message has: lanes follow the delivery's.
			m.key = e.key
			if j.rules.ConsumerOnly {
				j.line(m)
			}
			j.runs[runName{e.process, e.run}] = &run{m: m, n: e.run, at: e.at, process: int(e.process), end: math.MaxInt64}
		case Succeeded, Failed, Panicked:
			if r := j.runs[runName{e.process, e.run}]; r != nil {
				r.end = e.at
			}
		}
		if decides(e.kind) && m.decidedAt == math.MaxInt64 {
			m.decidedAt, m.decidedBy = e.at, int(e.process)
		}
	}
	for _, r := range j.runs {
		// What a killed process ran ended with it.
		if r.end == math.MaxInt64 && !j.processes[r.process].ended {
			r.end = j.last[r.process]
		}
	}
	j.lanes = make(map[string]*lane)
	for _, m := range j.inOrder {
		if l := j.lane(m); l != nil && !m.uncertain() {
			l.order = append(l.order, m)
		}
	}
}

// line puts m at the end of the published order, unless it has its place.
func (j *judge) line(m *message) {
	if m.place < 0 {
		m.place = len(j.inOrder)
		j.inOrder = append(j.inOrder, m)
	}
}

// decides reports whether k decides a message.
func decides(k Kind) bool { return k == Succeeded || k == DeadLettered || k == AcceptedAnyway }

// lane gives m's lane; nil for a keyless message, which has none.
func (j *judge) lane(m *message) *lane {
	key := m.key
	if j.rules.Sequential {
		key = ""
	} else if key == "" {
		return nil
	}
	l := j.lanes[key]
	if l == nil {
		l = &lane{}
		j.lanes[key] = l
	}
	return l
}

func (j *judge) replay() {
	for _, e := range j.events {
		if e.id == "" {
			j.object(Violation{Promise: Identified, Key: e.key, At: when(e.at), Detail: fmt.Sprintf(
				"a message without an identity was %s: give messages an ID, or publish through Log.Publisher", e.kind)})
			continue
		}
		m := j.messages[e.id]
		switch e.kind {
		case Started:
			j.started(m, e)
		case Succeeded:
			j.ended(e)
			m.decide(Succeeded)
		case Failed, Panicked:
			j.ended(e)
			j.failed(m, e)
		case DeadLettered, AcceptedAnyway:
			j.unseen(m, e)
			if e.kind == DeadLettered {
				if m.copies++; m.copies > 1 {
					j.v.DuplicateCopies++
				}
			}
			m.decide(e.kind)
		case Returned:
			j.v.Returned++
		case LeaseLost:
			j.v.LeaseLost++
		}
	}
}

func (m *message) decide(k Kind) {
	if m.decided == 0 {
		m.decided = k
	}
}

func (j *judge) failed(m *message, e *entry) {
	if e.kind == Failed {
		j.v.Failed++
	} else {
		j.v.Panicked++
	}
	if !slices.Contains(m.failedIn, int(e.process)) {
		m.failedIn = append(m.failedIn, int(e.process))
	}
}

// started judges the start of a run: duplicates, overlap, order.
func (j *judge) started(m *message, e *entry) {
	j.v.Started++
	r := j.runs[runName{e.process, e.run}]
	if r == nil || r.m != m {
		j.object(Violation{Promise: Identified, Key: e.key, IDs: []string{e.id}, At: when(e.at), Detail: fmt.Sprintf("the log has run %d twice", e.run)})
		return
	}
	m.started++
	switch {
	case m.decided != 0:
		if j.v.Duplicates++; j.v.Duplicates > j.rules.Duplicates {
			j.object(Violation{Promise: Duplicates, Key: m.key, IDs: []string{m.id}, At: when(e.at), Detail: fmt.Sprintf(
				"%s started again although it was %s at %s: duplicate %d, allowed are %d",
				name(m), m.decided, stamp(when(m.decidedAt)), j.v.Duplicates, j.rules.Duplicates)})
		}
	case m.started > 1:
		j.v.Retries++
	}
	open := &m.runs
	l := j.lane(m)
	if l != nil {
		open = &l.open
	}
	if !j.rules.Overlapping {
		j.overlap(r, *open)
		if l != nil && !j.rules.Unordered && m.decided == 0 {
			j.order(r, l)
		}
	}
	*open = append(*open, r)
}

// overlap judges r against the runs of its key that are open.
func (j *judge) overlap(r *run, open []*run) {
	for _, o := range open {
		if o.end <= r.at && o.process != r.process {
			continue // its process was killed before
		}
		if o.process != r.process && (j.near(o.end, r.at) || j.excused(r.at)) {
			j.v.Excused++
			continue
		}
		until := "still runs"
		if o.end != math.MaxInt64 {
			until = "ran until " + stamp(when(o.end))
		}
		j.object(Violation{Promise: Overlap, Key: r.m.key, IDs: []string{r.m.id, o.m.id}, At: when(r.at), Detail: fmt.Sprintf(
			"%s started while %s, started at %s, %s%s", name(r.m), name(o.m), stamp(when(o.at)), until, j.between(r.process, o.process))})
	}
}

// order judges r against the earlier messages of its key.
func (j *judge) order(r *run, l *lane) {
	for l.next < len(l.order) && l.order[l.next].decided != 0 {
		l.next++
	}
	if r.m.place < 0 || r.m.uncertain() || l.next == len(l.order) {
		return
	}
	first := l.order[l.next]
	if first.place >= r.m.place {
		return
	}
	if first.decidedAt != math.MaxInt64 && first.decidedBy != r.process && (j.near(first.decidedAt, r.at) || j.excused(r.at)) ||
		first.decidedAt == math.MaxInt64 && j.excused(r.at) {
		j.v.Excused++
		return
	}
	decided := "which never was decided"
	if first.decidedAt != math.MaxInt64 {
		decided = fmt.Sprintf("which was decided %v later%s", time.Duration(first.decidedAt-r.at), j.between(r.process, first.decidedBy))
	}
	j.object(Violation{Promise: Order, Key: r.m.key, IDs: []string{r.m.id, first.id}, At: when(r.at), Detail: fmt.Sprintf(
		"%s started before %s, %s", name(r.m), name(first), decided)})
}

// near reports whether the clocks can't tell a from b.
func (j *judge) near(a, b int64) bool {
	return a != math.MaxInt64 && max(a-b, b-a) <= int64(j.rules.Skew)
}

func (j *judge) excused(at int64) bool {
	for _, w := range j.rules.Faults {
		if at >= w.From.UnixNano() && at <= w.To.UnixNano() {
			return true
		}
	}
	return false
}

// ended closes a run.
func (j *judge) ended(e *entry) {
	r := j.runs[runName{e.process, e.run}]
	if r == nil {
		j.object(Violation{Promise: Identified, Key: e.key, IDs: []string{e.id}, At: when(e.at), Detail: fmt.Sprintf(
			"a run of %q %s that never started", e.id, e.kind)})
		return
	}
	open := &r.m.runs
	if l := j.lane(r.m); l != nil {
		open = &l.open
	}
	for i, o := range *open {
		if o == r {
			*open = append((*open)[:i], (*open)[i+1:]...)
			return
		}
	}
}

// unseen judges a dead-letter, or an accept of what failed.
func (j *judge) unseen(m *message, e *entry) {
	if slices.Contains(m.failedIn, int(e.process)) {
		return
	}
	j.object(Violation{Promise: Unseen, Key: m.key, IDs: []string{m.id}, At: when(e.at), Detail: fmt.Sprintf(
		"%s was %s, and this process hadn't seen it fail", name(m), e.kind)})
}

// between names two processes where they differ.
func (j *judge) between(a, b int) string {
	if a == b {
		return ""
	}
	return fmt.Sprintf(" (processes %s and %s)", j.processes[a].name, j.processes[b].name)
}

func when(nanos int64) time.Time { return time.Unix(0, nanos) }

// name gives a message's identity and its place in the published order.
func name(m *message) string {
	if m.place < 0 {
		return fmt.Sprintf("%q", m.id)
	}
	return fmt.Sprintf("%q (#%d)", m.id, m.place+1)
}
