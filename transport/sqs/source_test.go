package sqs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/keylanes/keylanes/internal/sqsfake"
	"github.com/keylanes/keylanes/transport"
)

func (f *fake) create(name string) {
	f.Helper()
	if _, err := f.client.CreateQueue(context.Background(), &awssqs.CreateQueueInput{QueueName: &name}); err != nil {
		f.Fatal(err)
	}
}

func TestTraits(t *testing.T) {
	t.Parallel()
	c := newClient(t, "http://sqs.test")
	for _, q := range []string{"q", "q.fifo", "https://sqs.us-east-1.amazonaws.com/1/q.fifo"} {
		src, err := Queue(c, q, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := transport.Traits{LeaseExpires: true, CountsOnReturn: true, AbandonDelay: true, MaxReceive: 10}
		if strings.HasSuffix(q, ".fifo") {
			want.Ordered, want.GroupsExclusive, want.Abandon = true, true, transport.AbandonGroup
		}
		if got := src.Traits(); got != want {
			t.Errorf("%s: got %+v", q, got)
		}
	}
}

func TestQueueRefuses(t *testing.T) {
	t.Parallel()
	c := newClient(t, "http://sqs.test")
	aws1 := awssqs.New(awssqs.Options{Region: "us-east-1"})
	for _, x := range []struct {
		client Client
		queue  string
		o      Options
		field  string
	}{
		{nil, "q", Options{}, "client"},
		{c, "", Options{}, "queue"},
		{c, ".fifo", Options{}, "queue"},
		{c, "q.", Options{}, "queue"},
		{c, "a b", Options{}, "queue"},
		{c, "a/b", Options{}, "queue"},
		{c, "http://sqs.test/", Options{}, "queue"},
		{c, strings.Repeat("q", 81), Options{}, "queue"},
		{aws1, "https://sqs.eu-west-1.amazonaws.com/1/q", Options{}, "queue"},
		{c, "q", Options{VisibilityTimeout: -time.Second}, "Options.VisibilityTimeout"},
		{c, "q", Options{VisibilityTimeout: 1500 * time.Millisecond}, "Options.VisibilityTimeout"},
		{c, "q", Options{VisibilityTimeout: 12*time.Hour + time.Second}, "Options.VisibilityTimeout"},
		{c, "q", Options{WaitTime: time.Millisecond}, "Options.WaitTime"},
		{c, "q", Options{WaitTime: 21 * time.Second}, "Options.WaitTime"},
		{c, "q", Options{Pollers: -1}, "Options.Pollers"},
		{c, "q", Options{Pollers: 17}, "Options.Pollers"},
		{c, "q.fifo", Options{Pollers: 2}, "Options.Pollers"},
		{c, "q", Options{Linger: 10*time.Millisecond + 1}, "Options.Linger"},
		{c, "q", Options{CallTimeout: time.Millisecond}, "Options.CallTimeout"},
		{c, "q", Options{CallTimeout: time.Hour}, "Options.CallTimeout"},

		{c, strings.Repeat("q", 80), Options{}, ""},
		{aws1, "https://sqs.us-east-1.amazonaws.com/1/q", Options{}, ""},
		{aws1, "http://127.0.0.1:9324/1/q", Options{}, ""},
		{c, "q", Options{VisibilityTimeout: time.Second, WaitTime: time.Second, Pollers: 1, Linger: -1, CallTimeout: 100 * time.Millisecond}, ""},
		{c, "q", Options{VisibilityTimeout: 12 * time.Hour, WaitTime: 20 * time.Second, Pollers: 16, Linger: 10 * time.Millisecond, CallTimeout: time.Minute}, ""},
		{c, "q.fifo", Options{Pollers: 1}, ""},
	} {
		_, err := Queue(x.client, x.queue, &x.o)
		var oe *transport.OptionError
		if errors.As(err, &oe) != (x.field != "") || oe != nil && (oe.Field != x.field || oe.Want == "") {
			t.Errorf("queue %q, %+v: %v", x.queue, x.o, err)
		}
		if _, err := Publisher(x.client, x.queue, nil); (err != nil) != (x.field == "client" || x.field == "queue") {
			t.Errorf("publisher %q: %v", x.queue, err)
		}
	}
}

// Each surprise of a queue's settings is an error or a warning that says what to
// change, within 5 s.
func TestOpenChecksTheQueue(t *testing.T) {
	for name, c := range map[string]struct {
		kind  string
		attrs map[string]string
		o     Options
		fatal string
		warn  string
	}{
		"good":             {},
		"good FIFO":        {kind: ".fifo"},
		"timeout 0":        {attrs: map[string]string{"VisibilityTimeout": "0"}, fatal: "Options.VisibilityTimeout"},
		"timeout 0, set":   {attrs: map[string]string{"VisibilityTimeout": "0"}, o: Options{VisibilityTimeout: 30 * time.Second}},
		"timeout 5":        {attrs: map[string]string{"VisibilityTimeout": "5"}, warn: "visibility timeout is short"},
		"redrive 1":        {attrs: map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"a:b:dlq","maxReceiveCount":1}`}, fatal: "maxReceiveCount to 5"},
		"redrive \"1\"":    {attrs: map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"a:b:dlq","maxReceiveCount":"1"}`}, fatal: "maxReceiveCount to 5"},
		"redrive 1, known": {attrs: map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"a:b:dlq","maxReceiveCount":1}`}, o: Options{AllowSingleReceive: true}, warn: "maxReceiveCount is low"},
		"redrive 3":        {attrs: map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"a:b:dlq","maxReceiveCount":3}`}, warn: "maxReceiveCount is low"},
		"redrive 5":        {attrs: map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"a:b:dlq","maxReceiveCount":5}`}},
		"no DLQ":           {attrs: map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"a:b:gone","maxReceiveCount":5}`}, warn: "isn't there"},
		"odd policy":       {attrs: map[string]string{"RedrivePolicy": `{`}, warn: "can't be read"},
		"odd count":        {attrs: map[string]string{"RedrivePolicy": `{"maxReceiveCount":"0"}`}, warn: "no maxReceiveCount"},
		"no FIFO":          {kind: ".fifo", attrs: map[string]string{}, fatal: "ends in .fifo"},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(f *fake) {
				f.create("dlq")
				q := newQueue(f, f.client, c.kind, c.attrs)
				if name == "no FIFO" {
					f.script("GetQueueAttributes", func(int) sqsfake.Fault {
						return sqsfake.EditReply(func(out map[string]any) { delete(out["Attributes"].(map[string]any), "FifoQueue") })
					})
				}
				var log bytes.Buffer
				c.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				src, err := Queue(f.client, q, &c.o)
				if err != nil {
					f.Fatal(err)
				}
				r, err := src.Open(f.Context(), newSink())
				var fatal *transport.FatalError
				if errors.As(err, &fatal) != (c.fatal != "") || fatal != nil && (!strings.Contains(fatal.Fix, c.fatal) || fatal.Op == "") {
					f.Errorf("open: %v", err)
				}
				if got := log.String(); (got != "") != (c.warn != "") || !strings.Contains(got, c.warn) {
					f.Errorf("log: %s", got)
				}
				if r != nil {
					l := r.(transport.Limited).Limits()
					if l.LeaseMax != 12*time.Hour || l.Lease == 0 || (l.MaxReceives != 0) != (strings.Contains(name, "redrive") || name == "no DLQ") {
						f.Errorf("limits %+v", l)
					}
					closeNow(f, r)
				}
			})
		})
	}
}

