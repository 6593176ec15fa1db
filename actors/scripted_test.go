package actors_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// script is a source whose every reply the test makes, for interleavings that the
// memory broker can't be forced into.
type script struct {
	traits transport.Traits
	limits transport.Limits
	// open answers the n-th Open, counted from 1; nil lets it succeed.
	open func(n int) error
	// receive answers a Receive that found nothing on the belt; nil waits.
	receive func(ctx context.Context, r *scriptRcv) ([]*transport.Delivery, error)
	// settle answers a settlement, by default with r.confirm.
	settle func(r *scriptRcv, d *transport.Delivery, o transport.Outcome)
	// extend runs at the start of Extend.
	extend func()
	// closing runs at the start of Close, and its error is Close's.
	closing func(ctx context.Context, r *scriptRcv) error

	mu    sync.Mutex
	opens int
	rcvs  []*scriptRcv
}

func newScript() *script {
	return &script{traits: transport.Traits{Ordered: true, Abandon: transport.AbandonReset, MaxReceive: 64}}
}

func (s *script) Traits() transport.Traits { return s.traits }

func (s *script) Open(ctx context.Context, sink transport.Sink) (transport.Receiver, error) {
	s.mu.Lock()
	s.opens++
	n := s.opens
	s.mu.Unlock()
	if s.open != nil {
		if err := s.open(n); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &scriptRcv{s: s, n: n, sink: sink, lease: transport.NewLease(), belt: make(chan []*transport.Delivery, 64), fail: make(chan error, 1)}
	s.mu.Lock()
	s.rcvs = append(s.rcvs, r)
	s.mu.Unlock()
	return r, nil
}

// last gives the receiver that was opened last.
func (s *script) last(t *testing.T) *scriptRcv {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rcvs) == 0 {
		t.Fatal("no receiver is open")
	}
	return s.rcvs[len(s.rcvs)-1]
}

// scriptRcv is one epoch of a script.
type scriptRcv struct {
	s     *script
	n     int
	sink  transport.Sink
	lease *transport.Lease
	belt  chan []*transport.Delivery
	fail  chan error // ends the epoch
	slab  transport.Slab

	mu       sync.Mutex
	granted  int
	settled  []string // "id outcome", in order
	extended []string
	closed   bool
}

// deliver puts deliveries on the belt, on the receiver's one lease, "id:key" each.
func (r *scriptRcv) deliver(specs ...string) []*transport.Delivery {
	return r.deliverOn(func() *transport.Lease { return r.lease }, specs...)
}

// deliverOn is deliver with leases of the test's own.
func (r *scriptRcv) deliverOn(lease func() *transport.Lease, specs ...string) []*transport.Delivery {
	ds := make([]*transport.Delivery, len(specs))
	for i, spec := range specs {
		id, key, _ := cut(spec)
		d := r.slab.New(lease(), r)
		d.ID, d.Key, d.Group, d.Body, d.Epoch = id, key, key, []byte(id), uint64(r.n)
		ds[i] = d
	}
	r.belt <- ds
	return ds
}

func cut(spec string) (id, key string, ok bool) {
	for i := range spec {
		if spec[i] == ':' {
			return spec[:i], spec[i+1:], true
		}
	}
	return spec, "", false
}

func (r *scriptRcv) Limits() transport.Limits { return r.s.limits }

func (r *scriptRcv) Grant(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.granted += n
}

func (r *scriptRcv) Receive(ctx context.Context) ([]*transport.Delivery, error) {
	select {
	case ds := <-r.belt:
		return ds, nil
	default:
	}
	if f := r.s.receive; f != nil {
		return f(ctx, r)
	}
	return r.wait(ctx)
}

func (r *scriptRcv) wait(ctx context.Context) ([]*transport.Delivery, error) {
	select {
	case ds := <-r.belt:
		return ds, nil
	case err := <-r.fail:
		r.lease.Lose()
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *scriptRcv) Settle(d *transport.Delivery, o transport.Outcome) {
	if f := r.s.settle; f != nil {
		f(r, d, o)
		return
	}
	r.confirm(d, o)
}

func (r *scriptRcv) confirm(d *transport.Delivery, o transport.Outcome) {
	r.mu.Lock()
	err := error(nil)
	if transport.HandleOf(d) != any(r) {
		err = errors.New("settled on another receiver than its own")
	}
	if r.closed {
		err = transport.ErrLeaseLost
	}
	if err == nil {
		r.settled = append(r.settled, d.ID+" "+o.Kind.String())
	}
	r.mu.Unlock()
	r.sink.Settled(d, o, err)
}

func (r *scriptRcv) Extend(ds []*transport.Delivery, _ time.Time) {
	if f := r.s.extend; f != nil {
		f()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range ds {
		r.extended = append(r.extended, d.ID)
	}
}

func (r *scriptRcv) Close(ctx context.Context) (err error) {
	if f := r.s.closing; f != nil {
		err = f(ctx, r)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.lease.Lose()
	return err
}

// outcomes lists the settlements so far, "id outcome" each.
func (r *scriptRcv) outcomes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.settled)
}

func (r *scriptRcv) credit() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.granted
}

// ids gives "from" to "to" as specs of one key.
func ids(from, to int, key string) []string {
	var specs []string
	for i := from; i <= to; i++ {
		specs = append(specs, strconv.Itoa(i)+":"+key)
	}
	return specs
}
