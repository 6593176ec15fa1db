package main

import (
	"context"

	"github.com/keylanes/keylanes"
	"github.com/keylanes/keylanes/actors"
	"github.com/keylanes/keylanes/oracle"
	"github.com/keylanes/keylanes/supervision"
	"github.com/keylanes/keylanes/transport"
)

// subscribe consumes with keylanes: this is all that a program needs.
func subscribe(ctx context.Context, src transport.Source, h transport.Handler, o consumerOptions) error {
	return keylanes.Run(ctx, src, h, &keylanes.Options{
		Name:        "flights",
		Dispatch:    dispatch(o.dispatch, o.lanes),
		Credit:      o.credit,
		Policy:      supervision.DefaultWith(attempts, supervision.Backoff{Min: backoffMin, Max: backoffMax}),
		OutageAfter: outageAfter,
		Middleware:  o.middleware,
		DeadLetter:  o.deadLetter,
		Logger:      o.logger,
		Observer:    observer{o.state, o.log},
	})
}

func dispatch(mode string, lanes int) keylanes.Dispatch {
	switch mode {
	case "sequential":
		return keylanes.Sequential()
	case "workers":
		return keylanes.Workers(lanes)
	case "perkey":
		return keylanes.PerKey(lanes)
	default:
		return keylanes.ByKey(lanes)
	}
}

// observer counts what only the subscription knows.
type observer struct {
	s   *state
	log *oracle.Log
}

// Observe implements actors.Observer.
func (b observer) Observe(o actors.Observation) {
	switch o.Kind {
	case actors.ObserveParked:
		b.s.retries.Add(1)
	case actors.ObserveLaneRestarted:
		b.s.laneRestarts.Add(1)
	case actors.ObserveDeadLettered:
		b.s.reason(o.Reason)
	case actors.ObserveAcceptedAnyway:
		b.log.Record(oracle.AcceptedAnyway, &o.Delivery.Message)
	}
}
