// Package await waits for what clusters do in their own time.
package await

import (
	"testing"
	"time"
)

// every is the time between two checks.
const every = 20 * time.Millisecond

// Nil calls check until it returns nil, and fails the test with its last error if that takes too long.
func Nil(t testing.TB, within time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(every)
	}
}
