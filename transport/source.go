package transport

import (
	"context"
	"time"
)

// Source is an immutable template for the receivers of one queue.
type Source interface {
	// Open attaches to the queue and begins an epoch.
	//   - Called by the pump, never two at a time for one subscription, once
	//     for each spawn or reattach; several subscriptions may share a Source
	//     and call it at the same time.
	//   - It returns when the broker has confirmed the attachment, or with an
	//     error; wrap it in *FatalError when trying again can't help until
	//     somebody changes something. ctx bounds the attempt.
	//   - No delivery is handed out before Grant.
	//   - It must not call s before it returns.
	Open(ctx context.Context, s Sink) (Receiver, error)
	// Traits says what the broker can do. The same for the Source's life.
	Traits() Traits
}

// Receiver is one epoch: one attachment to one queue.
type Receiver interface {
	// Grant allows n more deliveries to be held.
	//   - Any goroutine; never blocks; n > 0.
	//   - The sum of all grants, less what was handed out, is a ceiling that
	//     the receiver never asks the broker to exceed. There is no way to
	//     take a grant back: pausing means granting no more.
	Grant(n int)
	// Receive waits for deliveries and gives them in the broker's order.
	//   - Only the pump's goroutine calls it, one call at a time.
	//   - It may return fewer than were granted; MaxReceive bounds how many.
	//     The slice is the caller's. An empty slice without an error is a poll
	//     that found nothing.
	//   - When ctx ends it returns soon, but loses nothing: a poll in flight is
	//     waited for, and what it brought is returned, with ctx's error or
	//     without.
	//   - A *TemporaryError means that the epoch lives: the pump backs off and
	//     calls again. Any other error ends the epoch: every lease that isn't
	//     settled is gone, and the pump calls Close, then Open.
	Receive(ctx context.Context) ([]*Delivery, error)
	// Settle hands over how d ended.
	//   - Any goroutine, lanes included; never blocks, never waits on a socket;
	//     at most once for each delivery, of this epoch only.
	//   - Sink.Settled is called once for each call, in any order, possibly
	//     before Settle returns. After the epoch ended it reports an error that
	//     wraps ErrLeaseLost.
	//   - Passing faults are retried inside, while the lease lives.
	Settle(d *Delivery, o Outcome)
	// Extend asks the broker to keep ds until the given time.
	//   - Only called where Traits.LeaseExpires; any goroutine; never blocks.
	//   - Success moves each lease's deadline (Lease.Extend) to a time computed
	//     from before the request was sent. Passing faults are retried inside,
	//     for each delivery, until its deadline; then, and when the broker says
	//     that the lease is gone, Lease.Lose and Sink.Lost.
	//   - What was settled meanwhile is left alone.
	Extend(ds []*Delivery, until time.Time)
	// Close ends the epoch.
	//   - Called once, by the pump, when Receive isn't running; Settle and
	//     Grant may still be called meanwhile and afterwards, and are refused.
	//   - First it flushes what was settled, and waits until the broker is sure
	//     to have it, where the broker can say so; only then it gives back, in
	//     order, everything handed out and not settled, and what the client had
	//     fetched ahead.
	//   - ctx bounds it; when ctx ends everything is released at once and the
	//     error says what may come again. No goroutine is left in any case.
	Close(ctx context.Context) error
}

// Sink is where a Receiver reports to. The pump implements it. Both methods may
// be called from any goroutine, never block, and never call the Receiver back
// except Grant.
type Sink interface {
	// Settled reports how the settlement of d went, once for each Settle. With
	// a nil error the broker has it, or it is on its way where the broker
	// doesn't confirm; with an error the broker may hand the message out again.
	Settled(d *Delivery, o Outcome, err error)
	// Lost reports leases that are gone without a Settle, each delivery once.
	// err wraps ErrLeaseLost.
	Lost(ds []*Delivery, err error)
}

// DeadLetterKind says what a broker's own dead-letter path does with a Reject.
type DeadLetterKind uint8

// The kinds of native dead-letter path.
const (
	// DeadLetterNone: the broker has none, or reaching it isn't certain.
	DeadLetterNone DeadLetterKind = iota
	// DeadLetterNative: a Reject moves the message, without its reason.
	DeadLetterNative
	// DeadLetterWithReason: a Reject moves the message with its reason.
	DeadLetterWithReason
)

// AbandonKind says how a delivery of an ordered group is abandoned without its
// successors overtaking it.
type AbandonKind uint8

// The kinds of ordered abandon.
const (
	// AbandonSingle: the broker keeps no order, or each message stands alone:
	// that one delivery is settled, nothing else.
	AbandonSingle AbandonKind = iota
	// AbandonGroup: the broker blocks a group while its head is out: held
	// successors go back first, the head last.
	AbandonGroup
	// AbandonReset: only the end of the epoch gives everything back in order
	// (AMQP): settle it, close the receiver, open the next.
	AbandonReset
)

// Traits says what a broker can do.
type Traits struct {
	// Ordered: one consumer gets the messages of a key in the order in which
	// they were published, also after they were given back as Abandon says.
	Ordered bool
	// GroupsExclusive: while a delivery of a group is out, only its holder gets
	// more of that group (SQS FIFO). A key function of the user's is refused,
	// since two keys of one group couldn't be settled apart.
	GroupsExclusive bool
	// LeaseExpires: a lease has a deadline and has to be extended.
	LeaseExpires bool
	// CountsOnReturn: a Return raises Delivery.Count (SQS).
	CountsOnReturn bool
	// AbandonDelay: Outcome.Delay is honoured.
	AbandonDelay bool
	// Abandon is how an ordered delivery is abandoned.
	Abandon AbandonKind
	// DeadLetter is what Reject does.
	DeadLetter DeadLetterKind
	// MaxReceive bounds how many deliveries one Receive gives; at least 1.
	MaxReceive int
}

// Limits are what a receiver learnt of its queue when it was opened.
type Limits struct {
	// Lease is how long a lease lasts, when it was just extended. 0 unknown.
	Lease time.Duration
	// LeaseMax bounds a lease's whole life since the receive (SQS: 12 hours).
	// 0 means no bound.
	LeaseMax time.Duration
	// MaxReceives is how often the broker hands a message out before its own
	// redrive policy moves it away. 0 means no bound.
	MaxReceives int
}

// Limited is implemented by a Receiver that learnt Limits.
type Limited interface {
	// Limits never blocks; any goroutine.
	Limits() Limits
}

// Depther is implemented by a Receiver that can ask how much waits on the
// broker.
type Depther interface {
	// Depth asks the broker, bounded by ctx; any goroutine.
	Depth(ctx context.Context) (int64, error)
}

// Publisher sends messages. All methods may be called from many goroutines.
type Publisher interface {
	// Publish sends ms in order and returns when the broker has confirmed all
	// of them. A *PublishError says which weren't.
	Publish(ctx context.Context, ms ...Message) error
	// Close flushes and releases everything. Publish fails afterwards. May be
	// called more than once.
	Close(ctx context.Context) error
}
