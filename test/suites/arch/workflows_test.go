package arch

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const top = "../../.."

// files returns the files of the repository whose base name matches a pattern, without those that were built.
func files(t *testing.T, pattern string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "_output" || entry.Name() == ".git") {
			return fs.SkipDir
		}
		if matched, err := filepath.Match(pattern, entry.Name()); err != nil || entry.IsDir() || !matched {
			return err
		}
		name, err := filepath.Rel(top, path)
		found = append(found, name)
		return err
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("%d files %s: %v", len(found), pattern, err)
	}
	return found
}

func content(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func decode(t *testing.T, name string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(content(t, name)), into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func TestWorkflowsAreValid(t *testing.T) {
	t.Parallel()
	lint := exec.CommandContext(t.Context(), "go", "tool", "-modfile=tools/go.mod", "actionlint", "-no-color")
	lint.Dir = top
	if out, err := lint.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestActionsArePinned fails for an action that somebody else can replace by moving a tag, and for rights that no job names.
func TestActionsArePinned(t *testing.T) {
	t.Parallel()
	uses := regexp.MustCompile(`(?m)^\s*(?:- )?uses: (.*)$`)
	pinned := regexp.MustCompile(`^([\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/workflows/[\w.-]+)$`)
	actions := 0
	for _, name := range workflows(t) {
		text := content(t, name)
		for _, action := range uses.FindAllStringSubmatch(text, -1) {
			actions++
			if !pinned.MatchString(action[1]) {
				t.Errorf("%s uses %s: write the commit, and the version in a comment", name, action[1])
			}
		}
		for _, key := range []string{"\npermissions:", "\nconcurrency:"} {
			if !strings.Contains(text, key) {
				t.Errorf("%s has no %q at its top", name, strings.TrimSpace(key))
			}
		}
	}
	if actions == 0 {
		t.Error("no workflow uses an action")
	}
}

func workflows(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(top, ".github/workflows/*"))
	if err != nil || len(all) == 0 {
		t.Fatalf("workflows: %v", err)
	}
	for i, path := range all {
		all[i] = filepath.Join(".github/workflows", filepath.Base(path))
	}
	return all
}

// TestUpdateBotKnowsEverything keeps .github/dependabot.yml complete: it must name the folders of all modules, and of all manifests and charts with images.
func TestUpdateBotKnowsEverything(t *testing.T) {
	t.Parallel()
	var config struct {
		Updates []struct {
			PackageEcosystem string   `json:"package-ecosystem"`
			Directories      []string `json:"directories"`
		} `json:"updates"`
	}
	decode(t, ".github/dependabot.yml", &config)
	named := map[string][]string{}
	for _, u := range config.Updates {
		named[u.PackageEcosystem] = append(named[u.PackageEcosystem], u.Directories...)
	}
	image := regexp.MustCompile(`(?m)^[\s-]*image: [^\s/]+\.[^\s/]+/`)
	manifests := slices.DeleteFunc(slices.Concat(files(t, "*.yaml"), files(t, "*.yml")), func(name string) bool {
		// Pages on migration quote what others run, and a chart's images have the version of the chart or of the cluster.
		return strings.HasPrefix(name, "docs/migrate/") || strings.HasPrefix(name, "test/") || !image.MatchString(content(t, name))
	})
	want := map[string][]string{"gomod": foldersOf(files(t, "go.mod")), "npm": foldersOf(files(t, "package.json")), "docker": foldersOf(manifests), "github-actions": {"/"}}
	for ecosystem, folders := range want {
		slices.Sort(named[ecosystem])
		if !slices.Equal(named[ecosystem], folders) {
			t.Errorf("%s: .github/dependabot.yml has\n%q, want\n%q", ecosystem, named[ecosystem], folders)
		}
	}
}

// foldersOf returns the folders of files, as Dependabot names them.
func foldersOf(files []string) []string {
	var all []string
	for _, f := range files {
		all = append(all, filepath.Join("/", filepath.Dir(f)))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestIssueFormsAreValid checks what GitHub requires of issue forms. It ignores a form that it cannot read.
func TestIssueFormsAreValid(t *testing.T) {
	t.Parallel()
	page := regexp.MustCompile(`\.\./blob/HEAD/([\w./-]+)`)
	for _, name := range []string{"bug", "feature", "question"} {
		var form struct {
			Name, Description string
			Body              []struct {
				Type, ID   string
				Attributes struct{ Label, Value, Description, Render string }
			}
		}
		name = ".github/ISSUE_TEMPLATE/" + name + ".yml"
		decode(t, name, &form)
		if form.Name == "" || form.Description == "" {
			t.Errorf("%s has no name or no description", name)
		}
		ids := map[string]bool{}
		for _, b := range form.Body {
			switch b.Type {
			case "markdown":
				if b.Attributes.Value == "" {
					t.Errorf("%s has a text without a value", name)
				}
			case "input", "textarea":
				if b.Attributes.Label == "" || b.ID == "" || ids[b.ID] {
					t.Errorf("%s has a question without a label, or two with the id %q", name, b.ID)
				}
				ids[b.ID] = true
			default:
				t.Errorf("%s has an element of the type %q", name, b.Type)
			}
		}
		if len(ids) == 0 {
			t.Errorf("%s asks nothing", name)
		}
		for _, link := range page.FindAllStringSubmatch(content(t, name), -1) {
			content(t, link[1])
		}
	}
}

// TestOwnedPathsExist fails when a folder that CODEOWNERS names has been moved.
func TestOwnedPathsExist(t *testing.T) {
	t.Parallel()
	const name = ".github/CODEOWNERS"
	owned := 0
	for line := range strings.Lines(content(t, name)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		owned++
		if len(fields) != 2 || !strings.HasPrefix(fields[1], "@OWNER/") {
			t.Errorf("%s: %q does not give a path to one role", name, strings.TrimSpace(line))
			continue
		}
		if _, err := os.Stat(filepath.Join(top, fields[0])); err != nil && fields[0] != "*" {
			t.Errorf("%s names %s, which does not exist", name, fields[0])
		}
	}
	if owned == 0 {
		t.Errorf("%s owns nothing", name)
	}
}
