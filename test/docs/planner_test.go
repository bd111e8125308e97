package docs

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestTheDocumentOnThePlannerNamesEveryFile(t *testing.T) {
	t.Parallel()
	page := read(t, filepath.Join(root, "pkg/planner/README.md"))
	_, files, found := strings.Cut(page, "\n## 11. Files\n")
	if !found {
		t.Fatal("pkg/planner/README.md has no map of files")
	}
	all, err := filepath.Glob(filepath.Join(root, "pkg/planner/*.go"))
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	there := map[string]bool{}
	for _, file := range all {
		name := filepath.Base(file)
		there[name] = true
		if !strings.HasSuffix(name, "_test.go") && !strings.Contains(files, "`"+name+"`") {
			t.Errorf("the map of files does not name %s", name)
		}
	}
	for _, m := range code.FindAllString(files, -1) {
		if name := strings.Trim(m, "`"); strings.HasSuffix(name, ".go") && !there[name] {
			t.Errorf("the map of files names %s, which does not exist", name)
		}
	}
}
