package plansim

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutant is the planner with one rule broken: in file, old is replaced by new.
// Promise is the one that breaks; all others are ignored meanwhile, so that each
// invariant shows that it would notice alone.
type mutant struct {
	rule, promise, file, old, new string
}

// Each rule of the planner has a mutant at least.
var mutants = []mutant{
	{"a retry goes first in its key", "order", "planner.go",
		"	case Parked:\n		it.state = Queued\n		p.unhold(it)\n		p.queueFront(it)",
		"	case Parked:\n		it.state = Queued\n		p.unhold(it)\n		p.queueBack(it)"},
	{"what is taken back keeps its order", "order", "dispatch.go",
		"for i := r.top - 1; i >= n; i-- {", "for i := n; i < r.top; i++ {"},
	{"a failure voids the lane's later runs", "generation", "planner.go",
		"	l.gen++\n	for i := l.out - 1", "	for i := l.out - 1"},
	{"a failed delivery bars its key", "order", "item.go",
		"return k.holder != nil || k.fences > 0 || k.pinned", "return k.fences > 0 || k.pinned"},
	{"a lost lease's handler fences its key", "overlap", "item.go",
		"return k.holder != nil || k.fences > 0 || k.pinned", "return k.holder != nil || k.pinned"},
	{"a key stays parked by choice", "parked", "item.go",
		"return k.holder != nil || k.fences > 0 || k.pinned", "return k.holder != nil || k.fences > 0"},
	{"a stuck handler fences its key", "overlap", "abandon.go",
		"		p.fence(it)\n		it.state = Stuck", "		it.state = Stuck"},
	{"a keyless copy waits for its lost predecessor", "overlap", "planner.go",
		"if it.k == nil && len(p.copies) > 0 &&", "if false &&"},
	{"a keyless copy waits for one that runs while its lease ends", "overlap", "loss.go",
		"			it.ending = true\n			if it.state == Lent {\n				p.fence(it)\n			}", "			it.ending = true"},
	{"a keyless copy waits for one that was lent while its lease ends", "overlap", "dispatch.go",
		"	} else if it.ending {\n", "	} else if false {\n"},
	{"a key that is parked, deciding or lent isn't idle", "idle", "item.go",
		"return k.n == 0 && k.lent == 0 && k.void == 0 && !k.barred()", "return k.n == 0 && k.lent == 0 && k.void == 0"},
	{"void successors wait for the handler of the lost head", "void", "loss.go",
		"	if k.fences > 0 {\n		return\n	}\n	for it := p.newest", "	for it := p.newest"},
	{"a lost lease voids its group", "order", "loss.go",
		"if k == nil || !p.cfg.Traits.GroupsExclusive || k.n == 0 {", "if true {"},
	{"successors go back before an abandoned head, the last one first", "reverse", "abandon.go",
		"for i := len(successors) - 1; i >= 0; i-- {", "for i := range successors {"},
	{"no abandon near the broker's own limit", "receives", "abandon.go",
		"if s.D.Count+1 >= limit-1 {", "if false {"},
	{"a dead-letter for exhausted attempts needs evidence", "evidence", "planner.go",
		"p.successes == it.mark &&", "false &&"},
	{"a confirmed copy whose accept was lost isn't copied again", "second copy", "memory.go",
		"return ok && c.copied", "return ok && c.copied && false"},
	{"a failed copy is tried again, never accepted", "accept", "planner.go",
		"	case ok:\n		p.emit(Effect{Kind: Settle, Item: it, Outcome: transport.Outcome{Kind: transport.Accept}})",
		"	case ok || tries > 1:\n		p.emit(Effect{Kind: Settle, Item: it, Outcome: transport.Outcome{Kind: transport.Accept}})"},
	{"attempts are remembered across epochs", "attempts", "memory.go",
		"if it.Attempt <= 1 || m.wasCopied(it) {", "if true {"},
	{"a lapsed lease is no failure", "ask", "planner.go",
		"case v == VerdictLapsed || v == VerdictRefused:", "case v == VerdictRefused:"},
	{"a drain ends when nothing runs", "rest", "abandon.go",
		"	if p.out > 0 || p.copyingN > 0 {\n		return\n	}", "	if p.out > 1 {\n		return\n	}"},
	{"a pause starts nothing", "gate", "planner.go",
		"	case p.gate == 0:\n		p.dispatch()", "	case p.gate&^gatePause == 0:\n		p.dispatch()"},
	{"nothing starts while the policy is asked", "generation", "planner.go",
		"	case p.asking > 0:\n", "	case p.asking > 99:\n"},
	{"epoch resets keep a distance", "reset", "abandon.go",
		"if p.gate&gateReset == 0 && p.now < p.nextReset {", "if false {"},
	{"epoch resets become rarer", "reset", "abandon.go",
		"min(2*p.resetGap, resetGapMax)", "p.resetGap"},
	{"the first timer is known", "timers", "outage.go",
		"	p.timers.rebuild()\n", ""},
	{"an epoch reset waits for handlers, but not for ever", "reset", "planner.go",
		"		p.emit(Effect{Kind: CancelAll})\n", ""},
	{"a lost lease is clawed back", "lost", "loss.go",
		"		p.clawLane(it.run.Lane)\n", ""},
	{"a handler that is at it is not the planner's", "claim", "dispatch.go",
		"	c := r.Claw()\n", "	c := max(r.Claw()-1, 0)\n"},
	{"a key has its lane", "lane", "planner.go",
		"k.lane = LaneOf(it.Key, p.cfg.Lanes)", "k.lane = 0"},
	{"a key that was freed wakes its lane", "work", "queues.go",
		"			p.markDirty(k.lane)\n", ""},
	{"an idle lane steals", "steal", "dispatch.go",
		"	p.clawLane(victim)\n", ""},
	{"an idle lane looks again", "work", "dispatch.go",
		"p.stealAt = p.now + stealEvery", "p.stealAt = 0"},
	{"an outage probes", "probe", "outage.go",
		"		if p.now < l.probeAt {\n			return false\n		}\n", ""},
	{"what is fresh doesn't wait for a probe", "fresh", "outage.go",
		"	if !fresh {\n", "	if fresh = false; !fresh {\n"},
	{"what failed in an earlier epoch isn't fresh", "probe", "outage.go",
		"	p.sortOut()\n", ""},
	{"a lost delivery's timer is dead", "counts", "loss.go",
		"			p.unwait(it)\n", "			p.parkedN--\n"},
	{"a drain leaves the timers be", "gate", "planner.go",
		"	if p.gate&(gateDrain|gateHalt) != 0 {\n		return\n	}\n	for it := p.timers.peek()", "	for it := p.timers.peek()"},
	{"a retry waits", "backoff", "planner.go",
		"p.wait(it, Parked, p.now+max(int64(after), minRetry))", "p.wait(it, Parked, p.now+minRetry)"},
	{"what was in a failed batch runs alone", "alone", "batch.go",
		"it.alone = it.alone || r.Results[i] == VerdictSplit", "it.alone = false"},
	{"a batch that isn't full waits", "batch", "batch.go",
		"out == 0 && (p.starved || p.now >= p.batchDue(own))", "out == 0"},
	{"a batch doesn't wait for longer", "work", "planner.go",
		"if due := p.batchesDue(); due != 0", "if due := int64(0); due != 0"},
	{"an element behind a lost one of its batch is void", "", "batch.go",
		"		case void:\n", "		case void && false:\n"},
	{"what bars a key is counted", "counts", "queues.go",
		"	if k.barred() {\n		p.barredN++\n	}", ""},
}

