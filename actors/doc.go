// Package actors turns a queue subscription into a small tree of protoactor-go
// actors:
//
//	subscription        the public address: pause, resume, stats, drain
//	 ├─ pump            owns the receiver: credit, leases, reconnect
//	 └─ router          a queue for each key; the supervisor of its lanes
//	     ├─ lane-0      runs the handler, one delivery at a time
//	     └─ lane-1 …
//
// Subscription gives the props of such a tree: spawn it wherever an actor can be
// spawned, and supervise it. Run is for programs without an actor system.
//
// The order of a key lives in the router's queues, not in mailboxes: a mailbox
// loses the message that an actor fails on, and a message sent again goes behind
// everything else. A lane is lent runs of up to 32 deliveries, which the router
// can take back as long as they aren't claimed.
package actors
