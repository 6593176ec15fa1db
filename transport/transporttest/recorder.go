package transporttest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/keylanes/keylanes/transport"
)

// recorder is the Sink of one receiver. It notes every breach of the contract.
type recorder struct {
	onSettled func() // called inside Settled, when set before the receiver is used

	mu       sync.Mutex
	reports  map[*transport.Delivery]*report
	lost     map[*transport.Delivery]error
	changed  chan struct{} // closed and replaced at every event
	breaches []string
}

// report is what becomes of one Settle.
type report struct {
	settled bool // Settle was called
	done    bool // Settled was
	err     error
}

func newRecorder() *recorder {
	return &recorder{reports: map[*transport.Delivery]*report{}, lost: map[*transport.Delivery]error{}, changed: make(chan struct{})}
}

// settling notes that Settle is about to be called.
func (r *recorder) settling(d *transport.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(d).settled = true
}

func (r *recorder) of(d *transport.Delivery) *report {
	rep := r.reports[d]
	if rep == nil {
		rep = &report{}
		r.reports[d] = rep
	}
	return rep
}

func (r *recorder) Settled(d *transport.Delivery, o transport.Outcome, err error) {
	r.mu.Lock()
	rep := r.of(d)
	switch {
	case !rep.settled:
		r.breach("Settled(%v, %v, %v) without a Settle", d, o.Kind, err)
	case rep.done:
		r.breach("Settled(%v, %v, %v) twice", d, o.Kind, err)
	}
	rep.done, rep.err = true, err
	r.event()
	f := r.onSettled
	r.mu.Unlock()
	if f != nil {
		f()
	}
}

func (r *recorder) Lost(ds []*transport.Delivery, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !errors.Is(err, transport.ErrLeaseLost) {
		r.breach("Lost with error %v, which doesn't wrap ErrLeaseLost", err)
	}
	for _, d := range ds {
		if _, twice := r.lost[d]; twice {
			r.breach("Lost(%v) twice", d)
		}
		if !transport.LeaseOf(d).Lost() {
			r.breach("Lost(%v) before Lease.Lose", d)
		}
		r.lost[d] = err
	}
	r.event()
}

func (r *recorder) breach(format string, args ...any) {
	r.breaches = append(r.breaches, fmt.Sprintf(format, args...))
}

func (r *recorder) event() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// state gives the report on d, whether it was lost, and a channel that is closed
// when anything changes.
func (r *recorder) state(d *transport.Delivery) (rep report, lost bool, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, lost = r.lost[d]
	return *r.of(d), lost, r.changed
}

// unreported gives the deliveries that were settled and have no report.
func (r *recorder) unreported() (ds []*transport.Delivery, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for d, rep := range r.reports {
		if rep.settled && !rep.done {
			ds = append(ds, d)
		}
	}
	return ds, r.changed
}
