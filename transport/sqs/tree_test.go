package sqs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// The tests of the tree_*.go files run whole subscriptions, so that pump, lanes,
// extender and settler are judged together.

// job is one queue that subscriptions work on, with the oracle's log of it.
type job struct {
	testing.TB
	fake   *fake // nil on a real server
	client *awssqs.Client
	kind   string // "" or ".fifo"
	q      string
	log    *oracle.Log
}

func newJob(t testing.TB, f *fake, c *awssqs.Client, kind string, attrs map[string]string) *job {
	return &job{TB: t, fake: f, client: c, kind: kind, q: newQueue(t, c, kind, attrs), log: oracle.New()}
}

// onBoth runs f on the scripted endpoint, in virtual time, and on a real server.
func onBoth(t *testing.T, kinds []string, attrs map[string]string, f func(j *job)) {
	t.Helper()
	for _, kind := range kinds {
		t.Run("scripted"+kind, func(t *testing.T) {
			virtual(t, func(k *fake) { f(newJob(k, k, k.client, kind, attrs)) })
		})
		t.Run("server"+kind, func(t *testing.T) {
			t.Parallel()
			f(newJob(t, nil, newClient(t, serverURL(t)), kind, attrs))
		})
	}
}

var bothKinds = []string{"", ".fifo"}

// publish sends ms, which the log then expects to be handled.
func (j *job) publish(ms ...transport.Message) {
	j.Helper()
	p, err := Publisher(j.client, j.q, nil)
	if err != nil {
		j.Fatal(err)
	}
	if err := j.log.Publisher(p).Publish(j.Context(), ms...); err != nil {
		j.Fatal(err)
	}
	if err := p.Close(j.Context()); err != nil {
		j.Fatal(err)
	}
}

// load makes n of them, which take turns over so many keys.
func load(n, keys int) []transport.Message {
	ms := make([]transport.Message, n)
	for i := range ms {
		ms[i] = transport.Message{ID: strconv.Itoa(i), Key: "k" + strconv.Itoa(i%keys), Body: []byte(strconv.Itoa(i))}
	}
	return ms
}

// running is a subscription at work.
type running struct {
	j      *job
	cancel context.CancelFunc
	err    error
	ended  chan struct{}
}

// start begins a subscription. What isn't set in o is short and quiet.
func (j *job) start(so *Options, o keylanes.Options, h keylanes.HandlerFunc) *running {
	j.Helper()
	if so == nil {
		so = &Options{}
	}
	if so.WaitTime == 0 {
		so.WaitTime = time.Second
	}
	so.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	src, err := Queue(j.client, j.q, so)
	if err != nil {
		j.Fatal(err)
	}
	if o.Policy == nil {
		o.Policy = supervision.RetryForever(supervision.Backoff{})
	}
	if o.Logger == nil {
		o.Logger = so.Logger
	}
	o.Middleware = append(o.Middleware, j.log.Middleware())
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{j: j, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = keylanes.Run(ctx, j.log.Source(src), h, &o)
	}()
	return r
}

// stop drains the subscription and waits for its end.
func (r *running) stop() {
	r.j.Helper()
	r.cancel()
	<-r.ended
	if r.err != nil {
		r.j.Errorf("the subscription ended with %v", r.err)
	}
}

// check asks the oracle, and that nothing is invisible. What is left on the
// queue may be undecided.
func (j *job) check(rules oracle.Rules) {
	j.Helper()
	visible, invisible := countsAfterStop(j, j.client, j.q)
	rules.Unordered = j.kind == ""
	rules.Remaining = number(j, visible)
	rules.Left = map[string]int{"invisible message(s)": number(j, invisible)}
	if err := j.log.Check(rules).Err(); err != nil {
		j.Error(err)
	}
}

// checkDone is check where everything was to be handled.
func (j *job) checkDone(rules oracle.Rules) {
	j.Helper()
	if visible, _ := countsAfterStop(j, j.client, j.q); visible != "0" {
		j.Errorf("%s messages are left", visible)
	}
	j.check(rules)
}

func number(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// work takes d, or until ctx ends.
func work(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// tally counts what happened, by name, and says when n have.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
	total  int
	n      int
	done   chan struct{}
}

func newTally(n int) *tally {
	return &tally{counts: map[string]int{}, n: n, done: make(chan struct{})}
}

func (c *tally) add(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[name]++
	if c.total++; c.total == c.n {
		close(c.done)
	}
	return c.counts[name]
}

// await waits until n have happened, for a minute at most.
func (c *tally) await(t testing.TB, within time.Duration) {
	t.Helper()
	if within == 0 {
		within = time.Minute
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		c.mu.Lock()
		defer c.mu.Unlock()
		t.Errorf("only %d of %d happened in %v", c.total, c.n, within)
	}
}

// moreThanOnce names what happened more often than once.
func (c *tally) moreThanOnce() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range c.counts {
		if n > 1 {
			names = append(names, fmt.Sprint(name, ": ", n))
		}
	}
	return names
}

// A subscription without a queue, without permission, or with a client for
// another region ends with an error that says what to change, within 5 s; when
// the same begins later it goes on as soon as it is over.
func TestStartErrors(t *testing.T) {
	for _, c := range startErrors {
		t.Run(c.name, func(t *testing.T) {
			virtual(t, func(f *fake) { c.check(f) })
		})
	}
}

// awaitPoll waits until the subscription has asked for messages.
func (f *fake) awaitPoll() {
	for f.wire.Calls("ReceiveMessage") == 0 {
		time.Sleep(10 * time.Millisecond) // virtual
	}
	synctest.Wait()
}
