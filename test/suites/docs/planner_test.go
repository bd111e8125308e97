package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// mapped matches a row of the map of files: a package, its purpose and its files.
var mapped = regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\| .* \\| (.*) \\|$")

func TestPlannerReadmeListsEveryFile(t *testing.T) {
	t.Parallel()
	page := read(t, filepath.Join(root, "pkg/planner/README.md"))
	_, table, found := strings.Cut(page, "\n## 11. Packages and files\n")
	if !found {
		t.Fatal("pkg/planner/README.md has no map of files")
	}
	named := map[string]bool{}
	for _, row := range mapped.FindAllStringSubmatch(table, -1) {
		for _, m := range code.FindAllString(row[2], -1) {
			named[filepath.Join(strings.TrimPrefix(row[1], "planner"), strings.Trim(m, "`"))] = true
		}
	}
	there := map[string]bool{}
	for _, pattern := range []string{"*.go", "*/*.go", "internal/*/*.go"} {
		all, err := filepath.Glob(filepath.Join(root, "pkg/planner", pattern))
		if err != nil || len(all) == 0 {
			t.Fatal(all, err)
		}
		for _, file := range all {
			name, err := filepath.Rel(filepath.Join(root, "pkg/planner"), file)
			if err != nil {
				t.Fatal(err)
			}
			there[name] = true
			if !strings.HasSuffix(name, "_test.go") && !named[name] {
				t.Errorf("the map of files does not name %s", name)
			}
		}
	}
	for name := range named {
		if !there[name] {
			t.Errorf("the map of files names %s, which does not exist", name)
		}
	}
}
