package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// shown matches a command of this plugin and its output in a document.
var shown = regexp.MustCompile("(?s)```\n\\$ kubectl karve ([^\n]+)\n(.*?)```")

// TestDocumentsShowActualOutput runs the commands that the documents show and compares their output.
func TestDocumentsShowActualOutput(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	for file, want := range map[string]int{
		"README.md": 1, "docs/plan.md": 3, "docs/replay.md": 1, "docs/integrations.md": 1,
		"docs/migrate/two-pools/README.md": 2, "docs/migrate/configmap/README.md": 2, "docs/migrate/gpushare/README.md": 2, "docs/migrate/gpu-operator/README.md": 2,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		commands := shown.FindAllStringSubmatch(string(text), -1)
		if len(commands) != want {
			t.Errorf("%s shows %d commands, want %d", file, len(commands), want)
		}
		for _, command := range commands {
			var out, errOut bytes.Buffer
			if status := run(t.Context(), strings.Fields(command[1]), streams{strings.NewReader(""), &out, &errOut}); status != 0 {
				t.Errorf("%s: kubectl karve %s: status %d", file, command[1], status)
			}
			if diff := cmp.Diff(command[2], errOut.String()+out.String()); diff != "" {
				t.Errorf("%s: kubectl karve %s prints something else (-shown +printed):\n%s", file, command[1], diff)
			}
		}
	}
}
