package amqp

import (
	"crypto/tls"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/keylanes/keylanes/transport"
)

// SASL says how to log in.
type SASL uint8

// The ways to log in.
const (
	// SASLAuto: plain when the url names a user, else anonymous.
	SASLAuto SASL = iota
	// SASLAnonymous: anonymous, whatever the url says.
	SASLAnonymous
	// SASLExternal: the broker takes the identity from the TLS client
	// certificate (TLS.Certificates).
	SASLExternal
	// SASLNone: no SASL layer at all, for brokers without one.
	SASLNone
)

// Connection is how to reach a broker. The zero value is good for a broker
// whose url says it all.
type Connection struct {
	// URLs are further brokers, tried in turn when the first can't be reached:
	// a live one and its backup. At most 16. What worked last is tried first.
	URLs []string
	// TLS is for amqps urls: roots, client certificates. Nil means the
	// system's roots. ServerName is the dialled host unless given. It is
	// copied.
	TLS *tls.Config
	// SASL says how to log in. Default SASLAuto.
	SASL SASL
	// HostName is the virtual host that the broker is asked for, apart from
	// the host that is dialled. Default: a url's ?hostname=, else its host.
	HostName string
	// ContainerID names this client to the broker. Default: a random one for
	// each connection.
	ContainerID string
	// IdleTimeout is how long the broker may say nothing before the connection
	// counts as dead; the broker is told to send something twice as often.
	// Keep it clearly below the broker's own idle timeout (Artemis: 60 s), or
	// the broker hands messages to others before this side has noticed.
	// Default 10 s, 500 ms to 10 min.
	IdleTimeout time.Duration
	// WriteTimeout bounds one write to a socket that takes nothing any more,
	// after which the connection counts as dead. Default 5 s, 100 ms to 1 min.
	WriteTimeout time.Duration
	// OpenTimeout bounds the attempt at one url: dial, TLS, log in, attach.
	// Default 10 s, 100 ms to 5 min.
	OpenTimeout time.Duration
}

// Options are a source's. Nil, and zero values, mean the defaults.
type Options struct {
	Connection
	// Selector is a filter in the SQL-like syntax of JMS, applied by brokers
	// that have it (Artemis): "colour = 'red'". Empty: all messages. Order is
	// kept among those that match.
	Selector string
	// Capabilities that the address has to have: "queue", "topic", "shared".
	// Default for Queue: queue. Default for Address: none.
	Capabilities []string
	// LinkProperties go to the broker with the attach, e.g. a consumer
	// priority: {"priority": int32(5)}.
	LinkProperties map[string]any
	// SilentAfter is when a link on which nothing arrives, though the broker
	// may send and nothing is held, is replaced by a fresh one. Default 5 min,
	// at least 100 ms; negative: never.
	SilentAfter time.Duration
}

// PublisherOptions are a publisher's. Nil, and zero values, mean the defaults.
type PublisherOptions struct {
	Connection
	// Capabilities that the address has to have. Nil: queue. Empty, but not
	// nil: none, for a raw address or a broker that knows none.
	Capabilities []string
	// Window is how many messages may be sent and not yet confirmed, over all
	// calls of Publish. Default 1000, 1 to 100000. The broker's own credit
	// bounds it as well (Artemis: 1000).
	Window int
	// NonDurable messages are gone when the broker restarts.
	NonDurable bool
	// Priority, 0 to 9, reorders: only messages of one priority keep their
	// order. Nil: 4, AMQP's default.
	Priority *uint8
	// NoDeduplication leaves out the property by which Artemis drops a second
	// message of the same Message.ID. With it, a message that was taken from a
	// dead-letter queue and is sent to its first address again under its old
	// id, is dropped silently.
	NoDeduplication bool
	// RetryFor bounds how long one Publish goes on trying over lost
	// connections, when its context has no earlier end. Default 30 s, 1 ms to
	// 1 h; negative: one try.
	RetryFor time.Duration
}

const (
	maxURLs = 16
	maxName = 4096
	// selectorMax keeps the attach frame within the smallest frame size that
	// brokers are known to ask for.
	selectorMax = 8192
	queueCap    = "queue"
	windowMax   = 100_000
	windowNorm  = 1000
)