const huntFor = 100_000 // schedules

// TestMutants shows that the simulation notices when a rule of the planner is
// broken: each mutant is built with an overlay, and has to be caught.
func TestMutants(t *testing.T) {
	if raceEnabled {
		t.Skip("the mutants are caught without the race detector: it would only make them slower")
	}
	t.Parallel()
	dir, err := filepath.Abs("../plan")
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range mutants {
		t.Run(m.rule, func(t *testing.T) {
			t.Parallel()
			bin := m.build(t, dir)
			cmd := exec.Command(bin, "-test.run", "^TestHunt$", "-test.v", "-test.timeout", "2m")
			cmd.Env = append(os.Environ(), fmt.Sprintf("KEYLANES_SIM_HUNT=%d", huntFor), fmt.Sprintf("KEYLANES_SIM_SEED=%d", 1000*i+1), "KEYLANES_SIM_PROMISE="+m.promise)
			out, err := cmd.CombinedOutput()
			_, found, ok := strings.Cut(string(out), "caught: ")
			if err != nil || !ok {
				t.Fatalf("nobody noticed in %d schedules: %v\n%s", huntFor, err, out)
			}
			line, _, _ := strings.Cut(found, "\n")
			t.Log(line)
		})
	}
}

// build makes a simulation of the mutant, and gives its path.
func (m *mutant) build(t *testing.T, dir string) string {
	t.Helper()
	file, tmp := filepath.Join(dir, m.file), t.TempDir()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		t.Fatalf("%s has the text that this mutant replaces %d times, want once: follow the change of the planner here too\n%s", m.file, n, m.old)
	}
	mutated, overlay := filepath.Join(tmp, m.file), filepath.Join(tmp, "overlay.json")
	bin := filepath.Join(tmp, "mutant.test")
	write := func(name string, text []byte) {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(mutated, []byte(strings.Replace(string(source), m.old, m.new, 1)))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	write(overlay, replace)
	if out, err := exec.Command("go", "test", "-c", "-overlay", overlay, "-ldflags", "-s -w", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("the mutant doesn't build: %v\n%s", err, out)
	}
	return bin
}

// TestHunt is what a mutant's test binary runs: the first broken promise ends it.
func TestHunt(t *testing.T) {
	most := fromEnv(t, "KEYLANES_SIM_HUNT", 0, parseInt)
	if most == 0 {
		t.Skip("this is run by TestMutants")
	}
	w, seeds := newWorld(), rnd{fromEnv(t, "KEYLANES_SIM_SEED", 1, parseSeed)}
	w.only = os.Getenv("KEYLANES_SIM_PROMISE")
	for n := range most {
		s := scheduleOf(seeds.next())
		if v := w.run(&s); v != nil && (w.only == "" || v.name == w.only) {
			name, _, _ := strings.Cut(v.Error(), "\n")
			fmt.Printf("caught: after %d schedules: %s\n", n+1, name)
			return
		}
	}
	t.Errorf("all promises are kept in %d schedules", most)
}
