package actors_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/transport"
)

// A handler has succeeded, and before its accept is handed over the link dies and a
// new receiver is attached: the accept isn't given to that one, and no credit is
// given back for it.
func TestSettleMeetsTheNextEpoch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, s := newRig(t, nil), newScript()
		var steps trail
		between, attached := make(chan struct{}), make(chan struct{})
		s.settle = func(rcv *scriptRcv, d *transport.Delivery, o transport.Outcome) {
			if transport.HandleOf(d) != any(rcv) {
				t.Errorf("%v of receiver %d is settled on receiver %d", d, d.Epoch, rcv.n)
			}
			rcv.confirm(d, o)
		}
		pid := r.spawnOn(s, func(_ context.Context, d *transport.Delivery) error {
			steps.add("%s of %d", d.ID, d.Epoch)
			return nil
		}, actors.Options{Credit: 8, Observer: actors.ObserverFunc(func(o actors.Observation) {
			if o.Kind == actors.ObserveSucceeded && o.Delivery.Epoch == 1 { // on the lane's goroutine
				close(between)
				<-attached
			}
		})})
		synctest.Wait()
		first := s.last(t)
		first.deliver(ids(1, 1, "A")...)
		<-between
		first.fail <- errors.New("cut")
		time.Sleep(time.Second)
		second := s.last(t)
		if second == first {
			t.Fatal("no new receiver")
		}
		close(attached)
		synctest.Wait()
		if got := second.outcomes(); len(got) > 0 || second.credit() != 8 {
			t.Errorf("settled %q with %d granted, want nothing, and 8", got, second.credit())
		}
		second.deliver(ids(1, 1, "A")...)
		synctest.Wait()
		steps.want(t, "1 of 1", "1 of 2")
		if st := r.stats(pid); st.Held != 0 || st.SettleFailed != 1 {
			t.Errorf("%d held, %d settlements failed, want 0 and 1", st.Held, st.SettleFailed)
		}
		r.drain(pid)
	})
}

// The lease of a delivery is reported lost while its settlement is on its way, and
// the settlement is reported too: its credit is given back once.
func TestLostWhileItIsSettled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, s := newRig(t, nil), newScript()
		s.traits = transport.Traits{Ordered: true, LeaseExpires: true, GroupsExclusive: true, Abandon: transport.AbandonGroup, MaxReceive: 10}
		s.limits.Lease = time.Hour
		settling := make(chan *transport.Delivery, 1)
		s.settle = func(_ *scriptRcv, d *transport.Delivery, _ transport.Outcome) { settling <- d }
		pid := r.spawnOn(s, func(context.Context, *transport.Delivery) error { return nil }, actors.Options{Credit: 20})
		synctest.Wait()
		rcv := s.last(t)
		rcv.deliverOn(func() *transport.Lease { return transport.NewLeaseUntil(time.Now().Add(time.Hour)) }, ids(1, 1, "A")...)
		d := <-settling
		transport.LeaseOf(d).Lose()
		rcv.sink.Lost([]*transport.Delivery{d}, transport.ErrLeaseLost)
		rcv.sink.Settled(d, transport.Outcome{Kind: transport.Accept}, transport.ErrLeaseLost)
		time.Sleep(time.Second) // for the credit's last part
		if st := r.stats(pid); st.Held != 0 {
			t.Errorf("%d held, want 0", st.Held)
		}
		if n := rcv.credit(); n > 21 { // what was granted at first, and the one
			t.Errorf("%d granted in all, want at most 21", n)
		}
		r.drain(pid)
	})
}
