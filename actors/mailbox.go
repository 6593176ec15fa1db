package actors

import (
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
)

// mailbox is the mailbox of the tree's own actors: two slices that change places
// under a mutex. The stock one allocates each time that it wakes its actor,
// which here is once for every few deliveries.
//
// Anybody posts; one goroutine at a time processes, the one that the dispatcher
// was given when scheduled became true.
type mailbox struct {
	mu        sync.Mutex
	user      []any // posted, not taken yet
	system    []any
	scheduled bool

	systemN atomic.Int32 // len(system), so that looking needs no lock
	run     func()       // process, made once

	// The processing goroutine's.
	batch     []any // taken; those before at are done
	at        int
	suspended bool

	invoker    actor.MessageInvoker
	dispatcher actor.Dispatcher
}

func newMailbox() actor.Mailbox {
	m := &mailbox{}
	m.run = m.process
	return m
}

// PostUserMessage implements actor.Mailbox.
func (m *mailbox) PostUserMessage(message any) {
	m.mu.Lock()
	m.user = append(m.user, message)
	m.wake()
}

// PostSystemMessage implements actor.Mailbox.
func (m *mailbox) PostSystemMessage(message any) {
	m.mu.Lock()
	m.system = append(m.system, message)
	m.systemN.Store(int32(len(m.system)))
	m.wake()
}

// wake unlocks, and schedules the processing unless it goes on already.
func (m *mailbox) wake() {
	start := !m.scheduled
	m.scheduled = true
	m.mu.Unlock()
	if start {
		m.dispatcher.Schedule(m.run)
	}
}

// RegisterHandlers implements actor.Mailbox.
func (m *mailbox) RegisterHandlers(invoker actor.MessageInvoker, dispatcher actor.Dispatcher) {
	m.invoker, m.dispatcher = invoker, dispatcher
}

// Start implements actor.Mailbox.
func (m *mailbox) Start() {}

// UserMessageCount implements actor.Mailbox.
func (m *mailbox) UserMessageCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.user)
}

func (m *mailbox) process() {
	for {
		m.handle()
		m.mu.Lock()
		if len(m.system) == 0 && (m.suspended || len(m.user) == 0 && m.at == len(m.batch)) {
			m.scheduled = false
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
	}
}

// handle invokes the actor until nothing is left or it fails: the failure goes to
// its supervisor, and the next call goes on behind the message that failed.
func (m *mailbox) handle() {
	var message any
	defer func() {
		if reason := recover(); reason != nil {
			m.invoker.EscalateFailure(reason, message)
		}
	}()
	for {
		if m.systemN.Load() > 0 {
			message = m.nextSystem()
			switch message.(type) {
			case *actor.SuspendMailbox:
				m.suspended = true
			case *actor.ResumeMailbox:
				m.suspended = false
			default:
				m.invoker.InvokeSystemMessage(message)
			}
			continue
		}
		if m.suspended || (m.at == len(m.batch) && !m.refill()) {
			return
		}
		message = m.batch[m.at]
		m.batch[m.at] = nil
		m.at++
		m.invoker.InvokeUserMessage(message)
	}
}

func (m *mailbox) nextSystem() any {
	m.mu.Lock()
	defer m.mu.Unlock()
	message := m.system[0]
	m.system[0] = nil
	m.system = m.system[1:]
	m.systemN.Store(int32(len(m.system)))
	return message
}

// refill takes what was posted, and says whether that was anything.
func (m *mailbox) refill() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.batch, m.user = m.user, m.batch[:0]
	m.at = 0
	return len(m.batch) > 0
}