func TestOpenErrors(t *testing.T) {
	for name, c := range map[string]struct {
		fault sqsfake.Fault
		fix   string // "": not fatal
	}{
		"no queue":     {sqsfake.Fail(400, "QueueDoesNotExist"), "create the queue"},
		"denied":       {sqsfake.Fail(403, "AccessDeniedException"), "sqs:ReceiveMessage"},
		"bad key":      {sqsfake.Fail(403, "SignatureDoesNotMatch"), "credentials"},
		"unknown key":  {sqsfake.Fail(403, "InvalidClientTokenId"), "credentials"},
		"expired":      {sqsfake.Fail(403, "ExpiredTokenException"), "expired"},
		"no such key":  {sqsfake.Fail(400, "KMS.DisabledException"), ""},
		"invalid":      {sqsfake.Fail(400, "InvalidParameterValue"), "see what SQS says"},
		"throttled":    {sqsfake.Fail(400, "ThrottlingException"), ""},
		"503":          {sqsfake.FailText(503, "busy"), ""},
		"black hole":   {sqsfake.BlackHole, ""},
		"cut":          {sqsfake.CutReply, ""},
		"unreachable":  {sqsfake.Drop, ""},
		"skewed clock": {sqsfake.Fail(403, "RequestTimeTooSkewed"), ""},
	} {
		for _, op := range []string{"GetQueueUrl", "GetQueueAttributes"} {
			t.Run(name+" "+op, func(t *testing.T) {
				virtual(t, func(f *fake) {
					f.create("orders")
					f.script(op, func(int) sqsfake.Fault { return c.fault })
					src, err := Queue(f.client, "orders", nil)
					if err != nil {
						f.Fatal(err)
					}
					began := time.Now()
					_, err = src.Open(f.Context(), newSink())
					var fatal *transport.FatalError
					if err == nil || errors.As(err, &fatal) != (c.fix != "") || fatal != nil && !strings.Contains(fatal.Fix, c.fix) || !strings.Contains(err.Error(), "orders") {
						f.Errorf("open: %v", err)
					}
					if d := time.Since(began); d > 5*time.Second {
						f.Errorf("it took %v", d)
					}
				})
			})
		}
	}
}

