package transport

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestSlabGivesZeroDeliveries(t *testing.T) {
	t.Parallel()
	var s Slab
	lease, other := NewLease(), NewLease()
	seen := map[*Delivery]bool{}
	for i := range 3*slabSize + 1 {
		l := lease
		if i%2 == 1 {
			l = other
		}
		d := s.New(l, i)
		if seen[d] {
			t.Fatalf("delivery %d was given out before", i)
		}
		seen[d] = true
		if LeaseOf(d) != l || HandleOf(d) != i {
			t.Fatalf("delivery %d: lease %p handle %v, want %p and %d", i, LeaseOf(d), HandleOf(d), l, i)
		}
		if d.Count != -1 {
			t.Errorf("delivery %d: Count = %d, want -1, unknown", i, d.Count)
		}
		if d.ID != "" || d.Key != "" || d.Body != nil || d.Headers != nil || d.Group != "" || d.Epoch != 0 || d.Sequence != "" {
			t.Errorf("delivery %d isn't zero: %v", i, d)
		}
		d.ID, d.Body = "used", []byte("used") // must not show in a later one
	}
}

func TestSlabRefusesNilLease(t *testing.T) {
	t.Parallel()
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "lease is nil") {
			t.Errorf("panic = %q, want one that says that the lease is nil", text)
		}
	}()
	new(Slab).New(nil, nil)
}

// One allocation serves a whole slab.
func TestAllocSlab(t *testing.T) {
	var s Slab
	lease := NewLease()
	n := testing.AllocsPerRun(100, func() {
		for range slabSize {
			s.New(lease, lease)
		}
	})
	if n > 1 {
		t.Errorf("%v allocations for %d deliveries, want 1", n, slabSize)
	}
}

func TestOutcomeKindNames(t *testing.T) {
	t.Parallel()
	for k, want := range map[OutcomeKind]string{
		Accept: "accept", Abandon: "abandon", Return: "return", Reject: "reject", 0: "outcome(0)", 9: "outcome(9)",
	} {
		if got := k.String(); got != want {
			t.Errorf("name = %q, want %q", got, want)
		}
	}
}

// The zero outcome must never be taken for an accept.
func TestZeroOutcomeIsNone(t *testing.T) {
	t.Parallel()
	for _, k := range []OutcomeKind{Accept, Abandon, Return, Reject} {
		if (Outcome{}).Kind == k {
			t.Errorf("the zero outcome is %v", k)
		}
	}
}

// Neither log handlers nor fmt may print what users put into messages: payload,
// header names and values, the broker client's own message.
func TestNothingPrintsAPayload(t *testing.T) {
	t.Parallel()
	const secret = "swordfish"
	var s Slab
	d := s.New(NewLease(), secret)
	d.Message = Message{
		ID: "id-7", Key: "key-7", Body: []byte(secret),
		Headers: map[string]any{secret: secret}, Native: secret,
	}
	d.Count, d.Epoch = 3, 4
	for name, v := range map[string]any{
		"delivery": d, "message": d.Message, "message pointer": &d.Message,
		"deliveries": []*Delivery{d}, "nil delivery": (*Delivery)(nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
				if name != "deliveries" { // a handler resolves a LogValuer, not a slice of them
					slog.New(h).Info("handling", "value", v)
				}
			}
			for _, verb := range []string{"%v", "%+v", "%s"} {
				fmt.Fprintf(&out, verb+"\n", v)
			}
			// Bytes print as text, as numbers, or in base 64.
			for _, leak := range []string{secret, "115 119 111", "c3dvcmRmaXNo"} {
				if strings.Contains(out.String(), leak) {
					t.Errorf("the payload shows:\n%s", out.String())
				}
			}
			if name == "delivery" && strings.Count(out.String(), "id-7") != 5 {
				t.Errorf("the id doesn't show each time:\n%s", out.String())
			}
		})
	}
}

func TestLogValueNamesTheDelivery(t *testing.T) {
	t.Parallel()
	d := new(Slab).New(NewLease(), nil)
	d.ID, d.Key, d.Body, d.Count, d.Epoch = "id-7", "key-7", make([]byte, 9), 3, 4
	if got, want := d.LogValue().String(), "[id=id-7 key=key-7 count=3 epoch=4 bytes=9]"; got != want {
		t.Errorf("LogValue = %s, want %s", got, want)
	}
	if got, want := d.String(), `delivery id="id-7" key="key-7" count=3 epoch=4 (9 bytes)`; got != want {
		t.Errorf("String = %s, want %s", got, want)
	}
	if got, want := d.Message.LogValue().String(), "[id=id-7 key=key-7 bytes=9]"; got != want {
		t.Errorf("message LogValue = %s, want %s", got, want)
	}
	if got, want := (*Delivery)(nil).String(), "delivery <nil>"; got != want {
		t.Errorf("String of nil = %s, want %s", got, want)
	}
}
