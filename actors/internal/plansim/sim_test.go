package plansim

import (
	"testing"
	"time"
)

func TestQuick(t *testing.T) {
	w := newWorld()
	start := time.Now()
	for seed := uint64(1); seed < 100000; seed++ {
		s := scheduleOf(seed)
		if v := w.run(&s); v != nil {
			short, v := shrink(w, s, v)
			t.Fatalf("seed %d, %d words\n%v\n%v", seed, len(short.words), tellStory(w, short), v)
		}
	}
	t.Logf("%d steps, %.0f a second", w.steps, float64(w.steps)/time.Since(start).Seconds())
}
