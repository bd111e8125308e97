package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// block is a fenced code block marked as sh.
type block struct {
	file string
	line int
	// under are the headings above it, outermost first.
	under []string
	text  string
}

// blocks returns the sh code blocks of a Markdown document.
func blocks(t *testing.T, root, file string) []block {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	var found []block
	var under []string
	var open *block
	fenced, number := false, 0
	for line := range strings.Lines(string(text)) {
		number++
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			fenced = !fenced
			if open != nil {
				found, open = append(found, *open), nil
			} else if fenced && trimmed == "```sh" {
				open = &block{file: file, line: number + 1, under: append([]string(nil), under...)}
			}
		case open != nil:
			open.text += line
		case !fenced && strings.HasPrefix(line, "#"):
			depth := len(line) - len(strings.TrimLeft(line, "#"))
			under = append(under[:min(depth-1, len(under))], strings.TrimSpace(line[depth:]))
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no commands", file)
	}
	return found
}

// below reports whether one of the headings above the block contains the words.
func (b block) below(words string) bool { return strings.Contains(strings.Join(b.under, "\n"), words) }

// without returns the blocks that are not below such a heading.
func without(all []block, words string) []block {
	var kept []block
	for _, b := range all {
		if !b.below(words) {
			kept = append(kept, b)
		}
	}
	return kept
}

func only(all []block, words string) []block {
	var kept []block
	for _, b := range all {
		if b.below(words) {
			kept = append(kept, b)
		}
	}
	return kept
}
