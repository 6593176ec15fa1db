// Package sqsfake is an SQS endpoint for tests. Server is a model, in memory, of
// what AWS documents: also where the emulators differ (expired handles, the 12
// hours, stale deletes, attempt ids). Wire stands between an SDK client and any
// endpoint, this one or a real one, and breaks requests and replies as a script
// says.
//
// Both speak HTTP but need no socket: they are the HTTP client of an SDK client,
// so a whole test can run in virtual time (testing/synctest).
package sqsfake
