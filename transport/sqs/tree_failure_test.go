package sqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// a1 fails the first message of its group every time but the last, and notes in
// which order messages are tried.
type a1 struct {
	fails int // how often it fails
	mu    sync.Mutex
	tried []string
	done  *tally
}

func (h *a1) handle(_ context.Context, d *keylanes.Delivery) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	body := string(d.Body)
	h.tried = append(h.tried, body)
	if body == "0" && h.fails > 0 {
		h.fails--
		return errNo
	}
	h.done.add(body)
	return nil
}

var errNo = errors.New("no")

// The first of three messages of a group fails again and again: whatever the
// policy, the second is never tried before the first is decided.
func TestFailedHeadStaysFirst(t *testing.T) {
	for name, policy := range map[string]supervision.Policy{
		"retry": supervision.Always(supervision.Retry(100 * time.Millisecond)),
		// Native: the head is delayed at SQS, and costs no credit meanwhile.
		"abandon": supervision.Always(supervision.Abandon(time.Second)),
		// Now here, now there.
		"both": supervision.PolicyFunc(func(f supervision.Failure) supervision.Directive {
			if f.Attempt%2 == 0 {
				return supervision.Abandon(0)
			}
			return supervision.Retry(10 * time.Millisecond)
		}),
		"dead-letter": supervision.Limit(3, supervision.DeadLetter("tried", ""), supervision.Always(supervision.Retry(10*time.Millisecond))),
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, []string{".fifo"}, nil, func(j *job) {
				const fails = 6
				dead := newQueue(j, j.client, ".fifo", nil)
				p, err := Publisher(j.client, dead, nil)
				if err != nil {
					j.Fatal(err)
				}
				j.publish(load(3, 1)...)
				j.publish(transport.Message{ID: "other", Key: "other", Body: []byte("other")})
				h := &a1{fails: fails, done: newTally(4)}
				want := append(slices.Repeat([]string{"0"}, fails+1), "1", "2")
				if name == "dead-letter" {
					h.done = newTally(3)
					want = []string{"0", "0", "0", "1", "2"}
				}
				r := j.start(nil, keylanes.Options{Dispatch: keylanes.ByKey(2), Policy: policy, DeadLetter: j.log.DeadLetter(p), OutageAfter: -1}, h.handle)
				h.done.await(j, time.Minute)
				r.stop()
				tried := slices.DeleteFunc(h.tried, func(b string) bool { return b == "other" })
				if !slices.Equal(tried, want) {
					j.Errorf("tried %v, want %v", tried, want)
				}
				j.checkDone(oracle.Rules{})
				if v, _ := counts(j, j.client, dead); name == "dead-letter" && v != "1" || name != "dead-letter" && v != "0" {
					j.Errorf("%s in the dead-letter queue", v)
				}
				if err := p.Close(context.Background()); err != nil {
					j.Error(err)
				}
			})
		})
	}
}

// A queue with maxReceiveCount 3 whose first message is abandoned again and
// again: its successors, which go back with it, don't reach the dead-letter
// queue without having been tried.
func TestAbandonSparesSuccessors(t *testing.T) {
	for _, place := range []string{"scripted", "server"} {
		t.Run(place, func(t *testing.T) {
			spares := func(tb testing.TB, f *fake) {
				c := newFakeOr(tb, f)
				dead := newQueue(tb, c, ".fifo", nil)
				j := newJob(tb, f, c, ".fifo", map[string]string{
					"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:%s","maxReceiveCount":3}`, queueName(dead))})
				j.publish(load(3, 1)...)
				h := &a1{fails: 8, done: newTally(3)}
				r := j.start(nil, keylanes.Options{Policy: supervision.Always(supervision.Abandon(0))}, h.handle)
				h.done.await(tb, time.Minute)
				r.stop()
				if want := append(slices.Repeat([]string{"0"}, 9), "1", "2"); !slices.Equal(h.tried, want) {
					tb.Errorf("tried %v, want %v", h.tried, want)
				}
				j.checkDone(oracle.Rules{})
				if v, i := counts(tb, c, dead); v != "0" || i != "0" {
					tb.Errorf("%s visible and %s invisible in the dead-letter queue", v, i)
				}
			}
			if place == "scripted" {
				virtual(t, func(f *fake) { spares(f, f) })
				return
			}
			t.Parallel()
			spares(t, nil)
		})
	}
}

// A head that is abandoned with a long delay waits at SQS: it costs no credit,
// so a subscription with a credit of ten goes on with other groups.
func TestDelayedHeadCostsNoCredit(t *testing.T) {
	onBoth(t, []string{".fifo"}, nil, func(j *job) {
		const groups, credit = 30, 10
		j.publish(load(groups*3, groups)...)
		began := time.Now()
		others, all := newTally(groups/2*3), newTally(groups*3)
		var mu sync.Mutex
		failed := map[string]bool{}
		r := j.start(nil, keylanes.Options{Dispatch: keylanes.ByKey(4), Credit: credit, Policy: supervision.Always(supervision.Abandon(8 * time.Second))},
			func(_ context.Context, d *keylanes.Delivery) error {
				n := number(j, string(d.Body))
				mu.Lock()
				defer mu.Unlock()
				if n < groups && n%2 == 0 && !failed[d.Key] { // heads of every other group: more than the credit
					failed[d.Key] = true
					return errNo
				}
				if n%2 != 0 {
					others.add(d.ID)
				}
				all.add(d.ID)
				return nil
			})
		others.await(j, time.Minute)
		if took := time.Since(began); took > 7*time.Second {
			j.Errorf("the other groups took %v", took)
		}
		all.await(j, time.Minute)
		if took := time.Since(began); took < 7*time.Second {
			j.Errorf("the delayed heads came again after %v", took)
		}
		r.stop()
		j.checkDone(oracle.Rules{Credit: credit})
	})
}

// newFakeOr gives the client of f, or of a real server.
func newFakeOr(t testing.TB, f *fake) *awssqs.Client {
	if f != nil {
		return f.client
	}
	return newClient(t, serverURL(t))
}
