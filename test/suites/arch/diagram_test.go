package arch

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the diagram of imports in docs/architecture.md")

func TestDiagramShowsImports(t *testing.T) {
	t.Parallel()
	touch(t)
	const page, begin, end = "../../../docs/architecture.md", "<!-- imports -->\n", "<!-- end of imports -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	got, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s lacks %q or %q", page, begin, end)
	}
	want := diagram(folders(list(t, ".", "./cmd/...", "./pkg/...")))
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s differs from the code; go -C test test ./suites/arch -run Diagram -update rewrites it (-want +got):\n%s", page, diff)
	}
}

// imports maps each folder of cmd or pkg to the folders that it or its subfolders import.
type imports map[string]map[string]bool

func folders(packages []listed) imports {
	folder := func(importPath string) string {
		parts := strings.Split(strings.TrimPrefix(importPath, module+"/"), "/")
		return strings.Join(parts[:min(2, len(parts))], "/")
	}
	all := imports{}
	for _, p := range packages {
		from := folder(p.ImportPath)
		if all[from] == nil {
			all[from] = map[string]bool{}
		}
		for _, i := range p.Imports {
			if to := folder(i); strings.HasPrefix(i, module+"/") && to != from {
				all[from][to] = true
			}
		}
	}
	return all
}

// reaches reports whether a folder imports another, directly or indirectly. It skips the folders in been.
func (all imports) reaches(from, to string, been map[string]bool) bool {
	for next := range all[from] {
		if next == to {
			return true
		}
		if !been[next] {
			been[next] = true
			if all.reaches(next, to, been) {
				return true
			}
		}
	}
	return false
}

// diagram draws an arrow for each import that does not follow from others. It removes the imports that do follow from all.
func diagram(all imports) string {
	var b strings.Builder
	b.WriteString("```mermaid\nflowchart TD\n")
	name := strings.NewReplacer("/", "_", "-", "_")
	for _, from := range slices.Sorted(maps.Keys(all)) {
		for _, to := range slices.Sorted(maps.Keys(all[from])) {
			delete(all[from], to)
			if !all.reaches(from, to, map[string]bool{from: true}) {
				all[from][to] = true
				fmt.Fprintf(&b, "  %s[%s] --> %s[%s]\n", name.Replace(from), from, name.Replace(to), to)
			}
		}
	}
	b.WriteString("```\n")
	return b.String()
}

func TestDiagramOmitsTransitiveImports(t *testing.T) {
	t.Parallel()
	all := folders([]listed{
		pkg("cmd/a", module+"/pkg/b/inner", module+"/pkg/c", "strings"), pkg("pkg/b/inner", module+"/pkg/b", module+"/pkg/c"), pkg("pkg/c"),
	})
	want := "```mermaid\nflowchart TD\n  cmd_a[cmd/a] --> pkg_b[pkg/b]\n  pkg_b[pkg/b] --> pkg_c[pkg/c]\n```\n"
	if got := diagram(all); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
