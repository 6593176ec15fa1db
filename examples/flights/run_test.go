package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/keylanes/keylanes/transport"
)

// programVariable makes the test binary the program itself: "yes", or "stuck"
// with a consumer that never drains.
const programVariable = "FLIGHTS_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(programVariable) {
	case "yes":
		os.Exit(start(subscribe))
	case "stuck":
		os.Exit(start(func(context.Context, transport.Source, transport.Handler, consumerOptions) error {
			fmt.Fprintln(os.Stderr, "stuck")
			for {
				time.Sleep(time.Hour)
			}
		}))
	}
	goleak.VerifyTestMain(m)
}

// input writes a file of n orders of a few customers.
func input(t *testing.T, n, customers int) string {
	t.Helper()
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `{"customer": "c%d", "order": %d, "distance": "%d", "dep_delay": %d}`+"\n", i%customers, i, i, i%7-3)
	}
	path := filepath.Join(t.TempDir(), "orders.jsonl")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// result is what a run printed.
type result struct {
	status         int
	stdout, stderr string
	report         report
	fields         map[string]any
}

func runWith(ctx context.Context, t *testing.T, consume consumer, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	r := result{status: run(ctx, append(args, "-json"), &stdout, &stderr, consume)}
	r.stdout, r.stderr = stdout.String(), stderr.String()
	lines := strings.Split(strings.TrimSuffix(r.stdout, "\n"), "\n")
	if last := lines[len(lines)-1]; strings.HasPrefix(last, "{") {
		if err := json.Unmarshal([]byte(last), &r.report); err != nil {
			t.Fatalf("the report isn't JSON: %v: %s", err, last)
		}
		if err := json.Unmarshal([]byte(last), &r.fields); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestCorrectConsumerPasses(t *testing.T) {
	t.Parallel()
	path := input(t, 300, 10)
	r := runWith(context.Background(), t, consumeWith(none), "-input", path, "-key", "customer", "-error-rate", "0.2", "-panic-rate", "0.1", "-repeat", "2")
	if r.status != 0 {
		t.Fatalf("status %d: %s%s", r.status, r.stderr, r.stdout)
	}
	got := r.report
	if !got.OK || got.Published != 600 || got.Succeeded+got.DeadLettered != 600 || got.Duplicates != 0 || got.Violations != 0 || !*got.DigestsEqual || !got.AsPlanned {
		t.Errorf("got %s", r.stdout)
	}
	// One of ten customers is poisonous: 60 of its orders, and 5 broken bodies.
	if got.DeadLettered < 60 || got.Failed == 0 || got.Panicked == 0 || got.Retries == 0 || got.Keys != 10 {
		t.Errorf("got %s", r.stdout)
	}
	for _, want := range []string{"every promise kept", "busiest", "all 9 equal a single-threaded pass", "p50", "poisonous, slow"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is missing in:\n%s", want, r.stdout)
		}
	}
}

// Each kind of wrong consumer makes somebody object, and the exit status 1.
func TestWrongConsumersAreCaught(t *testing.T) {
	t.Parallel()
	path := input(t, 300, 10)
	for m, want := range map[mistake]string{
		swap:     "order:",
		drop:     "loss:",
		twice:    "duplicates:",
		bury:     "unseen:",
		hoard:    "credit:",
		keepOne:  "left:",
		giveUp:   "the subscription ended before every message was decided",
		failFast: "no such queue",
	} {
		t.Run(strings.TrimSuffix(want, ":"), func(t *testing.T) {
			t.Parallel()
			args := []string{"-input", path, "-key", "customer", "-slow", "0", "-credit", "20"}
			ctx := context.Background()
			if m == keepOne {
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				defer cancel()
				// It is interrupted while it holds something.
				args = append(args, "-poison", "0")
				next := consumeWith(m)
				r := runWith(ctx, t, func(ctx context.Context, src transport.Source, h transport.Handler, o consumerOptions) error {
					return next(ctx, src, transport.HandlerFunc(func(c context.Context, d *transport.Delivery) error {
						cancel()
						return h.Handle(c, d)
					}), o)
				}, args...)
				if r.status != 1 || !strings.Contains(r.stdout, want) {
					t.Errorf("status %d, want 1 and %q: %s%s", r.status, want, r.stderr, r.stdout)
				}
				return
			}
			r := runWith(ctx, t, consumeWith(m), args...)
			if r.status != 1 || !strings.Contains(r.stdout+r.stderr, want) {
				t.Errorf("status %d, want 1 and %q: %s%s", r.status, want, r.stderr, r.stdout)
			}
			if m == swap && (r.report.DigestsEqual == nil || *r.report.DigestsEqual || !strings.Contains(r.stdout, "digest: key")) {
				t.Errorf("the digests didn't notice: %s", r.stdout)
			}
			if m == bury && r.report.AsPlanned {
				t.Errorf("an unplanned dead letter: %s", r.stdout)
			}
		})
	}
}

func TestCutShort(t *testing.T) {
	t.Parallel()
	path := input(t, 300, 10)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n := 0
	consume := func(c context.Context, src transport.Source, h transport.Handler, o consumerOptions) error {
		return consumeWith(none)(c, src, transport.HandlerFunc(func(c context.Context, d *transport.Delivery) error {
			if n++; n == 100 {
				cancel()
			}
			return h.Handle(c, d)
		}), o)
	}
	r := runWith(ctx, t, consume, "-input", path, "-key", "customer")
	if r.status != 0 || !r.report.CutShort || !r.report.OK || !*r.report.DigestsEqual {
		t.Fatalf("status %d: %s%s", r.status, r.stderr, r.stdout)
	}
	if r.report.LeftInQueue != r.report.Published-r.report.Succeeded-r.report.DeadLettered || r.report.LeftInQueue == 0 {
		t.Errorf("%d left: %s", r.report.LeftInQueue, r.stdout)
	}
	if !strings.Contains(r.stdout, "CUT SHORT") {
		t.Errorf("it isn't said: %s", r.stdout)
	}
}

func TestWorkersKeepNoOrder(t *testing.T) {
	t.Parallel()
	r := runWith(context.Background(), t, consumeWith(swap), "-input", input(t, 200, 10), "-key", "customer", "-slow", "0", "-dispatch", "workers")
	if r.status != 0 || r.report.DigestsEqual != nil || r.fields["digests_equal"] != nil {
		t.Fatalf("status %d: %s%s", r.status, r.stderr, r.stdout)
	}
	if !strings.Contains(r.stdout, "not compared: workers keep no order") || !strings.Contains(r.stdout, "order not judged") {
		t.Errorf("it isn't said: %s", r.stdout)
	}
}

func TestJSONShape(t *testing.T) {
	t.Parallel()
	r := runWith(context.Background(), t, consumeWith(none), "-input", input(t, 50, 5), "-key", "customer", "-slow", "0")
	for name, want := range map[string]any{
		"ok": true, "cut_short": false, "published": 50.0, "duplicates": 0.0, "violations": 0.0, "digests_equal": true,
		"dead_letters_as_planned": true, "keys": 5.0, "keyless": 0.0, "credit": 256.0, "dispatch": "bykey", "lanes": 8.0,
		"transport": "memory", "seed": 1.0, "left_in_queue": 0.0, "purged": 0.0, "objections": nil, "lane_restarts": 0.0,
	} {
		if got, ok := r.fields[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for _, name := range []string{"succeeded", "dead_lettered", "seconds", "per_second", "p50_ms", "p99_ms", "attempts", "failed",
		"panicked", "retries", "dead_letter_reasons", "most_held", "busiest"} {
		if r.fields[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
	if got := len(r.fields); got != 31 {
		t.Errorf("%d fields: document the new ones in main.go, then here", got)
	}
	// The package documentation names them all.
	doc, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	for name := range r.fields {
		if !bytes.Contains(doc, []byte(name)) {
			t.Errorf("main.go doesn't document %s", name)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-dispatch fastest":               "-dispatch fastest: must be one of sequential, workers, bykey, perkey",
		"-lanes 0":                        "-lanes 0: must be 1 to 4096",
		"-credit 0":                       "-credit 0: must be 1 to 100000",
		"-credit 100001":                  "-credit 100001: must be 1 to 100000",
		"-error-rate 1.5":                 "-error-rate 1.5: must be 0 to 1",
		"-error-rate NaN":                 "-error-rate NaN: must be 0 to 1",
		"-panic-rate -0.1":                "-panic-rate -0.1: must be 0 to 1",
		"-error-rate 0.6 -panic-rate 0.6": "must leave room",
		"-poison -1":                      "-poison -1: must be at least 0",
		"-slow -1":                        "-slow -1: must be at least 0",
		"-undecodable -1":                 "-undecodable -1: must be at least 0",
		"-duplicates -1":                  "-duplicates -1: must be at least 0",
		"-repeat 0":                       "-repeat 0: must be 1 to 1000",
		"-seed x":                         "invalid value",
		"-unknown":                        "flag provided but not defined",
		"-key=":                           "must name a field",
		"file.jsonl":                      "unexpected argument",
	} {
		var stdout, stderr bytes.Buffer
		if status := run(context.Background(), strings.Fields(args), &stdout, &stderr, nil); status != 2 {
			t.Errorf("%s: status %d", args, status)
		}
		if !strings.Contains(stderr.String(), want) || stdout.Len() > 0 {
			t.Errorf("%s: want %q on stderr alone, got %q and %q", args, want, stderr.String(), stdout.String())
		}
	}
	var stdout, stderr bytes.Buffer
	if status := run(context.Background(), []string{"-h"}, &stdout, &stderr, nil); status != 0 || !strings.Contains(stderr.String(), "-transport") {
		t.Errorf("-h: status %d, %s", status, stderr.String())
	}
}

func TestBadInputsAndTransports(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	prose := filepath.Join(t.TempDir(), "prose")
	if err := os.WriteFile(prose, []byte("not\nJSON\n[1]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := ln.Addr().String()
	ln.Close()
	orders := input(t, 3, 1)
	for args, want := range map[string]string{
		"-input /does/not/exist": "-input /does/not/exist: no such file",
		"-input " + empty:        "-input " + empty + ": it has no lines",
		"-input " + prose:        "no line is a JSON object",
		"-undecodable 2":         "must be at most 1 with this input: at most half of the 3 messages",
		"-poison 2":              "must be at most 1 with this input: one for each key",
		"-slow 1":                "must be at most 0 with this input",
		"-transport amqp://user:hush@" + closed + "/q": "no broker answers",
		"-transport sqs://user:hush@" + closed + "/q":  "no broker answers",
		"-key tailnum":                                `no line has a value in field "tailnum"`,
		"-transport kafka://x/y":                      "-transport = \"kafka\"",
		"-transport memory://x":                       "memory takes no address",
		"-transport amqp://user:hush@host:5672":       "must name host, port and queue",
		"-transport sqs:///queue":                     "must name host, port and queue",
		"-transport amqp://user:hush%zz@host:5672/q":  "it doesn't parse",
		"-transport amqp://user:hush@host:5672/q?x=1": "?hostname=",
	} {
		var stdout, stderr bytes.Buffer
		flags := append([]string{"-input", orders, "-key", "customer"}, strings.Fields(args)...)
		if status := run(context.Background(), flags, &stdout, &stderr, consumeWith(none)); status != 1 && (status != 2 || strings.HasPrefix(args, "-input")) {
			t.Errorf("%s: status %d", args, status)
		}
		if !strings.Contains(stderr.String(), want) || strings.Contains(stderr.String(), "hush") {
			t.Errorf("%s: want %q and no password: %s", args, want, stderr.String())
		}
	}
}

func TestGzippedInput(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(input(t, 40, 4))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "orders.gz")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	r := runWith(context.Background(), t, consumeWith(none), "-input", path, "-key", "customer", "-slow", "0")
	if r.status != 0 || r.report.Published != 40 {
		t.Errorf("status %d: %s%s", r.status, r.stderr, r.stdout)
	}
}

// The count of what is left of a subscription sees its goroutines, and nobody
// else's.
func TestLeftGoroutines(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	began := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runWith(context.Background(), t, func(ctx context.Context, src transport.Source, h transport.Handler, o consumerOptions) error {
			return subscribe(ctx, src, transport.HandlerFunc(func(ctx context.Context, d *transport.Delivery) error {
				select {
				case began <- o.state.run:
				default:
				}
				<-release
				return h.Handle(ctx, d)
			}), o)
		}, "-input", input(t, 20, 2), "-key", "customer", "-slow", "0", "-poison", "0")
	}()
	run := <-began
	if n := (&state{run: run}).leftGoroutines(); n == 0 {
		t.Error("a subscription that runs has none")
	}
	if n := (&state{run: run + "x"}).leftGoroutines(); n != 0 {
		t.Errorf("a run that isn't has %d", n)
	}
	close(release)
	<-ended
	if n := (&state{run: run}).leftGoroutines(); n != 0 {
		t.Errorf("%d are left after the end", n)
	}
}

// A message of another run stops this one, or is consumed on request.
func TestForeignMessages(t *testing.T) {
	t.Parallel()
	path := input(t, 40, 4)
	stranger := func(next consumer) consumer {
		return func(ctx context.Context, src transport.Source, h transport.Handler, o consumerOptions) error {
			var slab transport.Slab
			d := slab.New(transport.NewLease(), nil)
			d.ID = "old-0000001"
			if err := transport.Chain(h, o.middleware...).Handle(ctx, d); err != nil {
				return err
			}
			return next(ctx, src, h, o)
		}
	}
	args := []string{"-input", path, "-key", "customer", "-slow", "0"}
	if r := runWith(context.Background(), t, stranger(consumeWith(none)), args...); r.status != 1 || !strings.Contains(r.stderr, "-purge") {
		t.Errorf("status %d: %s%s", r.status, r.stderr, r.stdout)
	}
	r := runWith(context.Background(), t, stranger(consumeWith(none)), append(args, "-purge")...)
	if r.status != 0 || r.report.Purged != 1 || r.report.Published != 40 || !strings.Contains(r.stdout, "purged") {
		t.Errorf("status %d: %s%s", r.status, r.stderr, r.stdout)
	}
}
