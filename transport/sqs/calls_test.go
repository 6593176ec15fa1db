package sqs

import (
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/transport"
)

// Calls for 1,000 messages that arrive evenly, with 5 ms for each call. It is
// the curve of docs/sqs.md: run it with -v.
func TestCallsByRate(t *testing.T) {
	for _, c := range []struct {
		kind   string
		rate   int // messages a second; 0: all are there
		linger time.Duration
		most   int
	}{
		{"", 0, 0, 215}, {".fifo", 0, 0, 230},
		{"", 2000, 0, 220}, {"", 1000, 0, 340}, {"", 500, 0, 620}, {"", 200, 0, 1480}, {"", 100, 0, 2000}, {"", 10, 0, 2005},
		{"", 2000, -1, 850}, {"", 1000, -1, 1260}, {"", 500, -1, 1480}, {"", 200, -1, 2005}, {"", 100, -1, 2005}, {"", 10, -1, 2005},
	} {
		t.Run(fmt.Sprintf("queue%s-%d-%v", c.kind, c.rate, c.linger), func(t *testing.T) {
			virtual(t, func(f *fake) {
				const n = 500
				q := newQueue(f, f.client, c.kind, nil)
				other := FromConfig(aws.Config{
					Region:      "us-east-1",
					Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
					HTTPClient:  f.server,
				}, "http://sqs.test")
				publish := func(pause time.Duration) {
					for i := range n {
						put(f, other, q, fmt.Sprint("g", i%100), "x")
						time.Sleep(pause) // virtual
					}
				}
				published := make(chan struct{})
				if c.rate == 0 {
					publish(0)
					close(published)
				} else {
					go func() {
						publish(time.Second / time.Duration(c.rate))
						close(published)
					}()
				}
				f.wire.Script(func(sqsfake.Call) sqsfake.Fault { return slow(2500*time.Microsecond, 2500*time.Microsecond) })
				r, s := open(f, f.client, q, &Options{Linger: c.linger})
				before := f.wire.Total()
				r.Grant(256)
				settled := make(chan struct{})
				go func() {
					for range n {
						s.await(f, 1)
						r.Grant(1)
					}
					close(settled)
				}()
				for got := 0; got < n; {
					ds, err := r.Receive(f.Context())
					if err != nil {
						f.Fatal(err)
					}
					got += len(ds)
					for _, d := range ds {
						r.Settle(d, transport.Outcome{Kind: transport.Accept})
					}
				}
				<-settled
				<-published
				calls := (f.wire.Total() - before) * 1000 / n
				f.Logf("%d calls for 1,000 messages", calls)
				if calls > c.most {
					f.Errorf("%d calls, want at most %d", calls, c.most)
				}
				closeNow(f, r)
			})
		})
	}
}
