package amqp_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

// optionError checks that err names the field, and gives it.
func optionError(t *testing.T, err error, field string) {
	t.Helper()
	var oe *transport.OptionError
	if !errors.As(err, &oe) {
		t.Fatalf("got %T: %v", err, err)
	}
	if oe.Field != field {
		t.Errorf("the field is %q, not %q (%v)", oe.Field, field, err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the password shows: %v", err)
	}
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"amqp://h", "amqp://h:5672", "amqp://u:p%40ss@h:1/", "amqps://[::1]:65535", "amqp://u@h?hostname=vhost%3Aa",
	} {
		if _, err := amqp.Queue(good, "q", nil); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "h:5672", "http://u:secret@h", "amqp://", "amqp://:5672", "amqp://h:0", "amqp://h:65536", "amqp://h:x",
		"amqp://u:secret@h/queue", "amqp://u:secret@h?vhost=x", "amqp://u:secret@h?hostname=", "amqp://h?hostname=a&hostname=b",
		"amqp://u:secret@h#f", "amqp:h", "amqp://:secret@h", "amqp://u:secret%zz@h", "amqp://h?hostname=%zz",
	} {
		_, err := amqp.Queue(bad, "q", nil)
		if err == nil {
			t.Errorf("%q was taken", bad)
			continue
		}
		optionError(t, err, "url")
	}
	_, err := amqp.Queue("amqp://h", "q", &amqp.Options{Connection: amqp.Connection{URLs: []string{"amqp://h", "nonsense"}}})
	optionError(t, err, "Options.URLs[1]")
}

func TestOptionBounds(t *testing.T) {
	t.Parallel()
	conn := func(c amqp.Connection) *amqp.Options { return &amqp.Options{Connection: c} }
	for _, c := range []struct {
		field string // "" when it is good
		o     *amqp.Options
	}{
		{"", conn(amqp.Connection{IdleTimeout: 500 * time.Millisecond})},
		{"Options.IdleTimeout", conn(amqp.Connection{IdleTimeout: 500*time.Millisecond - 1})},
		{"", conn(amqp.Connection{IdleTimeout: 10 * time.Minute})},
		{"Options.IdleTimeout", conn(amqp.Connection{IdleTimeout: 10*time.Minute + 1})},
		{"", conn(amqp.Connection{WriteTimeout: 100 * time.Millisecond})},
		{"Options.WriteTimeout", conn(amqp.Connection{WriteTimeout: 100*time.Millisecond - 1})},
		{"", conn(amqp.Connection{WriteTimeout: time.Minute})},
		{"Options.WriteTimeout", conn(amqp.Connection{WriteTimeout: time.Minute + 1})},
		{"", conn(amqp.Connection{OpenTimeout: 100 * time.Millisecond})},
		{"Options.OpenTimeout", conn(amqp.Connection{OpenTimeout: -1})},
		{"", conn(amqp.Connection{OpenTimeout: 5 * time.Minute})},
		{"Options.OpenTimeout", conn(amqp.Connection{OpenTimeout: 5*time.Minute + 1})},
		{"Options.SASL", conn(amqp.Connection{SASL: amqp.SASLNone + 1})},
		{"Options.SASL", conn(amqp.Connection{SASL: amqp.SASLExternal})}, // the url is plain
		{"", conn(amqp.Connection{HostName: strings.Repeat("h", 255)})},
		{"Options.HostName", conn(amqp.Connection{HostName: strings.Repeat("h", 256)})},
		{"Options.ContainerID", conn(amqp.Connection{ContainerID: "\xff"})},
		{"", conn(amqp.Connection{URLs: make16()})},
		{"Options.URLs", conn(amqp.Connection{URLs: append(make16(), "amqp://h")})},
		{"", &amqp.Options{SilentAfter: -1}},
		{"", &amqp.Options{SilentAfter: 100 * time.Millisecond}},
		{"Options.SilentAfter", &amqp.Options{SilentAfter: 100*time.Millisecond - 1}},
		{"Options.Capabilities[1]", &amqp.Options{Capabilities: []string{"queue", ""}}},
		{"Options.Capabilities[0]", &amqp.Options{Capabilities: []string{"schlüssel"}}},
		{"Options.Selector", &amqp.Options{Selector: "a = '\xff'"}},
		{"Options.LinkProperties", &amqp.Options{LinkProperties: map[string]any{"": 1}}},
		{"Options.LinkProperties", &amqp.Options{LinkProperties: map[string]any{"x": struct{}{}}}},
		{"", &amqp.Options{LinkProperties: map[string]any{"priority": int32(5)}}},
	} {
		_, err := amqp.Queue("amqp://h", "q", c.o)
		if c.field == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		optionError(t, err, c.field)
	}
	for name, want := range map[string]bool{"": false, "q": true, strings.Repeat("q", 4096): true, strings.Repeat("q", 4097): false, "\xff": false} {
		_, err := amqp.Address("amqp://h", name, nil)
		if want != (err == nil) {
			t.Errorf("name of %d bytes: %v", len(name), err)
		}
		if !want {
			optionError(t, err, "name")
		}
	}
}

func make16() []string {
	us := make([]string, 16)
	for i := range us {
		us[i] = "amqp://h"
	}
	return us
}

func TestPublisherBounds(t *testing.T) {
	t.Parallel()
	p := func(n uint8) *uint8 { return &n }
	for _, c := range []struct {
		field string
		o     amqp.PublisherOptions
	}{
		{"", amqp.PublisherOptions{Window: 1}},
		{"PublisherOptions.Window", amqp.PublisherOptions{Window: -1}},
		{"", amqp.PublisherOptions{Window: 100_000}},
		{"PublisherOptions.Window", amqp.PublisherOptions{Window: 100_001}},
		{"", amqp.PublisherOptions{Priority: p(9)}},
		{"PublisherOptions.Priority", amqp.PublisherOptions{Priority: p(10)}},
		{"", amqp.PublisherOptions{RetryFor: time.Millisecond}},
		{"PublisherOptions.RetryFor", amqp.PublisherOptions{RetryFor: time.Millisecond - 1}},
		{"", amqp.PublisherOptions{RetryFor: time.Hour}},
		{"PublisherOptions.RetryFor", amqp.PublisherOptions{RetryFor: time.Hour + 1}},
		{"", amqp.PublisherOptions{RetryFor: -1}},
		{"", amqp.PublisherOptions{Capabilities: []string{}}},
		{"PublisherOptions.Capabilities[0]", amqp.PublisherOptions{Capabilities: []string{""}}},
		{"PublisherOptions.IdleTimeout", amqp.PublisherOptions{Connection: amqp.Connection{IdleTimeout: 1}}},
	} {
		_, err := amqp.Publisher("amqp://h", "q", &c.o)
		if c.field == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		optionError(t, err, c.field)
	}
	_, err := amqp.Publisher("x", "q", nil)
	optionError(t, err, "url")
	_, err = amqp.Publisher("amqp://h", "", nil)
	optionError(t, err, "name")
}

func TestTraits(t *testing.T) {
	t.Parallel()
	src, err := amqp.Queue("amqp://h", "q", nil)
	if err != nil {
		t.Fatal(err)
	}
	tr := src.Traits()
	if !tr.Ordered || tr.GroupsExclusive || tr.LeaseExpires || tr.CountsOnReturn || tr.AbandonDelay ||
		tr.Abandon != transport.AbandonReset || tr.DeadLetter != transport.DeadLetterNative || tr.MaxReceive != 64 {
		t.Errorf("%+v", tr)
	}
}
