package actors

import (
	"errors"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// BatchSubscription is Subscription for a handler that works on several
// deliveries at once. A lane gives it a batch of up to Options.Batch deliveries
// when that many are ready, or Options.BatchWait after the first of them came, or
// when the credit is exhausted and nothing runs, so that nothing more can come; in
// every dispatch mode, with each key in order. For full batches on each of n lanes
// Options.Credit should be at least 2 * n * Options.Batch.
//
//   - A *transport.BatchError gives each element its own result; the policy
//     decides about each that failed. Once an element of a key isn't accepted, no
//     later element of that key in the batch is, whatever its result says: it runs
//     again.
//   - Any other error, a panic, a Goexit or a timeout fails the batch as a whole:
//     its elements run again one by one, each a batch of its own, without an
//     attempt being counted, so that a poisonous message doesn't burn its
//     neighbours' attempts. Handlers have to stand repetition anyhow.
//   - The context ends with ErrLeaseLost when the leases of all elements are lost;
//     an element whose own lease is lost isn't accepted.
//   - Options.Middleware wraps a Handler and is refused here: wrap the
//     BatchHandler instead.
//
// Everything else is as with Subscription.
func BatchSubscription(src transport.Source, h transport.BatchHandler, o *Options) (*actor.Props, error) {
	if isNil(h) {
		return nil, &transport.OptionError{Field: "handler", Value: "nil", Want: "must be a transport.BatchHandler, such as a transport.BatchHandlerFunc"}
	}
	opts, err := o.withDefaults(src)
	if err != nil {
		return nil, err
	}
	if err := opts.batchDefaults(); err != nil {
		return nil, err
	}
	return opts.props(src, made{batch: h}), nil
}

const (
	defaultBatch     = 64
	defaultBatchWait = 10 * time.Millisecond
	maxBatch         = 4096
)

// batchDefaults fills in and checks what only batches have.
func (o *Options) batchDefaults() error {
	most := min(maxBatch, o.Credit)
	if o.Batch == 0 {
		o.Batch = min(defaultBatch, most)
	}
	if o.Batch < 1 || o.Batch > most {
		return &transport.OptionError{Field: "Options.Batch", Value: o.Batch, Want: "must be 1 to 4096 and at most Options.Credit, or a batch could never fill; 0 for 64"}
	}
	if o.traits.LeaseExpires && o.traits.MaxReceive > 0 {
		o.Batch = min(o.Batch, o.traits.MaxReceive)
	}
	if o.BatchWait == 0 {
		o.BatchWait = defaultBatchWait
	}
	if o.BatchWait < time.Millisecond || o.BatchWait > time.Minute {
		return &transport.OptionError{Field: "Options.BatchWait", Value: o.BatchWait, Want: "must be 1ms to 1m, or 0 for 10ms"}
	}
	for _, m := range o.Middleware {
		if m != nil {
			return &transport.OptionError{Field: "Options.Middleware", Value: "a function", Want: "must be empty for batches: it wraps a Handler; wrap the BatchHandler instead"}
		}
	}
	return nil
}

// withoutBatch is withDefaults for a Handler: it refuses what only batches have.
func (o *Options) withoutBatch(src transport.Source) (Options, error) {
	c, err := o.withDefaults(src)
	if err != nil {
		return c, err
	}
	bad := func(field string, value any) error {
		return &transport.OptionError{Field: field, Value: value, Want: "must be 0 with a Handler: give a BatchHandler to BatchSubscription"}
	}
	switch {
	case c.Batch != 0:
		return c, bad("Options.Batch", c.Batch)
	case c.BatchWait != 0:
		return c, bad("Options.BatchWait", c.BatchWait)
	}
	return c, nil
}

// element is how one element of a batch failed for itself.
type element struct {
	item *plan.Item
	err  error
	kind supervision.Kind
}

// batch claims and runs a batch, and settles what of it succeeded. It gives what
// failed, nil when nothing did. A panic or Goexit in the handler is loop's
// business.
func (r *runner) batch(run *plan.Run, started *time.Time) *failed {
	n := run.ClaimAll()
	now := time.Now()
	var elems []element
	ds, first := r.ds[:0], (*plan.Item)(nil)
	for i, it := range run.Items[:n] {
		switch lease := transport.LeaseOf(it.D); {
		case run.HeldBack(i):
			run.Mark(i, plan.VerdictHeld)
		case it.KeyErr() != nil:
			run.Mark(i, plan.VerdictFailed)
			elems = append(elems, element{it, it.KeyErr(), supervision.Undecodable})
		case lease.Lost() || !lease.Live(now):
			run.Mark(i, plan.VerdictLapsed)
		default:
			ds = append(ds, it.D)
			if first == nil {
				first = it
			}
		}
	}
	r.ds = ds
	if first != nil {
		c := r.newContext(first, now)
		c.run = run
		*started = now
		r.at.Store(c)
		if r.quits() { // between the claim and the store: nobody would cancel it
			_ = c.finish() // it hasn't begun
			for i := range n {
				if run.Results[i] == plan.VerdictOK {
					run.Mark(i, plan.VerdictLapsed)
				}
			}
		} else {
			elems = r.handleBatch(c, run, ds, now, elems)
		}
	}
	clear(r.ds)
	if run.Succeeded() < n {
		return &failed{run: run, elems: elems, took: since(now)}
	}
	return nil
}

// handleBatch calls the handler and turns what it returns into results. It adds
// what failed for itself to elems.
func (r *runner) handleBatch(c *handlerContext, run *plan.Run, ds []*transport.Delivery, now time.Time, elems []element) []element {
	observed := r.t.opts.Observer != nil
	if observed {
		for i, it := range run.Items[:run.Finished] {
			if run.Results[i] == plan.VerdictOK {
				r.t.observe(Observation{Kind: ObserveStarted, Delivery: it.D, Lane: r.index, Attempt: it.Attempt})
			}
		}
	}
	err := r.t.batch.HandleBatch(c, ds)
	cause := c.finish()
	var each *transport.BatchError
	if !errors.As(err, &each) || len(each.Errs) != len(ds) {
		each = nil
	}
	if err != nil && each == nil && len(ds) > 1 {
		return append(elems, failWhole(run, element{})...)
	}
	var confirm []confirmation
	defer func() {
		for _, c := range confirm {
			r.confirmed(c.d, c.ch)
		}
	}()
	end, at := time.Now(), 0
	for i, it := range run.Items[:run.Finished] {
		if run.Results[i] != plan.VerdictOK { // it didn't start
			if run.HeldBack(i) {
				run.Mark(i, plan.VerdictHeld)
			}
			continue
		}
		e := err // of the only one
		if each != nil {
			e = each.Errs[at]
		}
		at++
		if run.HeldBack(i) {
			run.Mark(i, plan.VerdictHeld)
			continue
		}
		lease := transport.LeaseOf(it.D)
		if v := verdictOf(e, cause, lease.Lost() || !lease.Live(end)); v != plan.VerdictOK {
			run.Mark(i, v)
			if v == plan.VerdictFailed {
				failure := r.failure(e, cause, now)
				elems = append(elems, element{it, failure.err, failure.kind})
			}
			continue
		}
		if observed {
			r.t.observe(Observation{Kind: ObserveSucceeded, Delivery: it.D, Lane: r.index, Attempt: it.Attempt, Took: end.Sub(now)})
		}
		if ch := r.accept(it.D); ch != nil {
			confirm = append(confirm, confirmation{it.D, ch})
		}
	}
	return elems
}

// failWhole fails everything of a batch that had started, together. What was
// alone in it has failed for itself.
func failWhole(run *plan.Run, e element) []element {
	var elems []element
	n := run.Succeeded() // none has failed so far that had started
	for i, it := range run.Items[:run.Finished] {
		switch {
		case run.Results[i] == plan.VerdictOK && n == 1:
			run.Mark(i, plan.VerdictFailed)
			elems = append(elems, element{it, e.err, e.kind})
		case run.Results[i] == plan.VerdictOK:
			run.Mark(i, plan.VerdictSplit)
		case run.HeldBack(i):
			run.Mark(i, plan.VerdictHeld)
		}
	}
	return elems
}
