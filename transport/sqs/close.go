package sqs

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"
)

// Close ends the epoch. In order, because each step would undo a later one:
//  1. what was settled is sent, and waited for;
//  2. the poll in flight is waited for: it would take what is given back, and
//     a cancelled one takes messages with it;
//  3. everything held, and what that poll brought, is given back, the last
//     received first: on a FIFO queue a group's head, which lets the group go
//     on elsewhere, goes back when its successors are.
func (r *receiver) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closing = true
	for rc := r.held.first; rc != nil; rc = rc.next {
		if rc.state != stateSettled {
			rc.lease.Lose() // for the tree: nothing of it may start
		}
	}
	for _, b := range []*batcher{&r.deletes, &r.changes, &r.extends} {
		b.flush()
	}
	r.unlock()
	signal(r.granted) // a Receive that still waits for credit

	stop := context.AfterFunc(ctx, r.kill)
	r.awaitIdle(ctx)
	for tries := 1; ctx.Err() == nil && r.repeatLost(); tries++ {
		r.awaitIdle(ctx)
		r.mu.Lock()
		again := r.repeat.id != "" // that reply was lost as well
		r.mu.Unlock()
		if again {
			wait := time.NewTimer(r.backoff(tries))
			select {
			case <-wait.C:
			case <-ctx.Done():
				wait.Stop()
			}
		}
	}
	left := r.giveBack(ctx, r.unsettled())
	stop()
	r.kill()
	r.wg.Wait()

	r.mu.Lock()
	unconfirmed := r.unconfirmed
	r.mu.Unlock()
	if unconfirmed == 0 && left == 0 {
		return nil
	}
	err := ctx.Err()
	if err == nil {
		err = errors.New("SQS didn't confirm it")
	}
	return fmt.Errorf("close: %d settled without confirmation and %d not given back come again when their visibility timeout has passed: %w", unconfirmed, left, err)
}

// repeatLost makes the receive again whose reply was lost, so that what it took
// can be given back.
func (r *receiver) repeatLost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead || r.repeat.id == "" || time.Since(r.repeat.since) > attemptLife {
		return false
	}
	r.polls++
	a := r.nextAttempt()
	r.run(func() { r.poll(maxBatch, a, time.Second) })
	return true
}

// kill cancels every call and gives up what is queued.
func (r *receiver) kill() {
	r.cancel()
	r.mu.Lock()
	defer r.unlock()
	r.dead = true
	for _, b := range []*batcher{&r.deletes, &r.changes, &r.extends} {
		b.abort()
	}
	r.changed()
}

// awaitIdle waits until nothing is queued or in flight.
func (r *receiver) awaitIdle(ctx context.Context) {
	for {
		r.mu.Lock()
		idle := r.deletes.idle() && r.changes.idle() && r.extends.idle()
		for r.polls > 0 {
			select {
			case res := <-r.results:
				r.polls--
				r.reserved -= res.reserved // its receipts are in the held list
				continue
			default:
			}
			idle = false
			break
		}
		r.mu.Unlock()
		if idle || ctx.Err() != nil {
			return
		}
		select {
		case <-r.change:
		case <-ctx.Done():
			return
		}
	}
}

// unsettled gives what is held, the last received first.
func (r *receiver) unsettled() []*receipt {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	var rcs []*receipt
	for rc := r.held.last; rc != nil; rc = rc.prev {
		if rc.state != stateSettled && now.Before(rc.lease.Deadline()) {
			rcs = append(rcs, rc)
		}
	}
	return rcs
}

// giveBack makes rcs visible, in order within each group, and counts those that
// it couldn't. Many are given back in several streams, each with its own groups.
func (r *receiver) giveBack(ctx context.Context, rcs []*receipt) (left int) {
	n := min(len(rcs)/(5*maxBatch)+1, maxCalls)
	streams := make([][]*receipt, n)
	seed := maphash.MakeSeed()
	for i, rc := range rcs {
		s := i % n
		if rc.group != "" {
			s = int(maphash.String(seed, rc.group) % uint64(n))
		}
		streams[s] = append(streams[s], rc)
	}
	lefts := make([]int, n)
	var wg sync.WaitGroup
	for i, s := range streams {
		wg.Go(func() { lefts[i] = r.giveBackStream(ctx, s) })
	}
	wg.Wait()
	for _, l := range lefts {
		left += l
	}
	return left
}

// giveBackStream gives back one call after the other. What fails is tried again
// before anything later, so that a head goes in the call of its last successors
// or after them. (In one call it may become visible before a successor that
// failed; SQS then hands out the group up to that successor and no further.)
func (r *receiver) giveBackStream(ctx context.Context, rcs []*receipt) (left int) {
	size := maxBatch
	for tries := 0; len(rcs) > 0; {
		if ctx.Err() != nil {
			return left + len(rcs)
		}
		batch := rcs[:min(len(rcs), size)]
		cctx, cancel := context.WithTimeout(ctx, r.opts.CallTimeout)
		entries, err := r.changeVisibility(cctx, batch, func(*receipt) int32 { return 0 })
		cancel()
		var again []*receipt
		for i, rc := range batch {
			e := err
			if err == nil {
				e = entries[i]
			}
			switch {
			case e == nil, !time.Now().Before(rc.lease.Deadline()):
			case classOf(e) == classGone, classOf(e) == classNoQueue, classOf(e) == classRefused:
				// Somebody else's, or nobody's, already.
			case classOf(e) == classDenied:
				left++
			default:
				again = append(again, rc)
			}
		}
		rcs = append(again, rcs[len(batch):]...)
		if len(again) == 0 {
			tries, size = 0, maxBatch
			continue
		}
		tries++
		size = len(again)
		wait := time.NewTimer(r.backoff(tries))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
		}
	}
	return left
}
