package sqs

import (
	"context"
	"fmt"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// ceilingMargin is kept from the 12 hours, whose beginning only SQS knows.
const ceilingMargin = 30 * time.Second

// room is how far from now a receipt's visibility may reach: 12 hours from the
// receive, in whole seconds.
func (r *receiver) room(rc *receipt, now time.Time) time.Duration {
	return (maxVisibility - ceilingMargin - now.Sub(rc.taken)).Truncate(time.Second)
}

// Extend asks SQS to keep ds invisible until the given time.
func (r *receiver) Extend(ds []*transport.Delivery, until time.Time) {
	r.mu.Lock()
	defer r.unlock()
	if r.closing {
		return
	}
	for _, d := range ds {
		rc, ok := transport.HandleOf(d).(*receipt)
		if !ok || rc.owner != r || rc.state != stateHeld {
			continue // settled meanwhile
		}
		if until.After(rc.until) {
			rc.until = until
		}
		if rc.extension != extNone {
			continue // its reply, or its next try, takes the later time
		}
		at := rc.lease.Deadline()
		ceiling := rc.taken.Add(maxVisibility - ceilingMargin)
		switch {
		case at.Before(until) && at.Before(ceiling):
			at = time.Time{}
		case at.Before(until): // no more to have: it waits for its deadline
			rc.capped = true
		default:
			continue
		}
		rc.extension = extQueued
		r.extends.add(rc, at)
	}
}

// extender keeps messages invisible. An extension and a settlement of one
// receipt never cross: a settlement drops an extension that isn't being sent,
// and waits for the reply of one that is. Otherwise this could happen: extend
// is sent, delete is sent on another connection and arrives first, extend is
// refused as invalid. Or worse: visibility 0 arrives first, then the extension
// hides a message that nobody holds.
type extender struct{ r *receiver }

func (k extender) taken(batch []*receipt) {
	for _, rc := range batch {
		rc.extension = extFlying
		rc.asked = rc.until
	}
}

func (k extender) wanted(rc *receipt) bool {
	return rc.extension == extQueued && !k.r.closing
}

func (k extender) call(ctx context.Context, batch []*receipt) ([]error, error) {
	now := time.Now() // before the request: the new deadline counts from here
	return k.r.changeVisibility(ctx, batch, func(rc *receipt) int32 {
		d := min(roundUp(rc.asked.Sub(now)), k.r.room(rc, now))
		if d < time.Second { // nothing left to ask for; never give it back
			d = time.Second
		}
		rc.granted = now.Add(d)
		return int32(d / time.Second)
	})
}

// finish moves the deadline, or says whether to try again.
func (k extender) finish(rc *receipt, err error) (again bool) {
	if err == nil {
		rc.lease.Extend(rc.granted)
	}
	if rc.state == stateSettled { // it waited for this reply
		rc.extension = extNone
		k.r.submit(rc)
		return false
	}
	if rc.state != stateHeld {
		rc.extension = extNone
		return false
	}
	now := time.Now()
	switch {
	case err == nil && k.r.room(rc, now) > time.Minute:
		rc.extension = extNone
		return false
	case err == nil, classOf(err) == classRefused && k.r.room(rc, now) < time.Minute:
		// The 12 hours are used up: it waits in the queue for its deadline.
		rc.extension, rc.capped = extQueued, true
		return true
	case classOf(err) == classGone, classOf(err) == classRefused, classOf(err) == classNoQueue:
		k.lost(rc, fmt.Errorf("extending: %w: %w", err, transport.ErrLeaseLost))
		return false
	}
	rc.extension = extQueued
	return true
}

func (k extender) lapsed(rc *receipt) {
	if rc.state == stateHeld && !k.r.dead {
		k.lost(rc, errLapsed("extending"))
	}
	rc.extension = extNone
}

func (k extender) lost(rc *receipt, err error) {
	rc.extension = extNone
	rc.lease.Lose()
	k.r.over(rc)
	k.r.reports = append(k.r.reports, report{d: rc.d, lost: true, err: err})
}
