package sqs

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

func TestServerPublishAndReceive(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", ".fifo"} {
		t.Run("queue"+kind, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, serverURL(t))
			q := newQueue(t, c, kind, nil)
			p, err := Publisher(c, queueName(q), nil)
			if err != nil {
				t.Fatal(err)
			}
			at := time.Date(2026, 5, 6, 7, 8, 9, 10, time.UTC)
			want := transport.Message{
				ID: "m-1", Key: "k", ContentType: "application/json", CorrelationID: "c", ReplyTo: "r", Body: []byte(`{"ü":1}`),
				Headers: map[string]any{"s": "text", "i": int64(-7), "f": 2.0, "b": true, "t": at, "bin": []byte{0, 1, 255}},
			}
			ms := []transport.Message{want, {Body: []byte{0, 255, 254}}, {ID: "an id with spaces"}}
			if err := p.Publish(t.Context(), ms...); err != nil {
				t.Fatal(err)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			r, s := open(t, c, q, nil)
			r.Grant(20)
			ds := receive(t, r, 3)
			found := 0
			for _, d := range ds {
				r.Settle(d, accept)
				switch {
				case d.Key == "k":
					found++
					if d.ContentType != want.ContentType || d.CorrelationID != "c" || d.ReplyTo != "r" || string(d.Body) != string(want.Body) {
						t.Errorf("got %+v", d.Message)
					}
					for k, v := range want.Headers {
						if got := d.Headers[k]; fmt.Sprintf("%T %v", got, got) != fmt.Sprintf("%T %v", v, v) {
							t.Errorf("header %s: got %T %v, want %T %v", k, got, got, v, v)
						}
					}
					if len(d.Headers) != len(want.Headers) {
						t.Errorf("headers %v", d.Headers)
					}
				case len(d.Body) == 0, bytes.Equal(d.Body, ms[1].Body):
					found++
					if d.Key != "" || len(d.Headers) != 0 {
						t.Errorf("keyless: key %q headers %v", d.Key, d.Headers)
					}
				}
			}
			if found != 3 {
				t.Errorf("found %d of 3", found)
			}
			s.await(t, 3)
			closeNow(t, r)
		})
	}
}

// One message of a group in a call, several calls at once: the order of each
// group holds.
func TestServerPublishKeepsGroupsInOrder(t *testing.T) {
	t.Parallel()
	c := newClient(t, serverURL(t))
	q := newQueue(t, c, ".fifo", nil)
	for name, o := range map[string]*PublisherOptions{"": nil, "batches": {GroupBatches: true}} {
		p, err := Publisher(c, q, o)
		if err != nil {
			t.Fatal(err)
		}
		var ms []transport.Message
		for i := range 300 {
			ms = append(ms, transport.Message{Key: fmt.Sprint(name, i%7), Body: fmt.Append(nil, i)})
		}
		if err := p.Publish(context.Background(), ms...); err != nil {
			t.Fatal(err)
		}
		r, s := open(t, c, q, nil)
		r.Grant(300)
		last := map[string]int{}
		for n := 0; n < 300; {
			ds := receive(t, r, 1)
			n += len(ds)
			for _, d := range ds {
				var i int
				if _, err := fmt.Sscan(string(d.Body), &i); err != nil || i < last[d.Key] {
					t.Fatalf("key %s: %s after %d", d.Key, d.Body, last[d.Key])
				}
				last[d.Key] = i
				r.Settle(d, accept)
			}
			s.await(t, len(ds))
		}
		closeNow(t, r)
	}
}
