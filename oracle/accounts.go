package oracle

import (
	"fmt"
	"math"
	"sort"
)

// settleAccounts judges what is only known at the end.
func (j *judge) settleAccounts() {
	all := make([]*message, 0, len(j.messages))
	for _, m := range j.messages {
		all = append(all, m)
	}
	sort.Slice(all, func(a, b int) bool {
		if all[a].place != all[b].place {
			return all[a].place < all[b].place
		}
		return all[a].id < all[b].id
	})
	var lost []*message
	for _, m := range all {
		if m.owed() {
			j.v.Published++
		} else if m.published > 0 {
			j.v.Unconfirmed++
		}
		switch m.decided {
		case Succeeded:
			j.v.Succeeded++
		case DeadLettered:
			j.v.DeadLettered++
		case AcceptedAnyway:
			j.v.AcceptedAnyway++
		default:
			if m.owed() || m.started > 0 {
				lost = append(lost, m)
			}
		}
		if m.published == 0 && !j.rules.ConsumerOnly {
			j.object(Violation{Promise: Identified, Key: m.key, IDs: []string{m.id}, Detail: fmt.Sprintf(
				"%q was handled, but nobody published it: an old message in the queue, or a publisher without Log.Publisher (Rules.ConsumerOnly)", m.id)})
		}
	}
	j.v.Undecided = len(lost)
	j.loss(lost)
	j.stillRunning()
	if j.rules.Credit > 0 && j.v.MostHeld > j.rules.Credit {
		j.object(Violation{Promise: Credit, Detail: fmt.Sprintf("%d deliveries were held at once, allowed are %d", j.v.MostHeld, j.rules.Credit)})
	}
	names := make([]string, 0, len(j.rules.Left))
	for what := range j.rules.Left {
		names = append(names, what)
	}
	sort.Strings(names)
	for _, what := range names {
		if n := j.rules.Left[what]; n != 0 {
			j.object(Violation{Promise: Left, Detail: fmt.Sprintf("%d %s left, allowed are none", n, what)})
		}
	}
}

func (j *judge) loss(lost []*message) {
	if j.rules.Remaining < 0 || len(lost) <= j.rules.Remaining {
		return
	}
	if j.rules.Remaining > 0 {
		// Which of them the queue still has, nobody knows.
		j.v.Counts[Loss] += len(lost) - j.rules.Remaining
		j.v.Violations = append(j.v.Violations, Violation{Promise: Loss, IDs: []string{lost[0].id}, Detail: fmt.Sprintf(
			"%d messages are undecided (the first is %s), but the queue holds only %d", len(lost), name(lost[0]), j.rules.Remaining)})
		return
	}
	for _, m := range lost {
		j.object(Violation{Promise: Loss, Key: m.key, IDs: []string{m.id}, Detail: fmt.Sprintf(
			"%s was started %d time(s), and never decided", name(m), m.started)})
	}
}

// stillRunning objects to handlers that haven't returned, but for those that
// were killed with their process.
func (j *judge) stillRunning() {
	var open []*run
	for _, r := range j.runs {
		if r.end == math.MaxInt64 {
			open = append(open, r)
		}
	}
	sort.Slice(open, func(a, b int) bool { return open[a].at < open[b].at })
	for _, r := range open {
		j.object(Violation{Promise: Left, Key: r.m.key, IDs: []string{r.m.id}, At: when(r.at), Detail: fmt.Sprintf(
			"the handler of %s hasn't returned", name(r.m))})
	}
}
