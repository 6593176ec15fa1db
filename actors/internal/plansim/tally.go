package plansim

import (
	"fmt"
	"strings"
)

// What is counted, so that a simulation that no longer gets somewhere shows.
const (
	nStarts = iota
	nFailures
	nPanics
	nLapsed
	nRefused
	nEpochs
	nResets
	nVoids
	nGroupAbandons
	nSingles
	nCopies
	nFailedCopies
	nAcceptsLost
	nRejects
	nNoTarget
	nNoEvidence
	nRetriedInstead
	nPins
	nOutages
	nStuck
	nStuckEnds
	nRestarts
	nDrains
	nStops
	nTakenBack
	nWaitingCopies
	nBatches
	nSplits
	nGaveUp
	nEndings
	nTallies
)

var tallyNames = [nTallies]string{
	"starts", "failures", "panics", "lapsed", "refused", "epochs", "resets", "voids", "group abandons", "single abandons",
	"copies", "failed copies", "accepts lost", "rejects", "without target", "without evidence", "retried instead", "pins",
	"outages", "stuck", "stuck ends", "restarts", "drains", "stops", "taken back", "fenced copies", "batches", "split batches", "given up", "leases ending",
}

type tally [nTallies]int

// String names each count.
func (t *tally) String() string {
	var b strings.Builder
	for k, n := range t {
		if k > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d %s", n, tallyNames[k])
	}
	return b.String()
}
