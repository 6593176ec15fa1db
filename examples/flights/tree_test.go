package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
)

// days writes the first n flights to a file.
func days(t *testing.T, n int) string {
	t.Helper()
	events, err := builtIn()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, e := range events[:n] {
		b.Write(e.body)
		b.WriteByte('\n')
	}
	path := filepath.Join(t.TempDir(), "flights.jsonl")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The main job in memory: the whole month by key, and its first days in every
// other mode.
func TestFlights(t *testing.T) {
	t.Parallel()
	for _, mode := range dispatches {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			args, want := []string{"-dispatch", mode}, 27004
			if mode != "bykey" {
				want = 6000
				args = append(args, "-input", days(t, want))
			}
			r := runWith(context.Background(), t, subscribe, args...)
			if r.status != 0 {
				t.Fatalf("status %d: %s%s", r.status, r.stderr, r.stdout)
			}
			got := r.report
			if got.Published != want || got.Succeeded+got.DeadLettered != want || got.Violations != 0 || got.Duplicates != 0 || got.LeftInQueue != 0 {
				t.Errorf("got %s", r.stdout)
			}
			if (got.DigestsEqual == nil) != (mode == "workers") || got.Keyless == 0 {
				t.Errorf("got %s", r.stdout)
			}
			// 5 broken bodies, and 8 to 14 flights of the poisonous aircraft.
			if got.Reasons["undecodable"] != 5 || got.Reasons["attempts exhausted"] < 8 || len(got.Reasons) != 2 {
				t.Errorf("dead letters: %v", got.Reasons)
			}
			if got.LaneRestarts != got.Panicked || got.Panicked == 0 || got.Failed < want/60 {
				t.Errorf("%d panicked, %d lane restarts, %d failed", got.Panicked, got.LaneRestarts, got.Failed)
			}
		})
	}
}

// The same seed gives the same dead letters, whatever the timing.
func TestSeedDecides(t *testing.T) {
	t.Parallel()
	path := input(t, 600, 30)
	args := []string{"-input", path, "-key", "customer", "-error-rate", "0.3", "-panic-rate", "0.15", "-slow", "0", "-poison", "0"}
	var dead []int
	for _, lanes := range []string{"1", "8"} {
		r := runWith(context.Background(), t, subscribe, append(args, "-lanes", lanes)...)
		if r.status != 0 || !r.report.AsPlanned {
			t.Fatalf("status %d: %s%s", r.status, r.stderr, r.stdout)
		}
		dead = append(dead, r.report.DeadLettered)
	}
	// 5 broken, and about 0.45^5 of the rest.
	if dead[0] != dead[1] || dead[0] < 8 {
		t.Errorf("dead letters: %v", dead)
	}
}

func TestSmallestCredit(t *testing.T) {
	t.Parallel()
	r := runWith(context.Background(), t, subscribe, "-input", input(t, 100, 7), "-key", "customer", "-credit", "1", "-slow", "0")
	if r.status != 0 || r.report.MostHeld != 1 {
		t.Errorf("status %d, %d held: %s%s", r.status, r.report.MostHeld, r.stderr, r.stdout)
	}
}

// The first signal drains; what is left is in the queue, and nothing objects.
func TestDrainWhenInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	consume := func(c context.Context, src transport.Source, h transport.Handler, o consumerOptions) error {
		return subscribe(c, src, transport.HandlerFunc(func(c context.Context, d *transport.Delivery) error {
			if o.state.decided.Load() > 3000 {
				cancel()
			}
			return h.Handle(c, d)
		}), o)
	}
	r := runWith(ctx, t, consume)
	if r.status != 0 || !r.report.CutShort || !*r.report.DigestsEqual {
		t.Fatalf("status %d: %s%s", r.status, r.stderr, r.stdout)
	}
	if left := r.report.Published - r.report.Succeeded - r.report.DeadLettered; left <= 0 || left != r.report.LeftInQueue {
		t.Errorf("%d undecided, %d in the queue", left, r.report.LeftInQueue)
	}
}

// program is the program as a process of its own.
type program struct {
	*exec.Cmd
	stdout bytes.Buffer
	stderr *bufio.Reader
}

// startProgram returns when the program has written text to standard error.
func startProgram(t *testing.T, how, text string, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.Command(os.Args[0], args...)}
	p.Env = append(os.Environ(), programVariable+"="+how)
	p.Stdout = &p.stdout
	stderr, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.stderr = bufio.NewReader(stderr)
	for {
		line, err := p.stderr.ReadString('\n')
		if err != nil {
			t.Fatalf("it ended before it wrote %q: %v", text, err)
		}
		if strings.Contains(line, text) {
			return p
		}
	}
}

// A real process, a real signal: it drains, and reports.
func TestSignalDrains(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			// Enough that it can't be through when the signal comes.
			p := startProgram(t, "yes", "attached", "-json", "-v", "-input", input(t, 1000, 100), "-key", "customer", "-repeat", "50")
			if err := p.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(p.stderr)
			if err != nil {
				t.Error(err)
			}
			if err := p.Wait(); err != nil {
				t.Fatalf("%v: %s%s", err, rest, p.stdout.String())
			}
			out := strings.Split(strings.TrimSpace(p.stdout.String()), "\n")
			var r report
			if err := json.Unmarshal([]byte(out[len(out)-1]), &r); err != nil || !r.CutShort || !r.OK {
				t.Errorf("%v: %s", err, p.stdout.String())
			}
		})
	}
}

// A drain that doesn't end is aborted by another signal. The program may take a
// moment to give the signals back to the system, so it is told until it ends.
func TestSecondSignalAborts(t *testing.T) {
	t.Parallel()
	p := startProgram(t, "stuck", "stuck", "-input", input(t, 10, 2), "-key", "customer")
	ended := make(chan error, 1)
	go func() {
		_, _ = io.Copy(io.Discard, p.stderr)
		ended <- p.Wait()
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for signals := 0; ; {
		select {
		case err := <-ended:
			status, ok := p.ProcessState.Sys().(syscall.WaitStatus)
			if !ok || !status.Signaled() || status.Signal() != syscall.SIGINT || signals < 2 {
				t.Errorf("after %d signals: %v", signals, err)
			}
			return
		case <-tick.C:
			if p.Process.Signal(os.Interrupt) == nil {
				signals++
			}
		}
	}
}

// The main job on real brokers, with the same judges: the first days, since the
// race detector and the brokers share the machine.
func TestFlightsOnBrokers(t *testing.T) {
	t.Parallel()
	for _, b := range brokers {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			const want = 2000
			r := runWith(context.Background(), t, subscribe, "-transport", address(t, b.variable, b.queue), "-input", days(t, want))
			if r.status != 0 || r.report.Published != want || r.report.LeftInQueue != 0 || (r.report.DigestsEqual != nil) != b.ordered {
				t.Fatalf("status %d: %s%s", r.status, r.stderr, r.stdout)
			}
		})
	}
}
