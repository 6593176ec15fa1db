package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/benchmarks/internal/consume"
	"github.com/keylanes/keylanes/benchmarks/internal/measure"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/sqs"
)

// throughputs measures a standard queue, and on ElasticMQ a FIFO queue: fauxqs
// gives one message of a group a receive.
func throughputs(ctx context.Context, s *measure.Settings, srv *server, n int) error {
	// ElasticMQ is the limit on a standard queue, so less is wanted there.
	single := 3.0
	if srv.name == "ElasticMQ" {
		single = 2.5
	}
	if err := throughput(ctx, s, srv, n, "", keylanes.Workers(8), single, 1.2, 215); err != nil {
		return err
	}
	if srv.name != "ElasticMQ" {
		return nil
	}
	return throughput(ctx, s, srv, n, ".fifo", keylanes.ByKey(8), 0, 1.0, 230)
}

func throughput(ctx context.Context, s *measure.Settings, srv *server, n int, suffix string, d keylanes.Dispatch, single, batched, calls float64) error {
	kind := "standard"
	if suffix != "" {
		kind = "FIFO of 100 groups"
	}
	const one, ten = "SDK loop, single deletes", "SDK loop, batched deletes"
	const same = "SDK loop, batched deletes, attributes"
	ours := "keylanes " + name(d)
	url, forget, err := srv.newQueue(ctx, queueName(suffix))
	if err != nil {
		return err
	}
	defer forget()
	loop := func(name string, attributes []types.MessageSystemAttributeName, remove func(context.Context, string, []types.Message) error) measure.Contender {
		return measure.Contender{Name: name, Setup: func(ctx context.Context) (measure.Trial, error) {
			return srv.counted(n, func(ctx context.Context) error { return srv.loop(ctx, url, n, attributes, remove) }, nil), srv.fill(ctx, url, n)
		}}
	}
	r, err := s.Compare(ctx, fmt.Sprintf("%s, %s, %d", srv.name, kind, n),
		loop(one, nil, srv.deleteEach), loop(ten, nil, srv.deleteBatch), loop(same, attributesOf(suffix), srv.deleteBatch),
		measure.Contender{Name: ours, Setup: func(ctx context.Context) (measure.Trial, error) {
			t, err := srv.lanes(url, n, d)
			return t, errors.Join(err, srv.fill(ctx, url, n))
		}},
	)
	if err != nil {
		return err
	}
	r.Table(os.Stdout, measure.Rate, measure.Cost, measure.Extra("calls per 1,000"), measure.Extra("receives"), measure.Extra("deletes"))
	r.Ratios(os.Stdout,
		measure.Ratio{A: ours, B: one, Of: measure.Rate, AtLeast: single},
		measure.Ratio{A: ours, B: ten, Of: measure.Rate, AtLeast: batched},
		measure.Ratio{A: ours, B: ten, Of: measure.Cost},
		measure.Ratio{A: ours, B: same, Of: measure.Rate},
		measure.Ratio{A: ours, B: same, Of: measure.Cost, AtMost: 1.15},
	)
	r.Figures(os.Stdout, measure.Figure{Of: ours, Metric: measure.Extra("calls per 1,000"), AtMost: calls})
	return nil
}

func name(d keylanes.Dispatch) string {
	return strings.NewReplacer("bykey", "ByKey", "workers", "Workers", "perkey", "PerKey").Replace(d.String())
}

// fill publishes n messages of 512 bytes; on a FIFO queue of 100 groups in turn.
func (s *server) fill(ctx context.Context, url string, n int) error {
	p, err := sqs.Publisher(s.outside, url, &sqs.PublisherOptions{GroupBatches: true})
	if err != nil {
		return err
	}
	body := []byte(strings.Repeat("x", 512))
	ms := make([]transport.Message, n)
	for i := range ms {
		ms[i].Body = body
		if strings.HasSuffix(url, ".fifo") {
			ms[i].Key = fmt.Sprint("g", i%100)
		}
	}
	return errors.Join(p.Publish(ctx, ms...), p.Close(ctx))
}

