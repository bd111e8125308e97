package ui

import (
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"karve.sh/karve/test/harness/cluster"
)

// blob is where the files of the repository would be.
const blob = "https://source.invalid/blob/v0.1.0"

// TestSiteIsSearchedAndRead builds the site of the documentation for a path of a server, and reads it at the widths of a phone and of a desk.
func TestSiteIsSearchedAndRead(t *testing.T) {
	cluster.Long(t)
	root := repository(t)
	out := t.TempDir()
	if log, err := site(t, root, out); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	t.Run("every link leads somewhere", func(t *testing.T) { linksOfSite(t, root, out) })
	t.Run("formulas are drawn, prices are not", func(t *testing.T) {
		for page, want := range map[string]bool{"pkg/planner/index.html": true, "index.html": false, "docs/cost.html": false} {
			if text := read(t, filepath.Join(out, page)); strings.Contains(text, "<mjx-container") != want || strings.Contains(text, "data-mjx-error") {
				t.Errorf("%s has formulas: %v, or a wrong one", page, !want)
			}
		}
	})

	server := httptest.NewServer(http.StripPrefix("/karve", http.FileServer(http.Dir(out))))
	t.Cleanup(server.Close)
	at := server.URL + "/karve"
	tabs := browse(t)
	for name, width := range map[string]int64{"phone": 390, "desk": 1440} {
		t.Run(name, func(t *testing.T) {
			p := open(t, tabs, at+"/")
			p.load(emulation.SetDeviceMetricsOverride(width, 844, 1, width < 500), chromedp.Reload())
			fits := func() {
				t.Helper()
				if wide := value[int64](p, "document.documentElement.scrollWidth"); wide > width {
					t.Errorf("%s is %d wide", value[string](p, "location.pathname"), wide)
				}
			}
			p.until(`document.querySelector("h1")?.textContent.startsWith("Karve")`)
			p.until(`[...document.images].length && [...document.images].every((i) => i.naturalWidth)`)
			fits()

			p.run(chromedp.Click("#local-search button", chromedp.ByQuery), chromedp.SendKeys("#localsearch-input", "headroom", chromedp.ByQuery))
			const found = `#localsearch-list a[href*="/docs/headroom.html"]`
			p.until("document.querySelector('" + found + "')")
			p.run(chromedp.Click(found, chromedp.ByQuery))
			p.until(`location.pathname === "/karve/docs/headroom.html" && document.querySelector("h1")?.textContent.startsWith("Headroom")`)
			fits()

			for page, want := range diagrams(t, root) {
				p.load(chromedp.Navigate(at + "/" + strings.TrimSuffix(page, ".md") + ".html"))
				p.until(fmt.Sprintf(`document.querySelectorAll(".mermaid svg").length === %d`, want))
				p.until(`[...document.querySelectorAll(".mermaid svg")].every((s) => s.getAttribute("aria-roledescription") !== "error" && s.textContent.length > 50)`)
				if cut := value[[]string](p, `[...document.querySelectorAll(".mermaid foreignObject > *")].filter((e) => e.scrollHeight > e.parentNode.height.baseVal.value + 1).map((e) => e.textContent)`); len(cut) > 0 {
					t.Errorf("%s cuts off the text %q", page, cut)
				}
				fits()
			}
			p.clean(at, token)
		})
	}
}

