package amqp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	goamqp "github.com/Azure/go-amqp"

	"github.com/keylanes/keylanes/transport"
)

// Scope says what an Error has ended.
type Scope uint8

// The scopes, from the smallest.
const (
	ScopeLink       Scope = iota + 1 // the link; its connection lives
	ScopeSession                     // the session
	ScopeConnection                  // the connection, or the attempt to open one
)

// String names the scope.
func (s Scope) String() string {
	switch s {
	case ScopeLink:
		return "link"
	case ScopeSession:
		return "session"
	case ScopeConnection:
		return "connection"
	default:
		return fmt.Sprintf("scope(%d)", uint8(s))
	}
}

// Error is a failure that another attempt may cure: a lost link or connection,
// a broker that is away or refuses for now. What nobody's patience cures is a
// *transport.FatalError.
type Error struct {
	Op    string // what was tried: "receive from \"orders\" at broker:5672"
	Scope Scope  // what is gone
	Err   error  // the client's or broker's own error
}

// Error names the operation, the scope and the cause.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s lost: %v", e.Op, e.Scope, e.Err) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

func isFatal(err error) bool {
	var f *transport.FatalError
	return errors.As(err, &f)
}

// classify is the one place that decides what another attempt may cure. It
// gives nil, a *transport.FatalError or an *Error; an error that it gave before
// stays as it is.
func classify(op string, err error) error {
	if err == nil {
		return nil
	}
	var done *Error
	if isFatal(err) || errors.As(err, &done) {
		return err
	}
	if fix := fatalFix(err); fix != "" {
		return &transport.FatalError{Op: op, Fix: fix, Err: err}
	}
	return &Error{Op: op, Scope: scopeOf(err), Err: err}
}

func scopeOf(err error) Scope {
	var (
		session *goamqp.SessionError
		link    *goamqp.LinkError
		conn    *goamqp.ConnError
		remote  *goamqp.Error
	)
	switch {
	case errors.As(err, &conn), errors.Is(err, errEnded), errors.Is(err, errClient):
		return ScopeConnection
	case errors.As(err, &session):
		return ScopeSession
	case errors.As(err, &link), errors.Is(err, errDetached), errors.Is(err, errSilent), errors.Is(err, errClosing):
		return ScopeLink
	case errors.As(err, &remote): // a refused attach has no type of its own
		return ScopeLink
	default:
		return ScopeConnection
	}
}

// fatalFix says what to change, or "" when trying again may help.
func fatalFix(err error) string {
	if fix := tlsFix(err); fix != "" {
		return fix
	}
	if errors.Is(err, errNotAMQP) {
		return notAMQPFix
	}
	var remote *goamqp.Error
	if errors.As(err, &remote) {
		return remoteFix(remote)
	}
	return handshakeFix(err)
}

func tlsFix(err error) string {
	var (
		verify *tls.CertificateVerificationError
		record tls.RecordHeaderError
		alert  tls.AlertError
		host   x509.HostnameError
	)
	switch {
	case errors.Is(err, errPlainPort):
		return "use an amqp:// url, or the broker's TLS port"
	case errors.Is(err, errTLSPort):
		return "use an amqps:// url, or the broker's plain port"
	case errors.As(err, &host):
		return "dial a name that the broker's certificate holds, or set TLS.ServerName to one"
	case errors.As(err, &verify):
		return "put the CA that signed the broker's certificate into TLS.RootCAs"
	case errors.As(err, &record):
		return "the port doesn't speak TLS: use an amqp:// url, or the broker's TLS port"
	case errors.As(err, &alert):
		return "the broker refused the TLS handshake: check TLS.Certificates and the TLS versions on both sides"
	default:
		return ""
	}
}

// remoteFix judges what the broker said. AMQP's conditions are coarse, so a few
// of Artemis' message codes are looked at, which are stable, not its wording.
func remoteFix(e *goamqp.Error) string {
	d := e.Description
	switch e.Condition {
	case goamqp.ErrCondUnauthorizedAccess:
		return "give the user the permission that the broker names, or log in as another"
	case goamqp.ErrCondNotFound:
		return "create the queue or address, correct its name, or let the broker create it on demand"
	case goamqp.ErrCondInvalidField:
		return "correct the selector or the link's properties"
	case goamqp.ErrCondIllegalState:
		return "the address has the other routing type: use Queue for anycast, Address (with \"address::queue\") for a topic's subscription"
	case goamqp.ErrCondNotImplemented:
		return "the broker lacks a feature that was asked for: leave out selector, capabilities or properties"
	case goamqp.ErrCondNotAllowed:
		return "the broker forbids this attachment: check the name, the virtual host and the user's rights"
	case goamqp.ErrCondInternalError:
		// Artemis says so when the user may not create what doesn't exist yet.
		if strings.Contains(d, "AMQ229032") || strings.Contains(d, "AMQ229213") || strings.Contains(d, "AMQ119032") {
			return "the queue doesn't exist and the user may not create it: create it, or grant createAddress and createDurableQueue"
		}
	}
	return ""
}

// handshakeFix judges go-amqp's errors of opening a connection, which have no
// types: their text is all there is. The tests against a real broker hold them
// in place.
func handshakeFix(err error) string {
	s := err.Error()
	switch {
	case strings.Contains(s, "auth failed with code 0x1"):
		return "check user name and password in the url"
	case strings.Contains(s, "no supported auth mechanism"):
		return "the broker offers none of the ways to log in that were tried: put a user into the url, or set SASL"
	case strings.Contains(s, "unexpected protocol header 0x3"):
		return "the broker wants SASL: don't use SASLNone"
	case strings.Contains(s, "unexpected protocol header 0x0"):
		return "the broker has no SASL layer: set SASL to SASLNone"
	case strings.Contains(s, "unexpected protocol \"") || strings.Contains(s, "unexpected protocol version"):
		return notAMQPFix
	}
	return ""
}

const notAMQPFix = "check host and port, and that the broker has its AMQP 1.0 protocol on"
