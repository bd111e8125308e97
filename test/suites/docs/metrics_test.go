package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The agent formats its metrics by hand, so its source contains their names.
var metricName = regexp.MustCompile(`"(karve_[a-z_]+|DCGM_FI_[A-Z_]+)"`)

func TestReferenceListsAgentMetrics(t *testing.T) {
	t.Parallel()
	page := read(t, filepath.Join(root, "docs/metrics.md"))
	_, agent, found := strings.Cut(page, "\n## Agent\n")
	if !found {
		t.Fatal("docs/metrics.md has no section on the agent")
	}
	written := map[string]bool{}
	for _, folder := range []string{"cmd/node", "pkg/node"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, m := range metricName.FindAllStringSubmatch(string(source), -1) {
				written[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(written) < 20 {
		t.Errorf("found %d metrics only", len(written))
	}
	for name := range written {
		if !strings.Contains(agent, "`"+name+"`") {
			t.Errorf("docs/metrics.md does not list %s", name)
		}
	}
	for _, name := range regexp.MustCompile("`((?:karve_|DCGM_)[A-Za-z_]+)`").FindAllStringSubmatch(agent, -1) {
		if !written[name[1]] {
			t.Errorf("docs/metrics.md lists %s, which the agent does not write", name[1])
		}
	}
}
