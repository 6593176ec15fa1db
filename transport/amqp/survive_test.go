package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/internal/netfault"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

var errNotYet = errors.New("not yet")

// Abandons of a hot key, each of which ends the receiver, keep its order and
// that of its neighbours, and cost no duplicate; also when the hot key alone
// exhausts the credit.
func TestAbandonStorm(t *testing.T) {
	t.Parallel()
	for _, credit := range []int{8, 256} {
		t.Run(fmt.Sprint("credit ", credit), func(t *testing.T) {
			t.Parallel()
			broker, queue := brokerURL(t), queueName(t)
			const n, every = 400, 100
			h := func(ctx context.Context, d *transport.Delivery) error {
				// The broker's own count says whether it was abandoned before.
				if d.Key == "hot" && d.Count == 0 && strings.HasSuffix(string(d.Body), "50") {
					return errNotYet
				}
				return work(ctx, d)
			}
			w := newTree(t, broker, broker, queue, nil, h, actors.Options{
				Dispatch: actors.PerKey(8), Credit: credit, Policy: supervision.Always(supervision.Abandon(0))})
			ms := keyed(queue, 0, n, 5)
			for i := range ms {
				if i%2 == 0 || i%every == 50 {
					ms[i].Key = "hot"
				}
			}
			w.publish(ms...)
			w.awaitHandled(n, 50*time.Second)
			if st := w.stats(); st.Abandoned != n/every || st.Epoch != n/every+1 {
				t.Errorf("%d abandons, receiver %d: %+v", st.Abandoned, st.Epoch, st)
			}
			w.finish(oracle.Rules{Credit: credit})
		})
	}
}

// A poison key that stands still with 10,000 successors says that it blocks the
// subscription, and by Unpark goes on in order.
func TestPoisonKeyBlocks(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	poison := make(chan struct{}) // closed when the message may succeed
	h := func(ctx context.Context, d *transport.Delivery) error {
		select {
		case <-poison:
		default:
			if d.Key == "poison" {
				return errNotYet
			}
		}
		return work(ctx, d)
	}
	w := newTree(t, broker, broker, queue, nil, h, actors.Options{
		Dispatch: actors.ByKey(4), Credit: stormCredit, BlockedFor: 200 * time.Millisecond,
		Policy: supervision.Always(supervision.Retry(time.Hour))})
	const n, others = 10_001, 100
	w.publish(keyed(queue, 0, others, 7)...)
	w.awaitHandled(others, 20*time.Second)
	ms := keyed(queue, others, n, 1)
	for i := range ms {
		ms[i].Key = "poison"
	}
	w.publish(ms...)
	w.awaitEvent(actors.EventBlocked, 1, 20*time.Second)
	st := w.stats()
	if !st.Blocked || st.BlockedKey != "poison" || st.NotReady == nil || st.Parked != 1 || st.Held != stormCredit {
		t.Errorf("while it blocks: %+v", st)
	}
	close(poison)
	w.sys.Root.Send(w.pid, &actors.Unpark{Key: "poison"})
	w.awaitHandled(others+n, 50*time.Second)
	w.awaitEvent(actors.EventUnblocked, 1, 10*time.Second)
	if st := w.stats(); st.Blocked || st.NotReady != nil {
		t.Errorf("afterwards: %+v", st)
	}
	w.finish(oracle.Rules{Credit: stormCredit})
}

// A subscription whose socket takes nothing any more doesn't hold up another
// one, and its drain keeps to its bounds.
func TestStalledNeighbour(t *testing.T) {
	t.Parallel()
	broker := brokerURL(t)
	proxy, proxied := through(t, broker)
	const n = 2000
	o := actors.Options{Dispatch: actors.ByKey(4), Credit: stormCredit, Policy: retryForever, StopTimeout: time.Second}
	// Its own idle timeout would end it as well: here the write is to do so.
	stalled := newTree(t, broker, proxied, queueName(t)+".stalled",
		&amqp.Options{Connection: amqp.Connection{WriteTimeout: time.Second, IdleTimeout: time.Minute}}, work, o)
	fine := newTree(t, broker, broker, queueName(t)+".fine", nil, work, o)
	stalled.publish(keyed(stalled.queue, 0, n, 16)...)
	stalled.awaitHandled(100, 20*time.Second)
	proxy.BlackHole(netfault.Both)
	fine.publish(keyed(fine.queue, 0, n, 16)...)
	fine.awaitHandled(n, 20*time.Second)
	fine.finish(oracle.Rules{Credit: stormCredit})

	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	// Nothing could be confirmed any more, and it says so.
	var unsure *amqp.Error
	if err := actors.Drain(ctx, stalled.sys.Root, stalled.pid); err != nil && !errors.As(err, &unsure) {
		t.Errorf("drain: %v", err)
	}
	// StopTimeout, and then the 10 s that the tree gives a receiver's Close.
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the drain took %v", took)
	}
	rest := newTreeOn(t, stalled.log, broker, broker, stalled.queue, nil, work, o)
	// What was handled and couldn't be accepted comes too, but not before the
	// broker takes its old connection for dead.
	awaitNoMessage(t, broker, stalled.queue, 20*time.Second)
	rest.finish(oracle.Rules{Duplicates: lossBound})
}

