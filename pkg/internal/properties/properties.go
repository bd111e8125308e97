// Package properties has the properties of a package draw the same inputs in every run of its tests, so that each change is judged by itself.
package properties

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"pgregory.net/rapid"
)

// Run runs the tests of a package, and returns what to exit with. Other inputs are drawn with -rapid.seed and by the fuzz targets.
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

// Check is a test of a property with rapid's own search, at the same time as others.
func Check(f func(*rapid.T)) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		t.Parallel()
		rapid.Check(t, f)
	}
}
