package transporttest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// probe is a testing.TB that notes failures instead of failing.
type probe struct {
	testing.TB
	ctx context.Context

	mu       sync.Mutex
	failures []string
	skipped  string
	cleanups []func()
}

func (p *probe) note(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = append(p.failures, s)
}

func (p *probe) Helper()                      {}
func (p *probe) Context() context.Context     { return p.ctx }
func (p *probe) Error(args ...any)            { p.note(fmt.Sprint(args...)) }
func (p *probe) Errorf(f string, args ...any) { p.note(fmt.Sprintf(f, args...)) }
func (p *probe) FailNow()                     { p.note("FailNow"); runtime.Goexit() }
func (p *probe) Fatal(args ...any)            { p.note(fmt.Sprint(args...)); runtime.Goexit() }
func (p *probe) Fatalf(f string, args ...any) { p.note(fmt.Sprintf(f, args...)); runtime.Goexit() }
func (p *probe) Skip(args ...any)             { p.skipped = fmt.Sprint(args...); runtime.Goexit() }
func (p *probe) Cleanup(f func())             { p.cleanups = append(p.cleanups, f) }
func (p *probe) Failed() bool                 { p.mu.Lock(); defer p.mu.Unlock(); return len(p.failures) > 0 }

// try runs a scenario on a goroutine of its own, which it may end, and gives its
// failures.
func try(t *testing.T, h Harness, name string) (failures []string, skipped string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &probe{TB: t, ctx: ctx}
	s := find(t, name)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		runScenario(p, h.WithDefaults(), s, func(why string) { p.Skip(why) })
	}()
	<-finished
	cancel()
	for _, f := range slices.Backward(p.cleanups) {
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			f()
		}()
		<-finished
	}
	return p.failures, p.skipped
}

// find gives the scenario called topic/name.
func find(t *testing.T, name string) scenario {
	t.Helper()
	for _, tp := range topics {
		for _, s := range tp.scenarios {
			if tp.name+"/"+s.name == name {
				return s
			}
		}
	}
	t.Fatalf("no scenario %q", name)
	return scenario{}
}