// check fills in the defaults and validates. name is the options' type, for
// errors.
func (c *Connection) check(name string) error {
	c.TLS = c.TLS.Clone()
	if len(c.URLs) > maxURLs {
		return &transport.OptionError{Field: name + ".URLs", Value: len(c.URLs), Want: fmt.Sprintf("must be at most %d", maxURLs)}
	}
	c.URLs = append([]string(nil), c.URLs...)
	if c.SASL > SASLNone {
		return &transport.OptionError{Field: name + ".SASL", Value: c.SASL, Want: "must be SASLAuto, SASLAnonymous, SASLExternal or SASLNone"}
	}
	for _, s := range []struct{ field, v string }{{"HostName", c.HostName}, {"ContainerID", c.ContainerID}} {
		if len(s.v) > 255 || !utf8.ValidString(s.v) {
			return &transport.OptionError{Field: name + "." + s.field, Value: cutString(s.v, 40), Want: "must be UTF-8 of at most 255 bytes"}
		}
	}
	for _, d := range []struct {
		field         string
		v             *time.Duration
		def, min, max time.Duration
	}{
		{"IdleTimeout", &c.IdleTimeout, 10 * time.Second, 500 * time.Millisecond, 10 * time.Minute},
		{"WriteTimeout", &c.WriteTimeout, 5 * time.Second, 100 * time.Millisecond, time.Minute},
		{"OpenTimeout", &c.OpenTimeout, 10 * time.Second, 100 * time.Millisecond, 5 * time.Minute},
	} {
		if err := within(name+"."+d.field, d.v, d.def, d.min, d.max); err != nil {
			return err
		}
	}
	return nil
}

func within(field string, v *time.Duration, def, least, most time.Duration) error {
	if *v == 0 {
		*v = def
	}
	if *v < least || *v > most {
		return &transport.OptionError{Field: field, Value: *v, Want: fmt.Sprintf("must be %v to %v, or 0 for %v", least, most, def)}
	}
	return nil
}

// endpoints parses all urls.
func (c *Connection) endpoints(name, url string) ([]endpoint, error) {
	e, err := parseURL("url", url)
	if err != nil {
		return nil, err
	}
	es := []endpoint{e}
	for i, s := range c.URLs {
		e, err := parseURL(fmt.Sprintf("%s.URLs[%d]", name, i), s)
		if err != nil {
			return nil, err
		}
		es = append(es, e)
	}
	if c.SASL == SASLExternal {
		for _, e := range es {
			if !e.tls {
				return nil, &transport.OptionError{Field: name + ".SASL", Value: "SASLExternal", Want: "needs amqps urls: the identity is the TLS client certificate's"}
			}
		}
	}
	return es, nil
}

func checkName(name string) error {
	switch {
	case name == "":
		return &transport.OptionError{Field: "name", Value: name, Want: "must name the queue or address to attach to"}
	case len(name) > maxName || !utf8.ValidString(name):
		return &transport.OptionError{Field: "name", Value: cutString(name, 40), Want: fmt.Sprintf("must be UTF-8 of at most %d bytes", maxName)}
	}
	return nil
}

func checkCapabilities(field string, cs []string) error {
	for i, c := range cs {
		if c == "" || len(c) > 255 || strings.ContainsFunc(c, func(r rune) bool { return r > 126 || r < 32 }) {
			return &transport.OptionError{Field: fmt.Sprintf("%s[%d]", field, i), Value: cutString(c, 40), Want: "must be an AMQP symbol: 1 to 255 ASCII characters"}
		}
	}
	return nil
}

// checkLinkProperties accepts the simple types; more than that no broker is
// known to read.
func checkLinkProperties(ps map[string]any) error {
	for k, v := range ps {
		switch v.(type) {
		case nil, bool, int, int8, int16, int32, int64, uint8, uint16, uint32, uint64, uint, float32, float64, string:
		default:
			return &transport.OptionError{Field: "Options.LinkProperties", Value: fmt.Sprintf("%q: (%T)", cutString(k, 40), v), Want: "values must be text, numbers or booleans"}
		}
		if k == "" {
			return &transport.OptionError{Field: "Options.LinkProperties", Value: k, Want: "names must not be empty"}
		}
	}
	return nil
}

// cutString gives at most n bytes of s, whole characters only.
func cutString(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
