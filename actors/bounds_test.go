package actors_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// Every option at and beyond its bounds. What is refused is refused before
// anything starts, with the field, the value and the way out.
func TestOptionBounds(t *testing.T) {
	t.Parallel()
	forever := supervision.RetryForever(supervision.Backoff{})
	span := func(f func(o *actors.Options) *time.Duration, d time.Duration) func(*actors.Options) {
		return func(o *actors.Options) { *f(o) = d }
	}
	handler := func(o *actors.Options) *time.Duration { return &o.HandlerTimeout }
	stop := func(o *actors.Options) *time.Duration { return &o.StopTimeout }
	stuck := func(o *actors.Options) *time.Duration { return &o.StuckAfter }
	blocked := func(o *actors.Options) *time.Duration { return &o.BlockedFor }
	outage := func(o *actors.Options) *time.Duration { return &o.OutageAfter }
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		set   func(o *actors.Options)
		field string // "" when it is fine
		value string
		want  string
	}{
		"zero":                 {func(*actors.Options) {}, "", "", ""},
		"credit 1":             {func(o *actors.Options) { o.Credit = 1 }, "", "", ""},
		"credit most":          {func(o *actors.Options) { o.Credit = 100_000 }, "", "", ""},
		"credit too many":      {func(o *actors.Options) { o.Credit = 100_001 }, "Options.Credit", "100001", "1 to 100000"},
		"credit negative":      {func(o *actors.Options) { o.Credit = -1 }, "Options.Credit", "-1", "1 to 100000"},
		"sequential":           {func(o *actors.Options) { o.Dispatch = actors.Sequential() }, "", "", ""},
		"bykey 1":              {func(o *actors.Options) { o.Dispatch = actors.ByKey(1) }, "", "", ""},
		"bykey most":           {func(o *actors.Options) { o.Dispatch = actors.ByKey(4096) }, "", "", ""},
		"bykey without n":      {func(o *actors.Options) { o.Dispatch = actors.ByKey(0) }, "Options.Dispatch", "bykey(0)", "1 to 4096"},
		"bykey too many":       {func(o *actors.Options) { o.Dispatch = actors.ByKey(4097) }, "Options.Dispatch", "bykey(4097)", "1 to 4096"},
		"perkey negative":      {func(o *actors.Options) { o.Dispatch = actors.PerKey(-1) }, "Options.Dispatch", "perkey(-1)", "1 to 4096"},
		"workers without n":    {func(o *actors.Options) { o.Dispatch = actors.Workers(0) }, "Options.Dispatch", "workers(0)", "1 to 4096"},
		"handler least":        {span(handler, time.Millisecond), "", "", ""},
		"handler most":         {span(handler, day), "", "", ""},
		"handler too short":    {span(handler, time.Millisecond-1), "Options.HandlerTimeout", "999.999µs", "1ms to 24h"},
		"handler too long":     {span(handler, day+1), "Options.HandlerTimeout", "24h0m0.000000001s", "1ms to 24h"},
		"stop negative":        {span(stop, -1), "Options.StopTimeout", "-1ns", "1ms to 24h"},
		"stop too long":        {span(stop, day+1), "Options.StopTimeout", "24h", "1ms to 24h"},
		"stuck too short":      {span(stuck, 1), "Options.StuckAfter", "1ns", "1ms to 24h"},
		"blocked too short":    {span(blocked, 1), "Options.BlockedFor", "1ns", "1ms to 24h"},
		"outage off":           {span(outage, -1), "", "", ""},
		"outage most":          {span(outage, day), "", "", ""},
		"outage too long":      {span(outage, day+1), "Options.OutageAfter", "24h", "negative to turn the wait off"},
		"no target":            {func(o *actors.Options) { o.Policy = nil }, "Options.DeadLetter", "nil", "RetryForever"},
		"native, none there":   {func(o *actors.Options) { o.NativeDeadLetter = true }, "Options.NativeDeadLetter", "true", "set Options.DeadLetter"},
		"key function":         {func(o *actors.Options) { o.Key = func(*transport.Message) string { return "" } }, "Options.Key", "a function", "groups are exclusive"},
		"idle too short":       {span(func(o *actors.Options) *time.Duration { return &o.IdleAfter }, 1), "Options.IdleAfter", "1ns", "1ms to 24h"},
		"lanes below credit":   {func(o *actors.Options) { o.MaxLanes, o.Credit = 99, 100 }, "Options.MaxLanes", "99", "at least Options.Credit"},
		"lanes negative":       {func(o *actors.Options) { o.MaxLanes = -1 }, "Options.MaxLanes", "-1", "at least Options.Credit"},
		"lanes most":           {func(o *actors.Options) { o.MaxLanes = 10_000_000 }, "", "", ""},
		"lanes too many":       {func(o *actors.Options) { o.MaxLanes = 10_000_001 }, "Options.MaxLanes", "10000001", "at most 10000000"},
		"nil observer func":    {func(o *actors.Options) { o.Observer = actors.ObserverFunc(nil) }, "Options.Observer", "nil", "or nil for none"},
		"workers most":         {func(o *actors.Options) { o.Dispatch = actors.Workers(4096) }, "", "", ""},
		"workers too many":     {func(o *actors.Options) { o.Dispatch = actors.Workers(4097) }, "Options.Dispatch", "workers(4097)", "1 to 4096"},
		"perkey most":          {func(o *actors.Options) { o.Dispatch = actors.PerKey(4096) }, "", "", ""},
		"perkey too many":      {func(o *actors.Options) { o.Dispatch = actors.PerKey(4097) }, "Options.Dispatch", "perkey(4097)", "1 to 4096"},
		"stop least":           {span(stop, time.Millisecond), "", "", ""},
		"stop most":            {span(stop, day), "", "", ""},
		"stuck least":          {span(stuck, time.Millisecond), "", "", ""},
		"stuck most":           {span(stuck, day), "", "", ""},
		"stuck too long":       {span(stuck, day+1), "Options.StuckAfter", "24h", "1ms to 24h"},
		"blocked least":        {span(blocked, time.Millisecond), "", "", ""},
		"blocked most":         {span(blocked, day), "", "", ""},
		"blocked too long":     {span(blocked, day+1), "Options.BlockedFor", "24h", "1ms to 24h"},
		"idle least":           {span(func(o *actors.Options) *time.Duration { return &o.IdleAfter }, time.Millisecond), "", "", ""},
		"idle most":            {span(func(o *actors.Options) *time.Duration { return &o.IdleAfter }, day), "", "", ""},
		"idle too long":        {span(func(o *actors.Options) *time.Duration { return &o.IdleAfter }, day+1), "Options.IdleAfter", "24h", "1ms to 24h"},
		"lanes as credit":      {func(o *actors.Options) { o.MaxLanes, o.Credit = 100, 100 }, "", "", ""},
		"lanes for all credit": {func(o *actors.Options) { o.Credit = 100_000 }, "", "", ""},
		"batch with a handler": {func(o *actors.Options) { o.Batch = 1 }, "Options.Batch", "1", "BatchSubscription"},
		"wait with a handler":  {span(func(o *actors.Options) *time.Duration { return &o.BatchWait }, time.Second), "Options.BatchWait", "1s", "BatchSubscription"},
		"middleware panics": {func(o *actors.Options) {
			o.Middleware = []transport.Middleware{func(transport.Handler) transport.Handler { panic("wrapping") }}
		}, "Options.Middleware", "wrapping", "must not panic"},
		"middleware gives nothing": {func(o *actors.Options) {
			o.Middleware = []transport.Middleware{func(transport.Handler) transport.Handler { return nil }}
		}, "Options.Middleware", "nil", "must give a handler"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, err := memory.New(nil).Queue("q.fifo", &memory.QueueOptions{FIFO: true, Lease: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			o := actors.Options{Policy: forever, Logger: quiet()}
			c.set(&o)
			_, err = actors.Subscription(q.Source(), transport.HandlerFunc(func(context.Context, *transport.Delivery) error { return nil }), &o)
			wantOptionError(t, err, c.field, c.value, c.want)
		})
	}
	t.Run("nil handler", func(t *testing.T) {
		t.Parallel()
		_, err := actors.Subscription(nil, nil, nil)
		wantOptionError(t, err, "handler", "nil", "transport.Handler")
	})
	t.Run("nil handler function", func(t *testing.T) {
		t.Parallel()
		_, err := actors.Subscription(nil, transport.HandlerFunc(nil), nil)
		wantOptionError(t, err, "handler", "nil", "transport.Handler")
		_, err = actors.BatchSubscription(nil, transport.BatchHandlerFunc(nil), nil)
		wantOptionError(t, err, "handler", "nil", "BatchHandler")
	})
	t.Run("nil factory", func(t *testing.T) {
		t.Parallel()
		_, err := actors.PerLane(nil, nil, nil)
		wantOptionError(t, err, "factory", "nil", "makes a handler")
	})
	t.Run("nil props", func(t *testing.T) {
		t.Parallel()
		_, err := actors.LaneActor(nil, nil, nil)
		wantOptionError(t, err, "props", "nil", "props of the actor")
	})
	t.Run("nil source", func(t *testing.T) {
		t.Parallel()
		_, err := actors.Subscription(nil, transport.HandlerFunc(func(context.Context, *transport.Delivery) error { return nil }), nil)
		wantOptionError(t, err, "source", "nil", "transport's source")
	})
}

func wantOptionError(t *testing.T, err error, field, value, want string) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	var oe *transport.OptionError
	if !errors.As(err, &oe) {
		t.Fatalf("error %v, want an *OptionError of %s", err, field)
	}
	if oe.Field != field || !strings.Contains(oe.Error(), value) || !strings.Contains(oe.Want, want) {
		t.Errorf("error %q, want field %s, value %s and %q", oe, field, value, want)
	}
}
