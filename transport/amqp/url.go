package amqp

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/keylanes/keylanes/transport"
)

// endpoint is one parsed url.
type endpoint struct {
	address        string // host:port
	host           string // as dialled
	tls            bool
	user, password string
	hostName       string // ?hostname=
}

const urlWant = "must look like amqp://user:password@host:5672 or amqps://…, with at most ?hostname=…"

// parseURL reads a broker's url. Its errors never show the password.
func parseURL(field, s string) (endpoint, error) {
	fail := func(why string) (endpoint, error) {
		return endpoint{}, &transport.OptionError{Field: field, Value: redact(s), Want: urlWant + ": " + why}
	}
	u, err := url.Parse(s)
	if err != nil {
		return fail("it doesn't parse (escape special characters of a password with %)")
	}
	var e endpoint
	port := "5672"
	switch u.Scheme {
	case "amqp":
	case "amqps":
		e.tls, port = true, "5671"
	default:
		return fail(fmt.Sprintf("the scheme is %q", u.Scheme))
	}
	if u.Opaque != "" || u.Fragment != "" {
		return fail("it has parts that don't belong")
	}
	if u.Path != "" && u.Path != "/" {
		return fail("it has a path: give the queue's name as the second argument")
	}
	if e.host = u.Hostname(); e.host == "" {
		return fail("the host is missing")
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return fail("the port isn't 1 to 65535")
		}
		port = p
	}
	e.address = net.JoinHostPort(e.host, port)
	if u.User != nil {
		e.user = u.User.Username()
		e.password, _ = u.User.Password()
		if e.user == "" {
			return fail("the user's name is empty")
		}
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fail("its query doesn't parse")
	}
	for k, vs := range q {
		if k != "hostname" || len(vs) != 1 || vs[0] == "" {
			return fail(fmt.Sprintf("the query has %q", k))
		}
		e.hostName = vs[0]
	}
	return e, nil
}

// redact cuts the user and password out of a url, one that doesn't parse
// included.
func redact(s string) string {
	i := strings.Index(s, "://")
	if i < 0 {
		i = 0
	} else {
		i += len("://")
	}
	if at := strings.LastIndexByte(s, '@'); at >= i {
		return s[:i] + "…" + s[at:]
	}
	return s
}
