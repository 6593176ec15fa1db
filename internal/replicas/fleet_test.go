//go:build unix

package replicas

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/transport"
)

const (
	fleetCredit = 64
	// patience bounds each wait of a scenario; on a quiet machine the longest
	// takes about 6 s.
	patience = 40 * time.Second
)

// fleet is one queue, its publisher and the processes on it. The methods belong
// to the test's goroutine.
type fleet struct {
	t         *testing.T
	name      string // of the broker
	broker    broker
	url       string
	queue     string
	dir       string
	publisher transport.Publisher
	depth     func(context.Context) (int64, error)
	log       *oracle.Log // of what was published
	logs      []string    // paths of all logs
	replicas  []*replica  // the living

	mu      sync.Mutex // guards what follows, and the replicas' counts
	sent    int        // messages that were given to the publisher
	handled map[string]bool
	changed chan struct{} // closed and replaced at each change
}

// replica is one consumer process.
type replica struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr bytes.Buffer  // to be read after ended
	ended  chan struct{} // closed when it is gone and err is set
	err    error

	opens int // receivers that it has opened
	count int // messages that it has handled
}

func newFleet(t *testing.T, name string, n int) *fleet {
	t.Helper()
	b := brokers[name]
	f := &fleet{t: t, name: name, broker: b, url: b.brokerURL(t), dir: t.TempDir(), handled: map[string]bool{}, changed: make(chan struct{})}
	f.queue = "app-replicas-" + rand.Text()[:10] + b.suffix
	p, depth := b.open(t, f.url, f.queue)
	path := filepath.Join(f.dir, "parent.log")
	log, err := oracle.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	f.log, f.logs, f.depth, f.publisher = log, []string{path}, depth, log.Publisher(p)
	t.Cleanup(func() { // whatever is left when a test fails
		for _, r := range f.replicas {
			_ = r.cmd.Process.Kill()
			<-r.ended
		}
		_ = log.Close()
	})
	for range n {
		f.start()
	}
	return f
}

// start starts one more process and waits until it is attached.
func (f *fleet) start() *replica {
	f.t.Helper()
	path := filepath.Join(f.dir, fmt.Sprintf("replica%d.log", len(f.logs)))
	config, err := json.Marshal(replicaConfig{Broker: f.name, URL: f.url, Queue: f.queue, Log: path, Credit: fleetCredit})
	if err != nil {
		f.t.Fatal(err)
	}
	r := &replica{cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	r.cmd.Env = append(os.Environ(), replicaEnv+"="+string(config))
	r.cmd.Stderr = &r.stderr
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		f.t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.logs = append(f.logs, path)
	f.replicas = append(f.replicas, r)
	go f.listen(r, out)
	f.await("a new process is attached", func() bool { return r.opens > 0 })
	return r
}

// listen counts what the process says, until it is gone.
func (f *fleet) listen(r *replica, out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		f.mu.Lock()
		if lines.Text() == openedLine {
			r.opens++
		} else {
			r.count++
			f.handled[lines.Text()] = true
		}
		f.wakeLocked()
		f.mu.Unlock()
	}
	r.err = r.cmd.Wait()
	_ = r.stdin.Close()
	close(r.ended)
	f.mu.Lock()
	f.wakeLocked()
	f.mu.Unlock()
}

func (f *fleet) wakeLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// await waits until done, which is called with f.mu held, says so.
func (f *fleet) await(what string, done func() bool) {
	f.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		f.mu.Lock()
		ok, changed, n := done(), f.changed, len(f.handled)
		f.mu.Unlock()
		if ok {
			return
		}
		for _, r := range f.replicas {
			select {
			case <-r.ended:
				f.t.Fatalf("while waiting until %s: a process ended: %v\n%s", what, r.err, &r.stderr)
			default:
			}
		}
		select {
		case <-changed:
		case <-late.C:
			f.t.Fatalf("%v is not enough until %s; %d messages were handled", patience, what, n)
		}
	}
}

