package amqp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

var (
	errPlainPort = errors.New("the port speaks plain AMQP, not TLS")
	errTLSPort   = errors.New("the port speaks TLS, not plain AMQP")
)

// probeTimeout bounds a look at a port that didn't answer.
const probeTimeout = 800 * time.Millisecond

// plainPort reports whether the port answers a plain AMQP header. A port that
// hears the wrong protocol often waits for ever, as a broker that is stuck
// does; only an answer to the other protocol tells the two apart.
func plainPort(ctx context.Context, address string) bool {
	c, err := probe(ctx, address)
	if err != nil {
		return false
	}
	defer c.Close()
	if _, err := c.Write([]byte{'A', 'M', 'Q', 'P', 3, 1, 0, 0}); err != nil {
		return false
	}
	b := make([]byte, 4)
	n, _ := c.Read(b)
	return string(b[:n]) == "AMQP"
}

// tlsPort reports whether the port completes, or refuses in the words of, a TLS
// handshake.
func tlsPort(ctx context.Context, address string) bool {
	c, err := probe(ctx, address)
	if err != nil {
		return false
	}
	defer c.Close()
	// Nothing is sent over this connection; it only asks who answers.
	err = tls.Client(c, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}).HandshakeContext(ctx) //nolint:gosec
	var alert tls.AlertError
	return err == nil || errors.As(err, &alert)
}

func probe(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: probeTimeout}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return c, c.SetDeadline(time.Now().Add(probeTimeout))
}
