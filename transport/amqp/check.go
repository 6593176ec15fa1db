package amqp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrNoCheck says that the broker isn't one that can be asked for a queue's settings.
var ErrNoCheck = errors.New("only Artemis can be asked for a queue's settings")

// Finding is a setting of the broker's by which messages, or their order, can
// be lost.
type Finding struct {
	Setting string // as in broker.xml: "redelivery-delay"
	Value   string // what it is
	Want    string // what it should be
	Why     string // what happens otherwise
}

// String is the finding in one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s is %s, should be %s: %s", f.Setting, f.Value, f.Want, f.Why)
}

// Check asks an Artemis for the settings of a queue that docs/amqp.md tells
// about, and gives those that should be others; none when all is well. name and
// o are as for Queue. Meant for a program's start, before it subscribes.
//
// It opens a connection of its own, and closes it. A queue that doesn't exist
// yet is judged by the settings that it would be made with. The user needs the
// permission to send to activemq.management and to manage.
//
// Errors: *transport.OptionError, *transport.FatalError, *Error; ErrNoCheck is
// in the last when the broker isn't Artemis.
func Check(ctx context.Context, url, name string, o *Options) ([]Finding, error) {
	s, err := newSource(url, name, o)
	if err != nil {
		return nil, err
	}
	var fs []Finding
	err = s.o.eachEndpoint(ctx, s.endpoints, &s.good, func(e endpoint) (err error) {
		fs, err = s.check(ctx, e)
		return err
	})
	return fs, err
}

func (s *source) check(ctx context.Context, e endpoint) ([]Finding, error) {
	op := fmt.Sprintf("ask for the settings of %q at %s", s.name, e.address)
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.OpenTimeout, errOpenTimeout)
	defer cancel()
	l, err := s.o.dial(ctx, e, nil)
	if err != nil {
		return nil, classify(op, err)
	}
	fs, err := askSettings(ctx, l, s.name)
	if err != nil {
		l.abort(err)
		return nil, classify(op, because(ctx, err))
	}
	return fs, classify(op, l.close(ctx))
}

// addressSettings are those that apply to an address. Artemis leaves out what
// nobody has set.
type addressSettings struct {
	MaxDeliveryAttempts       *int   `json:"maxDeliveryAttempts"`
	RedeliveryDelay           int64  `json:"redeliveryDelay"`
	DeadLetterAddress         string `json:"deadLetterAddress"`
	DefaultGroupRebalance     bool   `json:"defaultGroupRebalance"`
	DefaultPurgeOnNoConsumers bool   `json:"defaultPurgeOnNoConsumers"`
	DefaultLastValueQueue     bool   `json:"defaultLastValueQueue"`
}

// queueList is the answer of listQueues; its values are strings.
type queueList struct {
	Data []struct {
		Name               string `json:"name"`
		GroupRebalance     string `json:"groupRebalance"`
		PurgeOnNoConsumers string `json:"purgeOnNoConsumers"`
		LastValue          string `json:"lastValue"`
	} `json:"data"`
}

// attemptsNorm is Artemis' max-delivery-attempts when nobody has set it.
const attemptsNorm = 10

func askSettings(ctx context.Context, l *link, name string) ([]Finding, error) {
	if !isArtemis(l.conn) {
		return nil, ErrNoCheck
	}
	m, err := openManagement(ctx, l)
	if err != nil {
		return nil, err
	}
	address, queue := name, name
	if a, q, ok := strings.Cut(name, "::"); ok {
		address, queue = a, q
	}
	var as addressSettings
	if err := m.document(ctx, "getAddressSettingsAsJSON", []any{address}, &as); err != nil {
		return nil, err
	}
	rebalance, purge, lastValue := as.DefaultGroupRebalance, as.DefaultPurgeOnNoConsumers, as.DefaultLastValueQueue
	var qs queueList
	filter, err := json.Marshal(map[string]string{"field": "NAME", "operation": "EQUALS", "value": queue})
	if err != nil {
		return nil, err
	}
	if err := m.document(ctx, "listQueues", []any{string(filter), 1, 1}, &qs); err != nil {
		return nil, err
	}
	if len(qs.Data) == 1 { // it was made with settings of its own, perhaps
		q := qs.Data[0]
		rebalance, purge, lastValue = q.GroupRebalance == "true", q.PurgeOnNoConsumers == "true", q.LastValue == "true"
	}
	return as.findings(rebalance, purge, lastValue), nil
}

func (as addressSettings) findings(rebalance, purge, lastValue bool) []Finding {
	var fs []Finding
	found := func(wrong bool, setting string, value any, want, why string) {
		if wrong {
			fs = append(fs, Finding{setting, fmt.Sprint(value), want, why})
		}
	}
	attempts := attemptsNorm
	if as.MaxDeliveryAttempts != nil {
		attempts = *as.MaxDeliveryAttempts
	}
	found(attempts >= 0, "max-delivery-attempts", attempts, "-1", "a lost connection may count as an attempt, so that crash loops dead-letter good messages")
	found(as.RedeliveryDelay != 0, "redelivery-delay", as.RedeliveryDelay, "0", "what was given back comes again out of order")
	found(as.DeadLetterAddress == "", "dead-letter-address", "not set", "set", "a rejected message is dropped")
	found(rebalance, "default-group-rebalance", true, "false", "a replica that joins gets keys of which another still works on messages")
	found(purge, "default-purge-on-no-consumers", true, "false", "the queue is emptied when the last replica stops")
	found(lastValue, "default-last-value-queue", true, "false", "a message replaces the one before it")
	return fs
}
