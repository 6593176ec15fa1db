package memory_test

import (
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
	"github.com/keylanes/keylanes/transport/transporttest"
	"github.com/keylanes/keylanes/transport/transporttest/treetest"
)

// TestConformance skips nothing that the Traits of a configuration claim.
func TestConformance(t *testing.T) {
	for name, o := range configurations {
		t.Run(name, func(t *testing.T) { transporttest.Run(t, harness(o, nil)) })
		t.Run(name+", slow", func(t *testing.T) { transporttest.Run(t, harness(o, slow)) })
	}
}

var configurations = map[string]memory.QueueOptions{
	"amqp-like":          {},
	"amqp-like, one":     {MaxReceive: 1},
	"leases, in order":   {Lease: leaseOf, CountsOnLoss: true},
	"sqs-fifo-like":      {FIFO: true, Lease: leaseOf, CountsOnReturn: true, MaxReceive: 10, Poll: time.Second},
	"fifo without lease": {FIFO: true},
	"sqs-standard-like":  {Shuffle: true, Lease: leaseOf, CountsOnReturn: true, MaxReceive: 10, Poll: time.Second, Seed: 7},
	"shuffled":           {Shuffle: true},
}

// TestSubscriptions runs whole subscriptions on each configuration.
func TestSubscriptions(t *testing.T) {
	for name, o := range configurations {
		t.Run(name, func(t *testing.T) { treetest.Run(t, harness(o, nil)) })
	}
}

// leaseOf stands for a lease that the harness chooses.
const leaseOf = 1

// slow sends every operation the long way, with a little delay and the odd error
// that passes.
func slow() memory.Fault {
	n := 0
	return func(op memory.Op) memory.Reply {
		n++
		switch {
		case op.Kind == memory.OpPublish || op.Kind == memory.OpOpen:
			return memory.Reply{}
		case n%7 == 0 && op.Kind != memory.OpClose:
			return memory.Reply{Err: &transport.TemporaryError{Op: op.Kind.String(), Err: errBusy}}
		case n%11 == 0 && op.Kind == memory.OpSettle:
			return memory.Reply{Lost: true}
		}
		return memory.Reply{Delay: time.Duration(n%3) * time.Millisecond}
	}
}

type busy string

func (b busy) Error() string { return string(b) }

const errBusy = busy("the broker is busy")

func harness(o memory.QueueOptions, fault func() memory.Fault) transporttest.Harness {
	const short = 3 * time.Second
	return transporttest.Harness{
		Bubble: true,
		Lease:  short,
		Fields: transporttest.Fields{ID: true, ContentType: true, CorrelationID: true, ReplyTo: true, Enqueued: true},
		Headers: map[string]any{
			"text": "äöü", "number": int64(-7), "flag": true, "float": 2.5, "bytes": []byte{0, 255},
		},
		PublishDelay: true,
		PublishTTL:   true,
		Reason: func(d *transport.Delivery) (string, string) {
			r, _ := d.Headers[memory.HeaderReason].(string)
			s, _ := d.Headers[memory.HeaderDescription].(string)
			return r, s
		},
		New: func(t testing.TB, need transporttest.Need) *transporttest.Queue {
			b := memory.New(nil)
			dead, err := b.Queue("dead", nil)
			if err != nil {
				t.Fatal(err)
			}
			o := o
			o.DeadLetter = dead
			if o.Lease == leaseOf {
				o.Lease = time.Hour
				if need.ShortLease {
					o.Lease = short
				}
			}
			if fault != nil {
				o.Fault = fault()
			}
			q, err := b.Queue("q", &o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(q.Delete)
			return &transporttest.Queue{
				Source: q.Source(), Publisher: q.Publisher(), DeadLetters: dead.Source(),
				CutLink: q.CutLinks, Held: q.InFlight,
			}
		},
	}
}
