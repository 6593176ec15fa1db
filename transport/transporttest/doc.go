// Package transporttest is the one conformance suite that every transport has
// to pass. It drives transport.Source, Receiver, Sink and Publisher directly,
// as the pump of a subscription would, and asks for what the Source's Traits
// claim and no more.
//
// A transport's own test supplies a Harness, which makes a queue for each
// scenario:
//
//	func TestConformance(t *testing.T) {
//		transporttest.Run(t, transporttest.Harness{
//			New: func(t testing.TB, need transporttest.Need) *transporttest.Queue {
//				name := newQueue(t, need) // and t.Cleanup to remove it
//				return &transporttest.Queue{Source: …, Publisher: …}
//			},
//			Lease: 2 * time.Second,
//		})
//	}
//
// Run is called from a test that isn't parallel itself: its first scenario looks
// for goroutines left over. The others are parallel, unless Harness.Serial.
//
// What can't be tried with a harness is skipped, and the skip says why. There is
// one file for each topic; a scenario's name is topic/name, as in -run.
package transporttest