// everybodyWorks counts anew, and publishes messages of new keys, a few at a
// time, until each living process has got some of them. A broker deals groups to
// the consumers that have credit, and a process that says it is attached may
// give its credit a moment later.
func (f *fleet) everybodyWorks(ctx context.Context) {
	f.t.Helper()
	f.mu.Lock()
	for _, r := range f.replicas {
		r.count = 0
	}
	f.mu.Unlock()
	for late := time.Now().Add(patience); ; {
		f.published(f.publish(ctx, keys(rand.Text(), 12), 12))
		f.await("a few messages are handled", f.allDone)
		f.mu.Lock()
		all := f.allHandled(1)
		f.mu.Unlock()
		if all {
			return
		}
		if time.Now().After(late) {
			f.t.Fatalf("%v is not enough until every process gets something: %v", patience, f.shares())
		}
	}
}

// shares is how much each living process has handled.
func (f *fleet) shares() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := make([]int, len(f.replicas))
	for i, r := range f.replicas {
		counts[i] = r.count
	}
	return counts
}

// publish publishes in the background: each key's messages in order, never more
// than backlog ahead of what is handled. Its error comes out of the channel.
func (f *fleet) publish(ctx context.Context, keys []string, n int) <-chan error {
	const batch, backlog = 50, 600
	failed := make(chan error, 1)
	f.mu.Lock()
	last := f.sent + n
	f.mu.Unlock()
	go func() {
		for {
			f.mu.Lock()
			left, behind, changed := last-f.sent, f.sent-len(f.handled), f.changed
			if left > 0 && behind <= backlog-batch {
				f.sent += min(batch, left)
			}
			f.mu.Unlock()
			if left == 0 {
				failed <- nil
				return
			}
			if behind > backlog-batch {
				select {
				case <-changed:
					continue
				case <-ctx.Done():
					failed <- context.Cause(ctx)
					return
				}
			}
			ms := make([]transport.Message, min(batch, left))
			for i := range ms {
				ms[i] = transport.Message{ID: rand.Text(), Key: keys[(last-left+i)%len(keys)], Body: []byte("work")}
			}
			if err := f.publisher.Publish(ctx, ms...); err != nil {
				failed <- err
				return
			}
		}
	}()
	return failed
}

// remove takes r out of the living and waits for its end.
func (f *fleet) remove(r *replica) error {
	f.t.Helper()
	for i, o := range f.replicas {
		if o == r {
			f.replicas = append(f.replicas[:i:i], f.replicas[i+1:]...)
		}
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-r.ended:
		return r.err
	case <-late.C:
		_ = r.cmd.Process.Kill()
		<-r.ended
		f.t.Fatalf("a process didn't end within %v\n%s", patience, &r.stderr)
		return nil
	}
}

func (f *fleet) signal(r *replica, s syscall.Signal) {
	f.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		f.t.Fatal(err)
	}
}

// terminate ends r in good order.
func (f *fleet) terminate(r *replica) {
	f.t.Helper()
	f.signal(r, syscall.SIGTERM)
	if err := f.remove(r); err != nil {
		f.t.Errorf("a process didn't drain: %v\n%s", err, &r.stderr)
	}
}

// finish ends all processes, and judges.
func (f *fleet) finish(rules oracle.Rules) {
	f.t.Helper()
	for len(f.replicas) > 0 {
		f.terminate(f.replicas[0])
	}
	f.empty()
	if err := f.log.Close(); err != nil {
		f.t.Fatal(err)
	}
	all, err := oracle.Load(f.logs...)
	if err != nil {
		f.t.Fatal(err)
	}
	v := all.Check(rules)
	f.t.Logf("%s", strings.ReplaceAll(v.String(), "\n", "; "))
	if err := v.Err(); err != nil {
		f.t.Error(err)
	}
}

// empty fails unless nothing is on the queue any more. Brokers count a little
// late.
func (f *fleet) empty() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := f.depth(ctx)
		if err == nil && n == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.t.Fatalf("the queue still has %d messages (%v)", n, err)
		}
	}
}
