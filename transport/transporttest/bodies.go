package transporttest

import (
	"strings"

	"github.com/keylanes/keylanes/transport"
)

// cutBody gives the key and number that a body was made of.
func cutBody(d *transport.Delivery) (key, number string, ok bool) {
	return strings.Cut(string(d.Body), "#")
}

// withKey gives those of ds that have the key.
func withKey(ds []*transport.Delivery, key string) []*transport.Delivery {
	var some []*transport.Delivery
	for _, d := range ds {
		if d.Key == key {
			some = append(some, d)
		}
	}
	return some
}

// filter gives those of bodies that have the key.
func filter(bodies []string, key string) []string {
	var some []string
	for _, b := range bodies {
		if strings.HasPrefix(b, key+"#") {
			some = append(some, b)
		}
	}
	return some
}

// without gives those of bodies that aren't among ds.
func without(bodies []string, ds []*transport.Delivery) []string {
	gone := map[string]bool{}
	for _, d := range ds {
		gone[string(d.Body)] = true
	}
	var left []string
	for _, b := range bodies {
		if !gone[b] {
			left = append(left, b)
		}
	}
	return left
}
