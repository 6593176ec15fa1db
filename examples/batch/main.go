// Command batch writes measurements to a database in bulk: one insert for up to
// twenty of them, each sensor's in order. It needs no broker.
//
// It shows the three ways in which a batch can end: all of it is accepted; one
// element fails for itself, with a *keylanes.BatchError; the insert fails as a
// whole, and its elements are then tried one by one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "batch:", err)
		os.Exit(1)
	}
}

const (
	sensors      = 5
	measurements = 200
	size         = 20
)

var (
	errLocked    = errors.New("the table is locked")
	errNotNumber = errors.New("not a number")
)

// table is the database. Only one lane writes to it here; with several it would
// need a lock.
type table struct {
	rows    map[string][]int // by sensor, in the order of insertion
	inserts int
	n       int
}

// insert writes all rows, or none.
func (t *table) insert(rows []row) error {
	if t.inserts++; t.inserts == 3 {
		return errLocked
	}
	for _, r := range rows {
		t.rows[r.sensor] = append(t.rows[r.sensor], r.value)
		t.n++
	}
	return nil
}

type row struct {
	sensor string
	value  int
}

// handler inserts a batch at once. What isn't a number fails for itself: it is
// advised to be a dead letter at once, and the rest of the batch is accepted,
// apart from that sensor's later ones, which come again.
func handler(t *table, done func()) keylanes.BatchHandlerFunc {
	return func(_ context.Context, ds []*keylanes.Delivery) error {
		result := &keylanes.BatchError{Errs: make([]error, len(ds))}
		rows, failed := make([]row, 0, len(ds)), map[string]bool{}
		for i, d := range ds {
			v, err := strconv.Atoi(string(d.Body))
			switch {
			case failed[d.Key]: // comes again, after its predecessor
			case err != nil:
				failed[d.Key] = true
				result.Errs[i] = supervision.With(errNotNumber, supervision.DeadLetter("not a number", string(d.Body)))
			default:
				rows = append(rows, row{d.Key, v})
			}
		}
		if err := t.insert(rows); err != nil {
			return err // of the whole batch
		}
		if t.n == measurements-1 {
			done()
		}
		return result
	}
}

func run(out io.Writer) error {
	broker := memory.New(nil)
	queue, err := broker.Queue("measurements", nil)
	if err != nil {
		return err
	}
	dead, err := broker.Queue("measurements.dead", nil)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	for i := range measurements {
		m := transport.Message{ID: fmt.Sprint("m", i), Key: fmt.Sprint("sensor-", i%sensors), Body: []byte(strconv.Itoa(i))}
		if i == 77 {
			m.Body = []byte("7?7")
		}
		if err := queue.Publisher().Publish(ctx, m); err != nil {
			return err
		}
	}
	t := &table{rows: map[string][]int{}}
	err = keylanes.RunBatch(ctx, queue.Source(), handler(t, stop), &keylanes.Options{
		Dispatch: keylanes.ByKey(1), Batch: size, DeadLetter: dead.Publisher(), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	for i := range sensors {
		name := fmt.Sprint("sensor-", i)
		last, ordered := -1, true
		for _, v := range t.rows[name] {
			ordered, last = ordered && v > last, v
		}
		fmt.Fprintf(out, "%s: %d rows, in order: %t\n", name, len(t.rows[name]), ordered)
	}
	for _, m := range dead.Messages() {
		fmt.Fprintf(out, "dead: %s of %s, %v\n", m.Body, m.Key, m.Headers[transport.HeaderReason])
	}
	fmt.Fprintf(out, "%d rows, fewer than %d inserts: %t\n", t.n, measurements/2, t.inserts < measurements/2)
	return nil
}
