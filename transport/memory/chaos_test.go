package memory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// chaos is a random run: consumers that come and go, settle as they like and
// meet random faults, until each message was accepted at least once, or may have been.
type chaos struct {
	t    *testing.T
	q    *Queue
	fifo bool

	mu       sync.Mutex
	rand     *rand.Rand
	settled  map[*transport.Delivery]int // reports for each Settle
	tried    map[string]bool             // an accept was begun: the broker may have it
	done     map[string]bool             // an accept got through to the broker, or may have
	total    int
	problems []string
}

func TestChaos(t *testing.T) {
	t.Parallel()
	runs := 150
	if testing.Short() {
		runs = 20
	}
	for seed := range runs {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { runChaos(t, uint64(seed)) })
		})
	}
}

func runChaos(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	o := QueueOptions{Seed: seed, MaxReceive: 1 + r.IntN(20), CountsOnReturn: r.IntN(2) == 0, CountsOnLoss: r.IntN(2) == 0}
	switch r.IntN(3) {
	case 0:
		o.FIFO = true
	case 1:
		o.Shuffle = true
	}
	if r.IntN(2) == 0 {
		o.Lease = time.Duration(1+r.IntN(5)) * time.Second
	}
	if r.IntN(2) == 0 {
		o.Poll = time.Second
	}
	c := &chaos{
		t: t, q: newTestQueue(t, &o), fifo: o.FIFO, rand: r, total: 60,
		settled: map[*transport.Delivery]int{}, tried: map[string]bool{}, done: map[string]bool{},
	}
	faults := rand.New(rand.NewPCG(seed, 2)) // a fault is called by one at a time
	c.q.SetFault(func(op Op) Reply {
		reply := randomReply(faults, op)
		if op.Kind == OpSettle && op.Outcome.Kind == transport.Accept && (reply.Err == nil || reply.Lost) {
			c.reached(op.Delivery)
		}
		return reply
	})
	var wg sync.WaitGroup
	wg.Go(c.publish)
	for range 1 + r.IntN(3) {
		wg.Go(c.consume)
	}
	wg.Wait()

	c.q.SetFault(nil)
	last, _ := mustOpen(t, c.q, 1000)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil { // what is left are messages whose accept didn't arrive, or duplicates
		ds, _ := last.Receive(ctx)
		for _, d := range ds {
			c.reached(d)
		}
		settle(last, transport.Accept, ds...)
	}
	if len(c.done) != c.total {
		t.Errorf("only %d of %d messages can have been accepted: the others are lost", len(c.done), c.total)
	}
	mustClose(t, last)
	if s := c.q.Stats(); s.Ready+s.InFlight+s.Delayed+s.Receivers != 0 || s.Accepted() != s.Published {
		t.Errorf("something is left: %+v", s)
	}
	if n := len(c.q.alarms); n != 0 {
		t.Errorf("%d alarms are left", n)
	}
	for d, n := range c.settled {
		if n != 1 {
			t.Errorf("%v: %d reports", d, n)
		}
	}
	for _, p := range c.problems {
		t.Error(p)
	}
}

func randomReply(r *rand.Rand, op Op) Reply {
	reply := Reply{}
	if r.IntN(8) == 0 {
		reply.Delay = time.Duration(r.IntN(2000)) * time.Millisecond
	}
	switch r.IntN(40) {
	case 0, 1, 2:
		reply.Err = temporary
	case 3:
		reply.Lost = true
	case 4:
		reply.CutLink = op.Kind != OpPublish
	case 5:
		if op.Kind != OpPublish {
			reply.Err = errDown
		}
	case 6:
		reply.More = r.IntN(3)
	}
	return reply
}

func (c *chaos) intN(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.IntN(n)
}

// publish sends each message until it was confirmed, one at a time, so that a
// repeat whose first reply was lost isn't out of order: it is a duplicate.
func (c *chaos) publish() {
	p := c.q.Publisher()
	for i := range c.total {
		m := transport.Message{ID: strconv.Itoa(i), Key: "k" + strconv.Itoa(i%5)}
		for p.Publish(c.t.Context(), m) != nil {
			<-time.After(time.Millisecond)
		}
	}
}

