package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// progress shows how far the run is: a line that is written over again on a
// terminal, now and then a line elsewhere.
type progress struct {
	quit chan struct{}
	wg   sync.WaitGroup
}

const (
	terminalEvery = 100 * time.Millisecond
	plainEvery    = 3 * time.Second
)

func startProgress(w io.Writer, s *state) *progress {
	p := &progress{quit: make(chan struct{})}
	every, terminal := plainEvery, isTerminal(w)
	if terminal {
		every = terminalEvery
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				line(w, s, terminal)
			case <-p.quit:
				if terminal {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return p
}

// stop returns when nothing is written any more.
func (p *progress) stop() {
	close(p.quit)
	p.wg.Wait()
}

func line(w io.Writer, s *state, terminal bool) {
	seconds := time.Since(s.start).Seconds()
	begin, end := "", "\n"
	if terminal {
		begin, end = "\r\x1b[K", ""
	}
	decided := s.decided.Load()
	fmt.Fprintf(w, "%s%s of %s flights, %s/s, %s published, %s retries, %s dead letters%s", begin,
		thousands(decided), thousands(int64(s.total())), thousands(int64(float64(decided)/seconds)),
		thousands(s.published.Load()), thousands(s.retries.Load()), thousands(s.deadLettered.Load()), end)
}

// isTerminal reports whether w is a character device.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	i, err := f.Stat()
	return err == nil && i.Mode()&os.ModeCharDevice != 0
}

// thousands prints n with separators.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
