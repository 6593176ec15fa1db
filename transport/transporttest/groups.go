package transporttest

var groupScenarios = []scenario{
	{name: "one holder", run: oneHolder},
	{name: "other groups go on", run: otherGroupsGoOn},
	{name: "handed over at close", run: groupHandedOver},
}

func (f *fixture) needGroups() {
	f.Helper()
	f.skipUnless(f.traits.GroupsExclusive, "groups aren't exclusive (Traits.GroupsExclusive)")
}

// oneHolder: while a delivery of a group is out, nobody else gets any of it.
func oneHolder(f *fixture) {
	f.needGroups()
	want := f.publish(3, "g")
	a := f.open(1)
	head := a.receive(1)
	b := f.open(10)
	b.none()
	a.accept(head...)
	f.want(append(head, b.drain(2)...), want)
	a.close()
	b.close()
	f.empty()
}

// otherGroupsGoOn: a group that is out holds no other up.
func otherGroupsGoOn(f *fixture) {
	f.needGroups()
	f.publish(5, "g")
	a := f.open(1)
	a.receive(1)
	want := f.publish(6, "h", "i", "j")
	b := f.open(10)
	f.want(b.drain(6), want)
	b.none()
	a.close()
	b.close()
}

// groupHandedOver: when its holder closes, another consumer gets the whole group
// from its first message.
func groupHandedOver(f *fixture) {
	f.needGroups()
	want := f.publish(5, "g")
	a := f.open(2)
	a.receive(f.several(2))
	b := f.open(10)
	b.none()
	a.close()
	f.want(b.drain(5), want)
	b.close()
	f.empty()
}
