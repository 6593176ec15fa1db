package amqp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	goamqp "github.com/Azure/go-amqp"
)

// link is a connection with one session on it, and at most one link of ours.
type link struct {
	wire     *wire
	conn     *goamqp.Conn
	session  *goamqp.Session
	receiver *goamqp.Receiver
	sender   *goamqp.Sender
}

// hook lets the caller into the wire before it starts.
type hook func(w *wire)

// dial connects to one endpoint and begins a session.
func (c *Connection) dial(ctx context.Context, e endpoint, hooked hook) (*link, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.OpenTimeout, errOpenTimeout)
	defer cancel()
	raw, err := c.dialSocket(ctx, e)
	if err != nil {
		return nil, err
	}
	w := newWire(raw, c.WriteTimeout, c.IdleTimeout)
	if hooked != nil {
		hooked(w)
	}
	w.start()
	conn, err := c.open(ctx, e, w)
	if err != nil {
		err = because(ctx, err)
		w.abort(err)
		_ = w.Close()
		return nil, err
	}
	l := &link{wire: w, conn: conn}
	// A session whose begin isn't answered in time can't be got rid of without
	// the connection, so both go together.
	if l.session, err = conn.NewSession(ctx, nil); err != nil {
		l.abort(err)
		return nil, fmt.Errorf("begin a session: %w", because(ctx, err))
	}
	return l, nil
}

var (
	errOpenTimeout      = errors.New("the broker didn't answer within OpenTimeout")
	errHandshakeTimeout = errors.New("the port didn't answer the handshake")
)

// because names the reason why ctx ended, where that is what err says.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return context.Cause(ctx)
	}
	return err
}

// handshakeTimeout bounds the first answer of a port: a plain port that hears
// TLS, and the other way round, often says nothing at all.
const handshakeTimeout = 2 * time.Second

func (c *Connection) dialSocket(ctx context.Context, e endpoint) (net.Conn, error) {
	d := net.Dialer{Timeout: c.OpenTimeout}
	raw, err := d.DialContext(ctx, "tcp", e.address)
	if err != nil || !e.tls {
		return raw, err
	}
	cfg := c.TLS.Clone()
	if cfg == nil {
		cfg = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if cfg.ServerName == "" {
		cfg.ServerName = e.host
	}
	hs, cancel := context.WithTimeoutCause(ctx, handshakeTimeout, errHandshakeTimeout)
	defer cancel()
	t := tls.Client(raw, cfg)
	if err := t.HandshakeContext(hs); err != nil {
		_ = raw.Close()
		if context.Cause(hs) == errHandshakeTimeout && plainPort(ctx, e.address) {
			return nil, errPlainPort
		}
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return t, nil
}

// open negotiates SASL and the connection. Silence on a plain url is looked
// into: it may be a TLS port.
func (c *Connection) open(ctx context.Context, e endpoint, w *wire) (*goamqp.Conn, error) {
	host := c.HostName
	if e.hostName != "" {
		host = e.hostName
	}
	if host == "" {
		host = e.host
	}
	opts := &goamqp.ConnOptions{
		ContainerID:  c.ContainerID,
		HostName:     host,
		IdleTimeout:  c.IdleTimeout,
		SASLType:     c.sasl(e),
		MaxFrameSize: maxFrame,
		Properties:   map[string]any{"product": "keylanes"},
	}
	if !e.tls {
		stop := time.AfterFunc(handshakeTimeout, func() {
			if w.silent() && tlsPort(ctx, e.address) {
				w.abort(errTLSPort)
			}
		})
		defer stop.Stop()
	}
	conn, err := goamqp.NewConn(ctx, w, opts)
	if err != nil {
		if werr := w.failure(); werr != nil {
			err = werr
		}
		return nil, fmt.Errorf("open the connection: %w", err)
	}
	return conn, nil
}

func (c *Connection) sasl(e endpoint) goamqp.SASLType {
	switch {
	case c.SASL == SASLNone:
		return nil
	case c.SASL == SASLExternal:
		return goamqp.SASLTypeExternal("")
	case c.SASL == SASLAnonymous || e.user == "":
		return goamqp.SASLTypeAnonymous()
	default:
		return goamqp.SASLTypePlain(e.user, e.password)
	}
}

// abort ends everything at once and waits for what it owns.
func (l *link) abort(err error) {
	l.wire.abort(err)
	_ = l.conn.Close()
}

// close ends the link, then the session, then the connection, each in good
// order while ctx lasts. The end of the session is the barrier: when the broker
// has answered it, it has what was settled before. It reports whether it came
// so far.
func (l *link) close(ctx context.Context) error {
	err := l.closeLinks(ctx)
	if err == nil {
		err = l.session.Close(ctx)
	}
	if err != nil {
		l.abort(err)
		return err
	}
	// go-amqp's Close takes no context.
	stop := context.AfterFunc(ctx, func() { l.wire.abort(context.Cause(ctx)) })
	defer stop()
	_ = l.conn.Close() // the session has ended: nothing of ours depends on it
	return nil
}

func (l *link) closeLinks(ctx context.Context) error {
	var err error
	if l.receiver != nil {
		err = l.receiver.Close(ctx)
	}
	if l.sender != nil {
		err = l.sender.Close(ctx)
	}
	var gone *goamqp.LinkError
	if errors.As(err, &gone) && ctx.Err() == nil {
		return nil // the broker detached it before: the session can still end well
	}
	return err
}
