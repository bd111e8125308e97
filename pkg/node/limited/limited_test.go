package limited_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"karve.sh/karve/pkg/node/limited"
)

func TestFileBeyondLimitIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	for size, refused := range map[int]bool{0: false, 1024: false, 1025: true, 1 << 20: true} {
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		data, err := limited.ReadFile(path, 1024)
		if refused != (err != nil) || err == nil && len(data) != size || err != nil && !strings.Contains(err.Error(), "larger than 1 KiB") {
			t.Errorf("a file of %d bytes: %d bytes, %v", size, len(data), err)
		}
	}
	if _, err := limited.ReadFile(path+"-not-there", 1024); !os.IsNotExist(err) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := limited.ReadFile("/dev/zero", 1024); err == nil {
		t.Error("an endless file is read")
	}
}

// bomb is a document of less than 1 MiB whose aliases stand for many GiB.
func bomb() string {
	return "version: v1\nlong: &long " + strings.Repeat("a", 400_000) + "\nall: [" + strings.Repeat("*long,", 100_000) + "]\n"
}

func TestYAMLWithTooMuchBehindItsAliasesIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text    string
		refused bool
	}{
		"a long text, often":  {bomb(), true},
		"a few aliases":       {"a: &a {b: c}\nd: *a\ne: *a\n", false},
		"no aliases":          {strings.Repeat("- a\n", 200_000), false},
		"nothing":             {"", false},
		"something not YAML":  {"[", false},
		"an alias of itself":  {"a: &a [*a]", false},
		"a merge of mappings": {"a: &a {b: c}\nd: {<<: *a}\n", false},
	} {
		if err := limited.YAML([]byte(c.text)); (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
