package amqp_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

// as gives the broker's url for another user.
func as(t *testing.T, broker, user, password string) string {
	t.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	if user == "" {
		u.User = nil
	}
	return u.String()
}

func roots(t *testing.T) *tls.Config {
	t.Helper()
	pem, err := os.ReadFile(needEnv(t, "KEYLANES_AMQP_CA"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate in KEYLANES_AMQP_CA")
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// What the user has to mend is a FatalError that names the fix, within 3 s of
// the start.
func TestFatalErrors(t *testing.T) {
	t.Parallel()
	broker := brokerURL(t)
	plain, _ := url.Parse(broker)
	tlsURL := needEnv(t, "KEYLANES_AMQPS_URL")
	secure, _ := url.Parse(tlsURL)
	wrongName := roots(t)
	wrongName.ServerName = "elsewhere.example"
	topic := "app.topic." + strings.ToLower(queueName(t))
	for name, c := range map[string]struct {
		url, queue string
		o          *amqp.Options
		publish    bool
		fix        string
	}{
		"wrong password":      {url: as(t, broker, "admin", "wrong"), fix: "user name and password"},
		"unknown user":        {url: as(t, broker, "nobody", "x"), fix: "user name and password"},
		"anonymous":           {url: as(t, broker, "", ""), fix: "permission"},
		"no SASL":             {url: broker, o: &amqp.Options{Connection: amqp.Connection{SASL: amqp.SASLNone}}, fix: "SASLNone"},
		"no such queue":       {url: broker, queue: "app.noauto.missing", fix: "create the queue"},
		"no such address":     {url: broker, queue: "app.noauto.missing", publish: true, fix: "create the queue"},
		"may not consume":     {url: as(t, broker, "none", "none"), fix: "permission"},
		"may not create":      {url: as(t, broker, "ro", "ro"), fix: "permission"},
		"may not send":        {url: as(t, broker, "ro", "ro"), publish: true, fix: "createAddress"},
		"wrong routing type":  {url: broker, queue: topic, fix: "routing type"},
		"bad selector":        {url: broker, o: &amqp.Options{Selector: "this is ( not one"}, fix: "selector"},
		"unknown authority":   {url: tlsURL, fix: "RootCAs"},
		"wrong name":          {url: tlsURL, o: &amqp.Options{Connection: amqp.Connection{TLS: wrongName}}, fix: "ServerName"},
		"TLS to a plain port": {url: "amqps://admin:admin@" + plain.Host, fix: "amqp:// url"},
		"plain to a TLS port": {url: "amqp://admin:admin@" + secure.Host, fix: "amqps:// url"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := c.queue
			if queue == "" {
				queue = queueName(t)
			}
			if name == "may not consume" {
				publish(t, broker, queue, nil, transport.Message{})
			}
			if name == "wrong routing type" {
				p, err := amqp.Publisher(broker, queue, &amqp.PublisherOptions{Capabilities: []string{"topic"}})
				if err != nil {
					t.Fatal(err)
				}
				if err := p.Publish(testCtx(t), transport.Message{}); err != nil {
					t.Fatal(err)
				}
				defer p.Close(testCtx(t))
			}
			began := time.Now()
			err := attempt(t, c.url, queue, c.o, c.publish)
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
			var f *transport.FatalError
			if !errors.As(err, &f) {
				t.Fatalf("got %T: %v", err, err)
			}
			if !strings.Contains(f.Fix, c.fix) {
				t.Errorf("the fix of %q is %q, without %q", f.Err, f.Fix, c.fix)
			}
			if strings.Contains(err.Error(), "wrong@") || strings.Contains(err.Error(), ":admin@") {
				t.Errorf("the password shows: %v", err)
			}
		})
	}
}

// attempt opens a source, or publishes, and gives the error.
func attempt(t *testing.T, url, queue string, o *amqp.Options, publish bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if publish {
		p, err := amqp.Publisher(url, queue, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = p.Publish(ctx, transport.Message{Body: []byte("x")})
		if cerr := p.Close(ctx); cerr != nil {
			t.Error(cerr)
		}
		return err
	}
	src, err := amqp.Queue(url, queue, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := src.Open(ctx, newSink())
	if err == nil {
		closeNow(t, r)
	}
	return err
}

func TestTLS(t *testing.T) {
	t.Parallel()
	secure, queue := needEnv(t, "KEYLANES_AMQPS_URL"), queueName(t)
	conn := amqp.Connection{TLS: roots(t)}
	publish(t, secure, queue, &amqp.PublisherOptions{Connection: conn}, numbered(500)...)
	src, err := amqp.Queue(secure, queue, &amqp.Options{Connection: conn})
	if err != nil {
		t.Fatal(err)
	}
	s := newSink()
	r, err := src.Open(testCtx(t), s)
	if err != nil {
		t.Fatal(err)
	}
	r.Grant(500)
	accept(t, r, s, receive(t, r, 500)...)
	closeNow(t, r)
}

// A refused dial and a broker that never answers may be cured by time.
func TestPassingErrors(t *testing.T) {
	t.Parallel()
	broker := brokerURL(t)
	_, proxied := through(t, broker)
	hole, holed := through(t, broker)
	hole.BlackHole(3)
	for name, u := range map[string]string{"refused": "amqp://127.0.0.1:1", "silent": holed} {
		t.Run(name, func(t *testing.T) {
			o := &amqp.Options{Connection: amqp.Connection{OpenTimeout: 2500 * time.Millisecond}}
			err := attempt(t, u, "app.q", o, false)
			var e *amqp.Error
			if !errors.As(err, &e) || e.Scope != amqp.ScopeConnection {
				t.Errorf("got %T: %v", err, err)
			}
			// The backup is tried in turn.
			o.URLs = []string{proxied}
			if err := attempt(t, u, queueName(t), o, false); err != nil {
				t.Errorf("with a backup: %v", err)
			}
		})
	}
}
