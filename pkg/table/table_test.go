package table_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/table"
)

func TestColorsTakeNoRoom(t *testing.T) {
	t.Parallel()
	tab := table.Table{Columns: []table.Column{{Title: "NAME"}, {Title: "$/H", Right: true}, {Title: "STATE"}}}
	tab.Add("a", "0.526", "\x1b[32mReady\x1b[0m")
	tab.Add("\x1b[1;31mé-longer\x1b[0m", "12.000", "")
	want := "NAME          $/H   STATE\na           0.526   \x1b[32mReady\x1b[0m\n\x1b[1;31mé-longer\x1b[0m   12.000\n"
	if diff := cmp.Diff(want, tab.String()); diff != "" {
		t.Error(diff)
	}
}

func TestTextDoesNotControlTheTerminal(t *testing.T) {
	t.Parallel()
	tab := table.Table{Columns: []table.Column{{}, {}}}
	tab.Add("a\x1b[2Jb\r\n\x1b]0;title\a\u009b1m", "\x1b[31mred\x1b[0m")
	if out := tab.String(); out != "a[2Jb ]0;title1m   \x1b[31mred\x1b[0m\n" {
		t.Errorf("%q", out)
	}
}

func TestAColumnIsNotWiderThanALine(t *testing.T) {
	t.Parallel()
	tab := table.Table{Columns: []table.Column{{}, {}}}
	tab.Add("\x1b[31m"+strings.Repeat("x", 10*plain.MaxLine)+"\x1b[0m", "b")
	if out := tab.String(); out != strings.Repeat("x", plain.MaxLine-1)+"…   b\n" {
		t.Errorf("%d bytes", len(out))
	}
}

func TestWithoutTitlesThereIsNoLineForThem(t *testing.T) {
	t.Parallel()
	tab := table.Table{Columns: []table.Column{{}, {}}}
	tab.Add("a", "b")
	if out := tab.String(); out != "a   b\n" {
		t.Errorf("%q", out)
	}
}

func TestTableAlignsColumns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tab := table.Table{Columns: []table.Column{{Title: "LEFT"}, {Title: "RIGHT", Right: true}, {Title: "LAST"}}}
		cell := rapid.StringMatching(`[a-z×]{1,12}`)
		for range rapid.IntRange(1, 5).Draw(t, "rows") {
			tab.Add(cell.Draw(t, "left"), cell.Draw(t, "right"), cell.Draw(t, "last"))
		}
		out := tab.String()
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		const gap = "   "
		at := len([]rune(lines[0])) - len("LAST") // where the last column begins and the column before it ends
		for i, line := range lines[1:] {
			runes := []rune(line)
			if string(runes[at:]) != tab.Rows[i][2] || string(runes[at-len(gap):at]) != gap || runes[at-len(gap)-1] == ' ' || runes[0] == ' ' {
				t.Fatalf("%q is not in columns", out)
			}
		}
	})
}
