package transporttest

import (
	"bytes"
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/keylanes/keylanes/transport"
)

var publishScenarios = []scenario{
	{name: "fields", run: publishFields},
	{name: "headers", run: publishHeaders},
	{name: "bodies", run: publishBodies},
	{name: "copies", run: publishCopies},
	{name: "many in one call", run: publishMany},
	{name: "none", run: publishNone},
	{name: "from many goroutines", run: publishFromMany},
	{name: "delay", run: publishDelay},
	{name: "ttl", run: publishTTL},
	{name: "after close", run: publishAfterClose},
	{name: "with an ended context", run: publishEndedContext},
}

func publishFields(f *fixture) {
	m := transport.Message{
		ID: "id-1", Key: "k", ContentType: "application/json", CorrelationID: "corr-1", ReplyTo: "answers",
		Body: []byte(`{"a":1}`),
	}
	f.publishMessages(m)
	c := f.open(1)
	d := c.drain(1)[0]
	same := func(field string, carried bool, got, want string) {
		if carried && got != want {
			f.Errorf("%s is %q, want %q", field, got, want)
		}
	}
	same("Key", true, d.Key, m.Key)
	same("Body", true, string(d.Body), string(m.Body))
	same("ID", f.h.Fields.ID, d.ID, m.ID)
	same("ContentType", f.h.Fields.ContentType, d.ContentType, m.ContentType)
	same("CorrelationID", f.h.Fields.CorrelationID, d.CorrelationID, m.CorrelationID)
	same("ReplyTo", f.h.Fields.ReplyTo, d.ReplyTo, m.ReplyTo)
	if since := time.Since(d.Enqueued); f.h.Fields.Enqueued && (since < -time.Minute || since > time.Minute) {
		f.Errorf("Enqueued is %v, %v ago", d.Enqueued, since)
	}
	if d.Delay != 0 || d.TTL != 0 {
		f.Errorf("Delay %v and TTL %v of a delivery, want zero: they are for publishing", d.Delay, d.TTL)
	}
	c.close()
}

func publishHeaders(f *fixture) {
	f.skipUnless(f.h.Headers != nil, "the harness names no headers to try (Harness.Headers)")
	f.publishMessages(transport.Message{Key: "k", Body: []byte("x"), Headers: f.h.Headers})
	c := f.open(1)
	d := c.drain(1)[0]
	for name, want := range f.h.Headers {
		if got := d.Headers[name]; !reflect.DeepEqual(got, want) {
			f.Errorf("header %q is %#v, want %#v", name, got, want)
		}
	}
	c.close()
}

func publishBodies(f *fixture) {
	c := f.open(len(f.h.Bodies))
	for i, b := range f.h.Bodies {
		f.publishMessages(transport.Message{Key: "k", Body: b})
		d := c.receive(1)[0]
		if !bytes.Equal(d.Body, b) {
			f.Errorf("body %d came with %d bytes, %d were sent, or they differ", i, len(d.Body), len(b))
		}
		c.accept(d)
	}
	c.close()
}

// publishCopies: after Publish the body and headers are the caller's again.
func publishCopies(f *fixture) {
	b := []byte("before")
	f.publishMessages(transport.Message{Key: "k", Body: b})
	copy(b, "after!")
	c := f.open(1)
	if d := c.drain(1)[0]; string(d.Body) != "before" {
		f.Errorf("the body changed with the caller's slice: %q", d.Body)
	}
	c.close()
}

func publishMany(f *fixture) {
	want := f.publish(250, keys(5)...)
	c := f.open(250)
	f.want(c.drain(250), want)
	c.close()
	f.empty()
}

func publishNone(f *fixture) {
	f.publishMessages()
	f.empty()
}

// publishFromMany: publishers don't disturb each other's order.
func publishFromMany(f *fixture) {
	ks := keys(8)
	var wg sync.WaitGroup
	want := make([][]string, len(ks))
	for i, k := range ks {
		wg.Go(func() {
			for range 5 {
				want[i] = append(want[i], f.publish(3, k)...)
			}
		})
	}
	wg.Wait()
	var all []string
	for _, w := range want {
		all = append(all, w...)
	}
	c := f.open(len(all))
	f.want(c.drain(len(all)), all)
	c.close()
}

func publishDelay(f *fixture) {
	m := transport.Message{Key: "k", Body: []byte("late"), Delay: f.h.Delay}
	if !f.h.PublishDelay {
		f.refused(m)
		return
	}
	c := f.open(1)
	start := time.Now()
	f.publishMessages(m)
	ds := c.receiveWithin(1, f.h.Delay+f.h.Timeout)
	f.notBefore(start)
	c.accept(ds...)
	c.close()
}

// refused fails unless m can't be published, and isn't.
func (f *fixture) refused(m transport.Message) {
	f.Helper()
	ctx, cancel := f.wait()
	defer cancel()
	if err := f.q.Publisher.Publish(ctx, m); err == nil || ctx.Err() != nil {
		f.Errorf("Publish gave %v, want it refused at once, since the harness says that the broker can't", err)
	}
	f.empty()
}

func publishTTL(f *fixture) {
	m := transport.Message{Key: "short", Body: []byte("short#0"), TTL: f.h.Delay}
	if !f.h.PublishTTL {
		f.refused(m)
		return
	}
	f.publishMessages(m, transport.Message{Key: "long", Body: []byte("long#0"), TTL: time.Hour})
	ctx, cancel := context.WithTimeout(f.Context(), 2*f.h.Delay+f.h.Quiet)
	defer cancel()
	<-ctx.Done()
	c := f.open(2)
	f.want(c.drain(1), []string{"long#0"})
	c.none()
	c.close()
}

func publishAfterClose(f *fixture) {
	ctx, cancel := f.wait()
	defer cancel()
	for range 2 { // Close may be called again
		if err := f.q.Publisher.Close(ctx); err != nil {
			f.Errorf("close: %v", err)
		}
	}
	if err := f.q.Publisher.Publish(ctx, transport.Message{Key: "k", Body: []byte("x")}); err == nil {
		f.Errorf("Publish after Close succeeded")
	}
}

func publishEndedContext(f *fixture) {
	ctx, cancel := context.WithCancel(f.Context())
	cancel()
	if err := f.q.Publisher.Publish(ctx, transport.Message{Key: "k", Body: []byte("x")}); err == nil {
		f.Errorf("Publish with an ended context succeeded")
	}
}
