package amqp_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/amqp"
)

// What the check finds, on a broker, for queues that exist and that don't yet.
func TestCheck(t *testing.T) {
	t.Parallel()
	broker := brokerURL(t)
	bad := queueName(t) + ".bad"
	config := fmt.Sprintf(`{"name":%[1]q,"address":%[1]q,"routing-type":"ANYCAST","group-rebalance":true,"purge-on-no-consumers":true,"auto-create-address":true}`, bad)
	manage(t, broker, "broker", "createQueue", fmt.Sprintf(`[%q, false]`, config))
	made := queueName(t) + ".made"
	publish(t, broker, made, nil, numbered(1)...)
	attempts := strings.Replace(queueName(t), "app.", "app.dl3.", 1)
	delayed := queueName(t) + ".delayed"
	settings := `{"redeliveryDelay":500,"deadLetterAddress":"","defaultGroupRebalance":true,"defaultLastValueQueue":true}`
	manage(t, broker, "broker", "addAddressSettings", fmt.Sprintf(`[%q, %q]`, delayed, settings))
	for name, want := range map[string]string{
		made:                      "",
		queueName(t) + ".not.yet": "",
		"app.topic.x::" + made:    "",
		bad:                       "default-group-rebalance=true default-purge-on-no-consumers=true",
		attempts:                  "max-delivery-attempts=3",
		delayed:                   "redelivery-delay=500 dead-letter-address=not set default-group-rebalance=true default-last-value-queue=true",
	} {
		fs, err := amqp.Check(testCtx(t), broker, name, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range fs {
			got = append(got, f.Setting+"="+f.Value)
			if f.Want == "" || f.Why == "" || !strings.HasPrefix(f.String(), f.Setting+" is "+f.Value) {
				t.Errorf("says %q", f)
			}
		}
		if g := strings.Join(got, " "); g != want {
			t.Errorf("%s: found %q, want %q", name, g, want)
		}
	}
}

// A check that can't be made says why.
func TestCheckRefused(t *testing.T) {
	t.Parallel()
	broker := brokerURL(t)
	var fatal *transport.FatalError
	weak := strings.Replace(broker, "admin:admin", "none:none", 1)
	if _, err := amqp.Check(testCtx(t), weak, "app.q", nil); !errors.As(err, &fatal) || fatal.Fix == "" {
		t.Errorf("without permission: %v", err)
	}
	var bad *transport.OptionError
	if _, err := amqp.Check(testCtx(t), broker, "", nil); !errors.As(err, &bad) {
		t.Errorf("without a name: %v", err)
	}
}