// counted is a trial that reports its API calls.
func (s *server) counted(n int, run func(context.Context) error, finish func(context.Context) error) measure.Trial {
	var before, used tally
	return measure.Trial{
		Messages: n,
		Run: func(ctx context.Context) error {
			before = s.counts.now()
			err := run(ctx)
			used = s.counts.now().since(before)
			return err
		},
		Extra:  func() map[string]float64 { return used.extra(n) },
		Finish: finish,
	}
}

// lanes consumes until the last of n messages is deleted for certain. The drain
// isn't measured: it waits for the receive that is in flight.
func (s *server) lanes(url string, n int, d keylanes.Dispatch) (measure.Trial, error) {
	src, err := sqs.Queue(s.client, url, &sqs.Options{WaitTime: time.Second})
	if err != nil {
		return measure.Trial{}, err
	}
	h, settled := consume.NewCountdown(n), consume.NewCountdown(n)
	src = consume.OnSettled(src, func(*transport.Delivery) { settled.Count() })
	var sub *consume.Subscription
	return s.counted(n, func(ctx context.Context) error {
		sub = consume.Start(src, h, keylanes.Options{Dispatch: d})
		return sub.Until(ctx, settled.Done())
	}, func(context.Context) error {
		return errors.Join(sub.Stop(), h.Exactly())
	}), nil
}

// loop is what one writes on the SDK: receive ten, delete them.
func (s *server) loop(ctx context.Context, url string, n int, attributes []types.MessageSystemAttributeName, remove func(context.Context, string, []types.Message) error) error {
	for done := 0; done < n; {
		ms, err := s.receive(ctx, url, attributes)
		if err != nil {
			return err
		}
		if len(ms) == 0 {
			continue
		}
		if err := remove(ctx, url, ms); err != nil {
			return err
		}
		done += len(ms)
	}
	return nil
}

// attributesOf are those that keylanes asks for: what a consumer by key has to
// know, and a publisher's headers.
func attributesOf(suffix string) []types.MessageSystemAttributeName {
	names := []types.MessageSystemAttributeName{
		types.MessageSystemAttributeNameApproximateReceiveCount, types.MessageSystemAttributeNameSentTimestamp,
		types.MessageSystemAttributeNameMessageGroupId, types.MessageSystemAttributeNameAWSTraceHeader,
	}
	if suffix != "" {
		names = append(names, types.MessageSystemAttributeNameSequenceNumber, types.MessageSystemAttributeNameMessageDeduplicationId)
	}
	return names
}

// receive asks for ten, with these attributes, and all of the publisher's, or
// without any.
func (s *server) receive(ctx context.Context, url string, attributes []types.MessageSystemAttributeName) ([]types.Message, error) {
	in := &awssqs.ReceiveMessageInput{QueueUrl: &url, MaxNumberOfMessages: 10, WaitTimeSeconds: 1}
	if len(attributes) > 0 {
		in.MessageSystemAttributeNames, in.MessageAttributeNames = attributes, []string{"All"}
	}
	out, err := s.client.ReceiveMessage(ctx, in)
	if err != nil {
		return nil, err
	}
	return out.Messages, nil
}

func (s *server) deleteEach(ctx context.Context, url string, ms []types.Message) error {
	for _, m := range ms {
		if _, err := s.client.DeleteMessage(ctx, &awssqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: m.ReceiptHandle}); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) deleteBatch(ctx context.Context, url string, ms []types.Message) error {
	in := &awssqs.DeleteMessageBatchInput{QueueUrl: &url}
	for i, m := range ms {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: m.ReceiptHandle})
	}
	out, err := s.client.DeleteMessageBatch(ctx, in)
	if err == nil && len(out.Failed) > 0 {
		err = fmt.Errorf("%d deletes failed: %s", len(out.Failed), aws.ToString(out.Failed[0].Message))
	}
	return err
}
