package sqs

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// receiver is one epoch: the polls, the settler and the extender of one queue.
//
// Goroutines: as many as there were polls and calls in flight at once. The SDK
// needs a deep stack, which a goroutine of its own for each call would have to
// grow each time: so they are kept until the epoch ends. wg counts them; Close
// waits for it.
type receiver struct {
	client Client
	url    string
	fifo   bool
	opts   Options
	lease  time.Duration // the visibility timeout of a receive
	limits transport.Limits
	epoch  uint64
	sink   transport.Sink

	ctx    context.Context // of every call; ends when Close gives up, or is done
	cancel context.CancelFunc
	wg     sync.WaitGroup
	work   chan func() // for a goroutine that is idle

	granted chan struct{}   // cap 1: credit came, or the receiver is closing
	results chan pollResult // cap Pollers: a poll never waits for a reader
	change  chan struct{}   // cap 1: for Close: something became idle

	mu       sync.Mutex
	credit   int // the most that was granted and held at once: the tree's credit
	avail    int // granted, not reserved by a poll and not held
	reserved int // by polls in flight and their results
	polls    int // in flight, or their results not taken yet
	held     heldList
	repeat   attempt
	slab     transport.Slab
	closing  bool // Settle, Extend and Grant are refused
	dead     bool // calls are cancelled, what is left is given up
	reports  []report
	// Settlements that failed while closing.
	unconfirmed int
	deletes     batcher
	changes     batcher
	extends     batcher
}

// report is a call of the Sink that is made once the mutex is free.
type report struct {
	d    *transport.Delivery
	o    transport.Outcome
	err  error
	lost bool
}

func newReceiver(client Client, url string, fifo bool, opts Options, sink transport.Sink) *receiver {
	r := &receiver{
		client: client, url: url, fifo: fifo, opts: opts, sink: sink,
		granted: make(chan struct{}, 1),
		results: make(chan pollResult, opts.Pollers),
		change:  make(chan struct{}, 1),
		work:    make(chan func()),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	s := settler{r}
	r.deletes = batcher{r: r, kind: deleter{s}, linger: opts.Linger, limit: maxCalls}
	r.changes = batcher{r: r, kind: changer{s}, linger: opts.Linger, limit: maxCalls, ordered: fifo}
	r.extends = batcher{r: r, kind: extender{r}, linger: opts.Linger, limit: maxCalls}
	for _, b := range []*batcher{&r.deletes, &r.changes, &r.extends} {
		b.busy, b.skipped = map[string]int{}, map[string]struct{}{}
	}
	return r
}

// run runs f on a goroutine of the epoch's. It never blocks. The mutex is held, and
// the receiver isn't dead: so nobody waits for wg yet.
func (r *receiver) run(f func()) {
	select {
	case r.work <- f:
	default: // none is idle
		r.wg.Go(func() {
			for {
				f()
				select {
				case f = <-r.work:
				case <-r.ctx.Done():
					return
				}
			}
		})
	}
}

// maxCalls bounds the calls of one kind in flight.
const maxCalls = 8

// unlock frees the mutex and then tells the Sink what has gathered, so that the
// Sink may call Grant.
func (r *receiver) unlock() {
	reports := r.reports
	r.reports = nil
	r.mu.Unlock()
	for i := range reports {
		if p := &reports[i]; p.lost {
			r.sink.Lost([]*transport.Delivery{p.d}, p.err)
		} else {
			r.sink.Settled(p.d, p.o, p.err)
		}
	}
}

// Grant allows n more deliveries to be held.
func (r *receiver) Grant(n int) {
	r.mu.Lock()
	if n > 0 && !r.closing {
		r.avail += n
		r.credit = max(r.credit, r.avail+r.reserved+r.held.n)
	}
	r.mu.Unlock()
	signal(r.granted)
}

// over ends a receipt. Its credit is the tree's again.
func (r *receiver) over(rc *receipt) {
	if rc.state != stateOver {
		rc.state = stateOver
		r.held.remove(rc)
	}
}

// changed wakes Close.
func (r *receiver) changed() { signal(r.change) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// backoff is the delay after n failures in a row: exponential with jitter, from
// 50 ms to a fraction of the lease, so that some tries fit in before it lapses.
func (r *receiver) backoff(n int) time.Duration {
	top := min(max(r.lease/8, 50*time.Millisecond), 2*time.Second)
	d := min(50*time.Millisecond<<min(n-1, 10), top)
	return d/2 + rand.N(d/2+1)
}

// Limits are what Open learnt of the queue.
func (r *receiver) Limits() transport.Limits { return r.limits }
