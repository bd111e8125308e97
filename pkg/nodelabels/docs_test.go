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

// table returns a table of the labels, by what is known about them.
func table() string {
	var b strings.Builder
	b.WriteString("| known | labels |\n|---|---|\n")
	for _, row := range []struct {
		known string
		of    func(*nodelabels.Entry) bool
	}{
		{"before there is a node", func(e *nodelabels.Entry) bool { return e.Known == nodelabels.Always }},
		{"only on the node", func(e *nodelabels.Entry) bool { return e.Known == nodelabels.Later && !e.Free }},
		{"if the NodePool sets it", func(e *nodelabels.Entry) bool { return e.Known != nodelabels.Always && e.Free }},
		{"on no node", func(e *nodelabels.Entry) bool { return e.Known == nodelabels.Never && !e.Free }},
	} {
		var labels []string
		for i := range nodelabels.Table {
			if e := &nodelabels.Table[i]; row.of(e) {
				labels = append(labels, "`"+e.Key+"`")
			}
		}
		fmt.Fprintf(&b, "| %s | %s |\n", row.known, strings.Join(labels, ", "))
	}
	return b.String()
}

func TestEachLabelSaysWhatToUseInstead(t *testing.T) {
	t.Parallel()
	for i := range nodelabels.Table {
		e := &nodelabels.Table[i]
		if e.By == "" || e.Known != nodelabels.Always && e.Instead == "" {
			t.Errorf("%s lacks something: %+v", e.Key, *e)
		}
		if found := nodelabels.Find(strings.NewReplacer("<profile>", "1g.5gb", "*", "x").Replace(e.Key)); found != e {
			t.Errorf("%s is found as %+v", e.Key, found)
		}
	}
}
