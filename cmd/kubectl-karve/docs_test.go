package main

import (
	"bytes"
	"io/fs"
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
		"README.md": 1, "docs/plan.md": 2, "docs/replay.md": 1, "docs/integrations.md": 1,
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

// TestCommandsInSentencesAreUnderstood parses the commands of this plugin in the text of all pages. TestCommandsOfPagesRun runs those in code blocks.
func TestCommandsInSentencesAreUnderstood(t *testing.T) {
	t.Parallel()
	block, inline := regexp.MustCompile("(?ms)^ *```.*?^ *```"), regexp.MustCompile("`kubectl karve( [^`\n]*)?`")
	found := 0
	for _, root := range []string{"README.md", "CONTRIBUTING.md", "charts", "docs", "examples", "test"} {
		if err := filepath.WalkDir(filepath.Join("..", "..", root), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".md" {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range inline.FindAllStringSubmatch(block.ReplaceAllString(string(text), ""), -1) {
				found++
				if said := understood(t, strings.Fields(m[1])); said != "" {
					t.Errorf("%s: kubectl karve%s: %s", path, m[1], said)
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if found < 20 {
		t.Errorf("there are %d commands", found)
	}
	for _, wrong := range []string{"sing", "plan --tune", "top nodes --sort"} {
		if understood(t, strings.Fields(wrong)) == "" {
			t.Errorf("kubectl karve %s is understood", wrong)
		}
	}
}

// understood returns what is wrong with the verb or the flags of a command, or "".
func understood(t *testing.T, args []string) string {
	t.Helper()
	if len(args) > 0 && strings.HasPrefix(args[len(args)-1], "-") {
		args = append(args, "value")
	}
	var out, errOut bytes.Buffer
	if status := run(t.Context(), append(args, "--help"), streams{strings.NewReader(""), &out, &errOut}); status != 0 {
		return errOut.String()
	}
	return ""
}
