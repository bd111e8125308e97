// Package docpage compares parts of pages of the documentation with the code that they describe.
package docpage

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Check compares what a file has between begin and end, which must both occur, with what the code says. With update, it writes that to the file.
func Check(t *testing.T, file, begin, end, want string, update bool) {
	t.Helper()
	text, err := os.ReadFile(file) //nolint:gosec // A test names it.
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), begin)
	got, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s lacks %q or %q", file, begin, end)
	}
	if update {
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s differs from the code; the flag -update of this test rewrites it (-code +page):\n%s", file, diff)
	}
}