// TestSiteWithDeadLinkIsNotBuilt is long, because it installs 300 MB of modules. In make test, suites/docs looks at the links of all pages.
func TestSiteWithDeadLinkIsNotBuilt(t *testing.T) {
	cluster.Long(t)
	root := repository(t)
	for name, c := range map[string]struct{ page, want string }{
		"to a page":             {"[that](that.md)", "docs/page.md links to that.md, which does not exist"},
		"to a file":             {"[that](../charts/that.yaml)", "docs/page.md links to ../charts/that.yaml, which does not exist"},
		"out of the repository": {"[that](../../)", "docs/page.md links to ../../, which does not exist"},
		"in the list of pages":  {"", "docs/README.md links to page.md, which does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			tree := t.TempDir()
			for path, text := range map[string]string{
				"README.md": "# Karve", "docs/README.md": "# Documentation\n\n| start | |\n|---|---|\n| [page.md](page.md) | A page |\n", "docs/page.md": c.page,
				"docs/icon.svg": "<svg/>", "charts/karve/Chart.yaml": "appVersion: 0.1.0\n",
			} {
				if text == "" {
					continue
				}
				if path == "docs/page.md" {
					text = "# Page\n\n" + text + "\n"
				}
				path = filepath.Join(tree, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range []string{"tools", "_output"} {
				if err := os.Symlink(filepath.Join(root, name), filepath.Join(tree, name)); err != nil {
					t.Fatal(err)
				}
			}
			log, err := site(t, tree, t.TempDir())
			if err == nil || !strings.Contains(log, c.want) {
				t.Errorf("%v, and the log does not say %q:\n%s", err, c.want, log)
			}
		})
	}
}

func repository(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("there is no npm, which builds the site: install Node.js, such as Debian's packages nodejs and npm")
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// site builds the site of a tree, and returns what the program writes.
func site(t *testing.T, tree, out string) (string, error) {
	t.Helper()
	build := exec.CommandContext(t.Context(), filepath.Join(tree, "tools/site"))
	build.Env = append(os.Environ(), "OUT="+out, "BASE=/karve/", "SOURCE="+blob)
	log, err := build.CombinedOutput()
	return string(log), err
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// diagrams returns the number of diagrams of each page in docs that has any.
func diagrams(t *testing.T, root string) map[string]int {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, page := range pages {
		if n := strings.Count(read(t, page), "\n```mermaid\n"); n > 0 {
			all["docs/"+filepath.Base(page)] = n
		}
	}
	if len(all) == 0 {
		t.Fatal("no page has a diagram")
	}
	return all
}

var (
	address = regexp.MustCompile(` (?:href|src)="([^"]*)"`)
	id      = regexp.MustCompile(` id="([^"]*)"`)
)

// linksOfSite checks that what the pages link to and load is in the site or in the repository, and that the headings that links name are there.
func linksOfSite(t *testing.T, root, out string) {
	t.Helper()
	pages := map[string]map[string]bool{} // the IDs of each page
	texts := map[string]string{}
	err := filepath.WalkDir(out, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".html" {
			return err
		}
		name := strings.TrimPrefix(path, out)
		texts[name] = read(t, path)
		pages[name] = map[string]bool{}
		for _, m := range id.FindAllStringSubmatch(texts[name], -1) {
			pages[name][html.UnescapeString(m[1])] = true
		}
		return nil
	})
	if err != nil || len(pages) < 90 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	sources, anchors := 0, 0
	for page, text := range texts {
		for _, m := range address.FindAllStringSubmatch(text, -1) {
			target, err := url.Parse(html.UnescapeString(m[1]))
			if err != nil {
				t.Errorf("%s has the address %s: %v", page, m[1], err)
				continue
			}
			if file, ok := strings.CutPrefix(target.String(), blob); ok {
				sources++
				if _, err := os.Stat(filepath.Join(root, strings.TrimSuffix(file, "#"+target.EscapedFragment()))); err != nil {
					t.Errorf("%s: %v", page, err)
				}
				continue
			}
			if target.Scheme != "" {
				continue
			}
			path, onSite := strings.CutPrefix(target.Path, "/karve")
			switch {
			case target.Path == "":
				path = page
			case !onSite:
				t.Errorf("%s links to %s, which is not below the path of the site", page, target)
				continue
			case strings.HasSuffix(path, "/"):
				path += "index.html"
			}
			if _, err := os.Stat(filepath.Join(out, path)); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if target.Fragment != "" {
				anchors++
				if !pages[path][target.Fragment] {
					t.Errorf("%s links to %s, and there is no such heading", page, target)
				}
			}
		}
	}
	if sources < 50 || anchors < 900 {
		t.Errorf("found %d links to files and %d to headings only", sources, anchors)
	}
}
