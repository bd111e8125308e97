package nodelabels_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"karve.sh/karve/pkg/internal/docpage"
	"karve.sh/karve/pkg/nodelabels"
)

var update = flag.Bool("update", false, "write the table of labels to docs/scheduling.md")

// TestDocsListTable compares the table in the documentation with Table. With -update, it writes it.
func TestDocsListTable(t *testing.T) {
	t.Parallel()
	docpage.Check(t, "../../docs/scheduling.md", "<!-- labels -->\n", "<!-- end of labels -->\n", table(), *update)
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