// A queue that is deleted, stays away for a while, and is created again: the
// subscription waits, says so, and goes on within 5 s.
func TestQueueComesBack(t *testing.T) {
	t.Parallel()
	broker := brokerURL(t)
	queue := strings.Replace(queueName(t), "app.", "app.noauto.", 1)
	create := func() {
		config := fmt.Sprintf(`{"name":%[1]q,"address":%[1]q,"routing-type":"ANYCAST","durable":true,"auto-create-address":true}`, queue)
		manage(t, broker, "broker", "createQueue", fmt.Sprintf(`[%q, false]`, config))
	}
	create()
	w := newTree(t, broker, broker, queue, nil, work, actors.Options{Dispatch: actors.ByKey(4), Credit: stormCredit, Policy: retryForever})
	w.publish(keyed(queue, 0, 500, 16)...)
	w.awaitHandled(500, 20*time.Second)
	manage(t, broker, "broker", "destroyQueue", fmt.Sprintf(`[%q, true, true]`, queue))
	w.awaitEvent(actors.EventAttachFailed, 2, 20*time.Second)
	if st := w.stats(); st.State != actors.StateDetached || st.NotReady == nil || !strings.Contains(st.NotReady.Error(), "not") {
		t.Errorf("without a queue: %+v", st)
	}
	create()
	w.awaitEvent(actors.EventAttached, 2, 5*time.Second)
	w.publish(keyed(queue, 500, 500, 16)...)
	w.awaitHandled(1000, 20*time.Second)
	w.finish(oracle.Rules{Credit: stormCredit})
}

// A message whose time to live ends while it is held is the holder's: it can be
// accepted. Given back, it is gone.
func TestExpiryWhileHeld(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	ms := numbered(2)
	for i := range ms {
		ms[i].TTL = 300 * time.Millisecond
	}
	publish(t, broker, queue, nil, ms...)
	r, s := open(t, broker, queue, nil)
	r.Grant(2)
	ds := receive(t, r, 2)
	pause(t.Context(), 1500*time.Millisecond) // the broker looks twice a second
	if err := transport.LeaseOf(ds[0]).Lost(); err {
		t.Error("the lease is lost")
	}
	accept(t, r, s, ds[0])
	closeNow(t, r)
	empty(t, broker, queue)
}

// Priorities reorder what waits, and nothing else: each priority keeps its own
// order, and every message arrives once.
func TestPriorities(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	const n = 60
	var ms []*goamqp.Message
	for i := range n {
		m := &goamqp.Message{Data: [][]byte{[]byte(fmt.Sprintf("%02d", i))}}
		if p := i % 3; p > 0 { // 0: no header, which is priority 4
			m.Header = &goamqp.MessageHeader{Durable: true, Priority: uint8(p*8 - 7)} // 1 and 9
		}
		ms = append(ms, m)
	}
	rawSend(t, broker, queue, ms...)
	r, s := open(t, broker, queue, nil)
	r.Grant(n)
	ds := receive(t, r, n)
	var want []string
	for _, p := range []int{2, 0, 1} {
		for i := p; i < n; i += 3 {
			want = append(want, fmt.Sprintf("%02d", i))
		}
	}
	if got := strings.Join(bodies(ds), " "); got != strings.Join(want, " ") {
		t.Errorf("got %s", got)
	}
	accept(t, r, s, ds...)
	closeNow(t, r)
	empty(t, broker, queue)
}

// Group ids of every shape that a client can send, and 5 MB, through the whole tree.
// What isn't UTF-8 is in TestKeyThatIsNotUTF8.
func TestOddKeys(t *testing.T) {
	t.Parallel()
	broker, queue := brokerURL(t), queueName(t)
	w := newTree(t, broker, broker, queue, nil, work, actors.Options{Dispatch: actors.PerKey(4), Credit: 16, Policy: retryForever})
	groups := []string{"", strings.Repeat("g", 10<<10), "ключ", "\x00"}
	const each = 20
	var ms []*goamqp.Message
	for i := range each * len(groups) {
		m := &goamqp.Message{
			Header:                &goamqp.MessageHeader{Durable: true, Priority: 4},
			Properties:            &goamqp.MessageProperties{GroupID: &groups[i%len(groups)]},
			ApplicationProperties: map[string]any{oracle.Header: fmt.Sprint("m", i)},
			Data:                  [][]byte{fmt.Append(nil, i)},
		}
		if i == 7 {
			m.Data = [][]byte{make([]byte, 5<<20)}
		}
		ms = append(ms, m)
		w.log.Record(oracle.Published, &transport.Message{Key: groups[i%len(groups)], ID: fmt.Sprint("m", i)})
	}
	rawSend(t, broker, queue, ms...)
	w.awaitHandled(len(ms), 30*time.Second)
	w.finish(oracle.Rules{Credit: 16})
}
