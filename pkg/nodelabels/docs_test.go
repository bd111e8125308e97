package nodelabels_test

import (
	"flag"
	"fmt"
	"regexp"
	"slices"
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

// table returns a table of the labels whose value is known, and two of the others. Labels with the same text share a row.
func table() string {
	var b strings.Builder
	b.WriteString("| known before there is a node | value |\n|---|---|\n")
	for _, r := range rows(nodelabels.Always) {
		fmt.Fprintf(&b, "| %s | %s |\n", r.labels, r.says)
	}
	b.WriteString("\n| known only on the node | use instead |\n|---|---|\n")
	for _, r := range rows(nodelabels.Later) {
		fmt.Fprintf(&b, "| %s | %s |\n", r.labels, r.says)
	}
	b.WriteString("\n| on no node | written by | use instead |\n|---|---|---|\n")
	for _, r := range rows(nodelabels.Never) {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.labels, r.by, r.says)
	}
	return b.String()
}

type row struct{ labels, by, says string }

// rows returns the labels about which as much is known.
func rows(known nodelabels.Known) []row {
	var all []row
	for i := range nodelabels.Table {
		e := &nodelabels.Table[i]
		if e.Known != known {
			continue
		}
		r := row{"`" + e.Key + "`", e.By, e.Value}
		if e.Alias != "" {
			r.says = "that of `" + e.Alias + "`"
		} else if e.Instead != "" && e.Known != nodelabels.Always {
			r.says = labelInText.ReplaceAllString(strings.TrimPrefix(e.Instead, "use "), "`$0`")
		}
		if e.Free {
			r.says += "; a NodePool may set it"
		}
		same := slices.IndexFunc(all, func(has row) bool { return has.says == r.says && (has.by == r.by || known != nodelabels.Never) })
		if same < 0 {
			all = append(all, r)
			continue
		}
		all[same].labels += ", " + r.labels
	}
	return all
}

var labelInText = regexp.MustCompile(`[a-z.8]+/[a-z.<>-]*[a-z*]`)

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
