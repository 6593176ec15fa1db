package transporttest

import (
	"sync"

	"github.com/keylanes/keylanes/transport"
)

var orderScenarios = []scenario{
	{name: "one key", run: oneKey},
	{name: "many keys", run: manyKeys},
	{name: "credit of one", run: creditOfOne},
	{name: "across epochs", run: acrossEpochs},
	{name: "while publishing", run: whilePublishing},
	{name: "keyless", run: keyless},
}

// oneKey: the messages of a key come in the order of publishing.
func oneKey(f *fixture) {
	want := f.publish(40, "k")
	c := f.open(40)
	f.want(c.drain(40), want)
	c.close()
	f.empty()
}

// manyKeys: so do those of interleaved keys, each key by itself; and Key, Group
// and Sequence say where they belong.
func manyKeys(f *fixture) {
	want := f.publish(80, keys(8)...)
	c := f.open(80)
	ds := c.drain(80)
	f.want(ds, want)
	last := map[string]*transport.Delivery{}
	for _, d := range ds {
		if want, _, _ := cutBody(d); d.Key != want {
			f.Errorf("%q came with key %q, want %q", d.Body, d.Key, want)
		}
		if f.traits.GroupsExclusive && d.Group == "" {
			f.Errorf("%q belongs to no group, though groups are exclusive", d.Body)
		}
		if p := last[d.Group]; p != nil && d.Sequence != "" && f.exact && !sequenceLess(p.Sequence, d.Sequence) {
			f.Errorf("%q has sequence %s, %q before it %s", d.Body, d.Sequence, p.Body, p.Sequence)
		}
		last[d.Group] = d
	}
	c.close()
}

// sequenceLess compares decimal numbers of any length.
func sequenceLess(a, b string) bool {
	if len(a) != len(b) {
		return len(a) < len(b)
	}
	return a < b
}

// creditOfOne: order doesn't need credit for more than one.
func creditOfOne(f *fixture) {
	want := f.publish(10, "k")
	c := f.open(0)
	var ds []*transport.Delivery
	for range 10 {
		c.grant(1)
		ds = append(ds, c.drain(1)...)
	}
	f.want(ds, want)
	c.close()
}

// acrossEpochs: each epoch begins with what the one before left.
func acrossEpochs(f *fixture) {
	want := f.publish(12, "k")
	var done []*transport.Delivery
	n := f.several(4)
	for len(done) < len(want) {
		c := f.open(n)
		ds := c.receive(min(n, len(want)-len(done)))
		f.order(ds, len(done))
		half := ds[:(len(ds)+1)/2]
		c.accept(half...)
		done = append(done, half...)
		c.close()
	}
	f.want(done, want)
	f.empty()
}

// order fails unless ds, all of one key, are numbered on from first.
func (f *fixture) order(ds []*transport.Delivery, first int) {
	f.Helper()
	for i, d := range ds {
		if f.exact && number(d) != first+i {
			f.Fatalf("received %v, want number %d first", bodies(ds), first)
		}
	}
}

// whilePublishing: order holds for a consumer that is ahead of the publisher.
func whilePublishing(f *fixture) {
	c := f.open(30)
	var want []string
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 10 {
			want = append(want, f.publish(3, "a", "b")...)
		}
	})
	defer wg.Wait()
	ds := c.drain(30)
	wg.Wait()
	f.want(ds, want)
	c.close()
}

// keyless: messages without a key come too, without a group.
func keyless(f *fixture) {
	f.skipUnless(!f.h.NoKeyless, "the queue takes no message without a key (Harness.NoKeyless)")
	want := f.publish(10, "", "k")
	c := f.open(10)
	ds := c.drain(10)
	for _, d := range ds {
		if k, _, _ := cutBody(d); d.Key != k {
			f.Errorf("%q came with key %q", d.Body, d.Key)
		}
	}
	got := bodies(ds)
	if !f.traits.Ordered {
		f.wantBodies(got, want)
	} else {
		f.want(withKey(ds, "k"), filter(want, "k"))
		f.exact = false // keyless messages have no order
		f.wantBodies(got, want)
	}
	c.close()
}
