// Package properties makes the property tests of a package draw the same inputs in every run, so that a change is judged on its own.
package properties

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"pgregory.net/rapid"
)

// Run runs the tests of a package, and returns the exit status. The flag -rapid.seed and the fuzz targets draw other inputs.
func Run(m *testing.M) int {
	flag.Parse()
	if seed := flag.Lookup("rapid.seed"); seed.Value.String() == "0" {
		if err := seed.Value.Set("1"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
	return m.Run()
}

// Check returns a parallel test of a property with rapid's own search.
func Check(f func(*rapid.T)) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		t.Parallel()
		rapid.Check(t, f)
	}
}
