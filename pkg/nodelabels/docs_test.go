package nodelabels_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/nodelabels"
)

var update = flag.Bool("update", false, "write the table of labels to docs/scheduling.md")

const (
	page       = "../../docs/scheduling.md"
	begin, end = "<!-- labels -->\n", "<!-- end of labels -->\n"
)

// TestDocsListTable compares the table in the documentation with Table. With -update, it writes it.
func TestDocsListTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	has, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no place for the table", page)
	}
	want := table()
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, has); diff != "" {
		t.Errorf("go test ./pkg/nodelabels -run Docs -update writes the table (-want +got):\n%s", diff)
	}
}

func table() string {
	var b strings.Builder
	b.WriteString("| label | written by | before there is a node |\n|---|---|---|\n")
	for i := range nodelabels.Table {
		e := &nodelabels.Table[i]
		known := e.Value
		switch {
		case e.Alias != "":
			known = "the value of `" + e.Alias + "`"
		case e.Known != nodelabels.Always:
			known = fmt.Sprintf("%s: %s", e.Known, e.Instead)
		}
		if e.Free {
			known += ". A NodePool may set it"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", e.Key, e.By, known)
	}
	return b.String()
}

func TestEachLabelSaysWhatToUseInstead(t *testing.T) {
	t.Parallel()
	for i := range nodelabels.Table {
		e := &nodelabels.Table[i]
		if e.By == "" || (e.Known == nodelabels.Always) != (e.Value != "" || e.Alias != "") || e.Known != nodelabels.Always && e.Instead == "" {
			t.Errorf("%s lacks something: %+v", e.Key, *e)
		}
		if found := nodelabels.Find(strings.NewReplacer("<profile>", "1g.5gb", "*", "x").Replace(e.Key)); found != e {
			t.Errorf("%s is found as %+v", e.Key, found)
		}
	}
}