func TestOpenWithoutCredentials(t *testing.T) {
	virtual(t, func(f *fake) {
		for name, p := range map[string]aws.CredentialsProvider{
			"refused": aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{}, errors.New("no role")
			}),
			"hanging": aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
				<-ctx.Done()
				return aws.Credentials{}, ctx.Err()
			}),
		} {
			c := FromConfig(aws.Config{Region: "us-east-1", Credentials: p, HTTPClient: f.wire}, "http://sqs.test")
			src, err := Queue(c, "orders", nil)
			if err != nil {
				f.Fatal(err)
			}
			began := time.Now()
			_, err = src.Open(f.Context(), newSink())
			if !is[*transport.FatalError](err) || time.Since(began) > 5*time.Second || f.wire.Total() > 0 {
				f.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
		}
	})
}

// Epochs of one source grow; depth counts what waits.
func TestEpochsAndDepth(t *testing.T) {
	virtual(t, func(f *fake) {
		q := newQueue(f, f.client, "", nil)
		put(f, f.client, q, "", "0", "1", "2")
		src, err := Queue(f.client, q, nil)
		if err != nil {
			f.Fatal(err)
		}
		for epoch := range uint64(3) {
			r, err := src.Open(f.Context(), newSink())
			if err != nil {
				f.Fatal(err)
			}
			r.Grant(1)
			if d := receive(f, r, 1)[0]; d.Epoch != epoch+1 {
				f.Errorf("epoch %d, want %d", d.Epoch, epoch+1)
			}
			if n, err := r.(transport.Depther).Depth(f.Context()); n != 2 || err != nil {
				f.Errorf("depth %d, %v", n, err)
			}
			f.script("GetQueueAttributes", once(sqsfake.FailText(500, "oops")))
			if _, err := r.(transport.Depther).Depth(f.Context()); err == nil {
				f.Error("no error of a failed call")
			}
			f.wire.Script(nil)
			closeNow(f, r)
		}
	})
}

func TestNormalCode(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"ThrottlingException": "Throttling", "com.amazonaws.sqs#QueueDoesNotExist": "QueueDoesNotExist",
		"AWS.SimpleQueueService.NonExistentQueue": "NonExistentQueue", "AccessDenied": "AccessDenied", "": "",
		"com.amazonaws.sqs#AWS.SimpleQueueService.OverLimitException": "OverLimit",
	} {
		if got := normalCode(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	for code := range codes {
		if normalCode(code) != code {
			t.Errorf("%q isn't normal, so it is never found", code)
		}
	}
	if fmt.Sprint(classOf(&entryError{class: classGone})) != fmt.Sprint(classGone) {
		t.Error("an entry's class is lost")
	}
}
