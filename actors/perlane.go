package actors

import (
	"fmt"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/transport"
)

// Lane says what a handler is made for: a lane, or under PerKey a key.
type Lane struct {
	// Index counts the lanes from 0. Under PerKey it is -1, apart from the
	// handlers of what has no key: those belong to the pooled lanes.
	Index int
	// Key is the key, under PerKey; else "".
	Key string
}

// String is "lane 3", or "key order-7".
func (l Lane) String() string {
	if l.Index < 0 {
		return "key " + l.Key
	}
	return fmt.Sprintf("lane %d", l.Index)
}

// PerLane is Subscription with a handler of its own for each lane, made by f: for
// state that needs no lock, because one handler at a time runs on a lane.
//
//   - Under Sequential, Workers and ByKey f is called once for each lane, and
//     again after the lane was restarted (a panic, a directive, a handler that was
//     stuck): the state is fresh then.
//   - Under PerKey there is one for each key that is in use: made for its first
//     delivery, again after a panic of one of the key's, and dropped Options.IdleAfter
//     after its last. Options.MaxLanes bounds how many there are.
//   - f is called on a lane's goroutine and may block; when it panics for a lane
//     the subscription fails with a *CrashError, when it panics for a key the
//     delivery's attempt has failed.
//   - Options.Middleware wraps what f makes.
func PerLane(src transport.Source, f func(Lane) transport.Handler, o *Options) (*actor.Props, error) {
	if f == nil {
		return nil, &transport.OptionError{Field: "factory", Value: "nil", Want: "must be a function that makes a handler for a lane"}
	}
	opts, err := o.withoutBatch(src)
	if err != nil {
		return nil, err
	}
	return opts.props(src, made{stateful: true, handler: func(l Lane, _ *asked) transport.Handler {
		return opts.wrapMade(f(l), l)
	}}), nil
}

// wrapMade wraps what was made for l. What is wrong with it is the failure of
// whatever it was made for.
func (o *Options) wrapMade(h transport.Handler, l Lane) transport.Handler {
	if isNil(h) {
		panic(fmt.Errorf("the factory gave no handler for %v", l))
	}
	w, err := wrap(h, o.Middleware)
	if err != nil {
		panic(err)
	}
	return w
}
