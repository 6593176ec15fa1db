package actors

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylanes/keylanes/actors/internal/plan"
	"github.com/keylanes/keylanes/transport"
)

// keyLane is what a key owns under PerKey: its handler, and perhaps an actor. The
// router makes and forgets it; the handler is made, and called, by whichever
// runner has the key: one at a time, each after the router heard of the last.
type keyLane struct {
	key   string
	asked *asked // LaneActor's; else nil
	name  uint64 // the number in its name
	h     transport.Handler

	used int64 // when it was last lent something; the router's
	// older and newer are its places in the order of use; the router's.
	older, newer *keyLane
}

// handler gives the key's handler, made for its first delivery.
func (k *keyLane) handler(t *tree) transport.Handler {
	if k.h == nil {
		k.h = t.handler(Lane{Index: -1, Key: k.key}, k.asked)
	}
	return k.h
}

// keyLanes are those that there are. The router's.
type keyLanes struct {
	byKey          map[string]*keyLane
	byName         map[uint64]*keyLane // LaneActor's
	oldest, newest *keyLane            // in the order of use
	names          uint64              // actors so far, for fresh names
}

// push makes k the last that was used.
func (ks *keyLanes) push(k *keyLane) {
	k.older, k.newer = ks.newest, nil
	if ks.newest == nil {
		ks.oldest = k
	} else {
		ks.newest.newer = k
	}
	ks.newest = k
}

// unlink takes k out of the order.
func (ks *keyLanes) unlink(k *keyLane) {
	if k.older == nil {
		ks.oldest = k.newer
	} else {
		k.older.newer = k.newer
	}
	if k.newer == nil {
		ks.newest = k.older
	} else {
		k.newer.older = k.older
	}
}

// forget takes k out of the books, if it is in them.
func (ks *keyLanes) forget(k *keyLane) {
	if ks.byKey[k.key] == k {
		delete(ks.byKey, k.key)
		ks.unlink(k)
	}
	if k.asked != nil {
		delete(ks.byName, k.name)
	}
}

// of gives the key lane whose actor pid is, and whether it is some key's actor;
// the first is nil when it was dropped.
func (ks *keyLanes) of(pid *actor.PID) (*keyLane, bool) {
	name, ok := strings.CutPrefix(pid.Id[strings.LastIndexByte(pid.Id, '/')+1:], keyActorPrefix)
	if !ok {
		return nil, false
	}
	n, err := strconv.ParseUint(name, 10, 64)
	return ks.byName[n], err == nil
}

// keyed says that keys own their handlers.
func (t *tree) keyed() bool { return t.stateful && t.opts.Dispatch.mode == plan.PerKey }

// own ties what is lent to the lanes of its keys.
func (r *router) own(run *plan.Run) {
	ks := &r.keyLanes
	if ks.byKey == nil {
		ks.byKey, ks.byName = map[string]*keyLane{}, map[uint64]*keyLane{}
	}
	now := r.now()
	for _, it := range run.Items[:run.N] {
		if it == nil || it.Key == "" {
			continue
		}
		k := ks.byKey[it.Key]
		if k == nil {
			k = r.newKeyLane(it.Key)
		}
		if k.used = now; k != ks.newest {
			ks.unlink(k)
			ks.push(k)
		}
		it.Owner = k
	}
}

// newKeyLane makes key's, and room for it. When there is no room and none is
// idle, keys whose handlers outlast their leases hold them: then there are a few
// more than MaxLanes.
func (r *router) newKeyLane(key string) *keyLane {
	ks := &r.keyLanes
	if len(ks.byKey) >= r.t.opts.MaxLanes {
		for k := ks.oldest; k != nil; k = k.newer {
			if r.planner.KeyIdle(k.key) {
				r.drop(k)
				break
			}
		}
	}
	k := &keyLane{key: key}
	if r.t.child != nil {
		ks.names++
		pid, err := r.ctx.SpawnNamed(r.t.child, fmt.Sprintf("%s%d", keyActorPrefix, ks.names))
		if err != nil {
			panic(fmt.Errorf("the actor of key %q can't be spawned: %w", key, err))
		}
		k.asked, k.name = newAsked(r.t.system, pid), ks.names
		ks.byName[k.name] = k
	}
	ks.byKey[key] = k
	ks.push(k)
	return k
}

// drop forgets k: its key's next delivery gets a new one. Names are fresh, so
// what is still heard of its actor isn't taken for another's.
func (r *router) drop(k *keyLane) {
	r.keyLanes.forget(k)
	if k.asked != nil {
		r.ctx.Stop(k.asked.pid)
	}
}

// renew drops the lane of it's key, after a panic or because the policy says so.
func (r *router) renew(it *plan.Item) {
	if k, ok := it.Owner.(*keyLane); ok {
		r.drop(k)
	}
}

// due is when the least recently used one is to be looked at, 0 for never.
func (ks *keyLanes) due(idleAfter time.Duration) int64 {
	if ks.oldest == nil {
		return 0
	}
	return ks.oldest.used + int64(idleAfter)
}

// passivate drops those that were idle for long enough.
func (r *router) passivate() {
	ks, now := &r.keyLanes, r.now()
	for at := ks.due(r.t.opts.IdleAfter); at != 0 && at <= now; at = ks.due(r.t.opts.IdleAfter) {
		k := ks.oldest
		if r.planner.KeyIdle(k.key) {
			r.drop(k)
		} else { // in use all the time, or parked
			k.used = now
			ks.unlink(k)
			ks.push(k)
		}
	}
}

// terminated hears that an actor has stopped: by itself, if it is still known.
func (ks *keyLanes) terminated(pid *actor.PID) {
	if k, _ := ks.of(pid); k != nil {
		ks.forget(k)
	}
}

// keyActorPrefix begins the names of the actors that belong to keys.
const keyActorPrefix = "key-"

// keyActorCrashed handles the failure of a key's actor; k is nil when it was
// dropped. With a delivery in its hands that attempt has failed, and fails the
// lane that asked; the key's next attempt gets a new actor. Without one it is
// restarted.
func (r *router) keyActorCrashed(m *laneCrashed, k *keyLane) {
	switch {
	case k == nil:
		m.sup.StopChildren(m.child)
	case k.asked.crash(m.reason):
		r.drop(k)
	default:
		m.sup.RestartChildren(m.child)
	}
}
