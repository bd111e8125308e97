package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestContributingNamesWhatExists fails when a file or a package that CONTRIBUTING.md sends people to has been moved.
func TestContributingNamesWhatExists(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile("`((?:pkg|cmd|test|tools|docs|charts|config)/[\\w./-]+)`").FindAllStringSubmatch(read(t, filepath.Join(root, "CONTRIBUTING.md")), -1)
	for _, m := range named {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("CONTRIBUTING.md names %s, which does not exist", m[1])
		}
	}
	if len(named) < 30 {
		t.Errorf("found %d names only", len(named))
	}
}