// reached notes that the broker may have done an accept of d.
func (c *chaos) reached(d *transport.Delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done[d.ID] = true
}

func (c *chaos) finished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.tried) == c.total
}

func (c *chaos) consume() {
	ctx, cancel := context.WithTimeout(c.t.Context(), 24*time.Hour)
	defer cancel()
	for !c.finished() {
		if ctx.Err() != nil {
			c.problem("the run doesn't end: %d of %d messages came", len(c.tried), c.total)
			return
		}
		s := &chaosSink{c: c}
		r, err := c.q.Source().Open(ctx, s)
		if err != nil {
			<-time.After(time.Millisecond)
			continue
		}
		r.Grant(1 + c.intN(20))
		c.epoch(ctx, r)
		closing, stop := context.WithTimeout(ctx, time.Duration(c.intN(3000))*time.Millisecond)
		_ = r.Close(closing)
		stop()
	}
}

// epoch receives and settles for a while.
func (c *chaos) epoch(ctx context.Context, r transport.Receiver) {
	var held []*transport.Delivery
	for range c.intN(20) {
		poll, stop := context.WithTimeout(ctx, 3*time.Second)
		ds, err := r.Receive(poll)
		stop()
		c.checkGroups(ds)
		held = append(held, ds...)
		var passes *transport.TemporaryError
		if err != nil && !errors.As(err, &passes) && !errors.Is(err, context.DeadlineExceeded) {
			return
		}
		if len(held) > 0 && c.q.opts.Lease > 0 && c.intN(3) == 0 {
			r.Extend(held, time.Now().Add(c.q.opts.Lease))
		}
		var kept []*transport.Delivery
		for _, d := range held {
			switch c.intN(8) {
			case 0, 1, 2:
				c.settle(r, d, transport.Outcome{Kind: transport.Accept})
			case 3:
				c.settle(r, d, transport.Outcome{Kind: transport.Abandon, Delay: time.Duration(c.intN(1000)) * time.Millisecond})
			case 4:
				c.settle(r, d, transport.Outcome{Kind: transport.Return})
			default:
				kept = append(kept, d)
			}
		}
		held = kept
		if c.intN(10) == 0 {
			c.q.CutLinks()
		}
		r.Grant(1 + c.intN(5))
	}
}

func (c *chaos) settle(r transport.Receiver, d *transport.Delivery, o transport.Outcome) {
	c.mu.Lock()
	c.settled[d] = 0
	if o.Kind == transport.Accept {
		c.tried[d.ID] = true
	}
	c.mu.Unlock()
	r.Settle(d, o)
}

// checkGroups: nothing of a group is handed out behind a message that isn't
// accepted, unless both come together.
func (c *chaos) checkGroups(ds []*transport.Delivery) {
	if !c.fifo {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	here := map[string]bool{}
	for _, d := range ds {
		n, _ := strconv.Atoi(d.ID)
		for before := n - 5; before >= 0; before -= 5 {
			if id := strconv.Itoa(before); !here[id] && !c.tried[id] {
				c.problems = append(c.problems, fmt.Sprintf("%s was handed out, and %s before it is neither accepted nor with it", d.ID, id))
			}
		}
		here[d.ID] = true
	}
}

func (c *chaos) problem(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

type chaosSink struct{ c *chaos }

func (s *chaosSink) Settled(d *transport.Delivery, _ transport.Outcome, _ error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.settled[d]++
}

func (s *chaosSink) Lost(ds []*transport.Delivery, err error) {
	if !errors.Is(err, transport.ErrLeaseLost) {
		s.c.problem("lost with %v", err)
	}
	for _, d := range ds {
		if !transport.LeaseOf(d).Lost() {
			s.c.problem("%v: reported as lost before its lease was", d)
		}
	}
}
