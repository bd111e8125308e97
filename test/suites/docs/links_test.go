// Package docs checks the documentation as a whole.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../../.."

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	block   = regexp.MustCompile("(?ms)^```.*?^```")
	code    = regexp.MustCompile("`[^`\n]*`")
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

func TestLinksResolve(t *testing.T) {
	t.Parallel()
	links := 0
	for _, page := range pages(t) {
		for _, target := range linksOf(read(t, page)) {
			links++
			file, anchor, _ := strings.Cut(target, "#")
			path := page
			if file != "" {
				path = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, target)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(read(t, path)), anchor) {
				t.Errorf("%s links to %s, and that page has no such heading", page, target)
			}
		}
	}
	if links < 100 {
		t.Errorf("found %d links only", links)
	}
}

func TestIndexListsEveryPage(t *testing.T) {
	t.Parallel()
	index := linksOf(read(t, filepath.Join(root, "docs/README.md")))
	all, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range all {
		if name := filepath.Base(page); name != "README.md" && !slices.Contains(index, name) {
			t.Errorf("docs/README.md does not name %s", name)
		}
	}
}

func TestAnchorsAndLinksAreParsed(t *testing.T) {
	t.Parallel()
	page := "# Karve's *first* page\n## A `code` heading, again\n## A `code` heading, again\n```\n# not a heading\n[no](link)\n```\n[a](b.md#c) `[not](one)`"
	want := []string{"karves-first-page", "a-code-heading-again", "a-code-heading-again-1"}
	if got := anchors(page); !slices.Equal(got, want) {
		t.Errorf("anchors are %q, want %q", got, want)
	}
	if got := linksOf(page); !slices.Equal(got, []string{"b.md#c"}) {
		t.Errorf("links are %q", got)
	}
}

// pages returns the Markdown files of the repository.
func pages(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "_output" || entry.Name() == ".git"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".md"):
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// linksOf returns the targets within the repository that a page links to.
func linksOf(page string) []string {
	var targets []string
	for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(block.ReplaceAllString(page, ""), ""), -1) {
		if !strings.Contains(m[1], "://") && !strings.HasPrefix(m[1], "mailto:") {
			targets = append(targets, m[1])
		}
	}
	return targets
}

// anchors returns the anchors of a page's headings as GitHub makes them: lower case, without punctuation, with hyphens, numbered if they repeat.
func anchors(page string) []string {
	var all []string
	seen := map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(block.ReplaceAllString(page, ""), -1) {
		name := strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		anchor := name
		if n := seen[name]; n > 0 {
			anchor = fmt.Sprintf("%s-%d", name, n)
		}
		seen[name]++
		all = append(all, anchor)
	}
	return all
}
