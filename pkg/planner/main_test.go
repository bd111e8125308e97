package planner_test

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// TestMain has properties draw the same snapshots in every run, so that each change is judged by itself. Others are drawn by -rapid.seed and
// by the fuzz targets.
func TestMain(m *testing.M) {
	flag.Parse()
	if seed := flag.Lookup("rapid.seed"); seed.Value.String() == "0" {
		if err := seed.Value.Set("1"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	os.Exit(m.Run())
}
