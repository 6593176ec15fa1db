// Flights follows every aircraft that left New York in January 2013 from flight
// to flight, through a queue: 27,004 real departures are published, keyed by
// aircraft, and a handler adds each flight to its aircraft's state (flights,
// miles, minutes of delay, the minutes that were carried over from the leg
// before, and a digest that changes when the order does).
//
//	go run ./examples/flights
//	go run ./examples/flights -transport 'amqp://user:password@127.0.0.1:5672/flights'
//	go run ./examples/flights -transport sqs://127.0.0.1:9324/flights.fifo
//	go run ./examples/flights -input orders.jsonl.gz -key customer
//
// On purpose, attempts fail (2 %) and panic (0.5 %), a few bodies don't decode,
// one aircraft is poisonous (each of its flights fails five times and becomes a
// dead letter) and one is slow. What fails is decided by -seed, message and
// attempt alone, so a run can be repeated. When nothing but poisonous flights is
// left, as with -poison 20, the subscription can't tell that from an outage: its
// lanes then only probe, four times a second, and the end takes longer.
//
// In the end two judges look at it. The oracle has recorded the published order
// and every handler's start, end and outcome; and a plain, single-threaded pass
// over the file, less the dead letters, must give every aircraft the same state
// and digest. The dead letters must also be the ones that the seed planned. The
// exit status is 1 when any of these objects or the run failed, 2 when a flag is
// wrong, else 0. With -dispatch workers, and on an SQS standard queue, there is
// no order to keep: then order and digests aren't judged, and the report says
// so.
//
// Ctrl-C (or SIGTERM) ends publishing and drains: running handlers finish, what
// is held goes back to the queue, and the report says that the run was cut
// short. A second one aborts.
//
// # The JSON report
//
// With -json, the last line on standard output is one JSON object:
//
//	ok                       nothing objects
//	cut_short                it ended before every message was decided
//	published                distinct messages that the queue confirmed
//	succeeded                messages whose handler succeeded
//	dead_lettered            messages whose dead-letter copy was confirmed
//	duplicates               runs of messages that were decided already
//	violations               what the oracle counted against the run
//	digests_equal            every key's state equals the single-threaded pass; null: not judged
//	dead_letters_as_planned  the dead letters are those that the seed decides
//	seconds                  from the start to the last decided message
//	per_second               decided messages a second
//	p50_ms, p99_ms           from publish to handled, of the succeeded
//	attempts                 runs of the handler; failed and panicked are of these
//	failed, panicked
//	retries                  attempts at undecided messages after their first
//	lane_restarts
//	dead_letter_reasons      how many for each reason
//	keys, keyless            distinct keys; messages without one
//	most_held, credit        the most messages held at once, or on their way; the bound
//	left_in_queue            messages that the queue holds at the end (AMQP: 1 is "at least one")
//	purged                   messages of earlier runs that -purge consumed
//	dispatch, lanes, transport, seed
//	busiest                  key, flights, miles, delay_minutes, carried_minutes, digest
//	objections               what objects, in words; null: nothing
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(start(subscribe)) }

// start runs until the work is done or a signal comes. The first one ends ctx,
// and gives the signals back to the system, so that a second one kills.
func start(consume consumer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr, consume)
}
