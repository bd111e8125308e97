package snapshot_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/crds"
	"karve.sh/karve/pkg/apis/crds/crdtest"
)

var update = flag.Bool("update", false, "rewrite the table in docs/nodepool.md, for the diff to be reviewed")

const root = "../.."

// leaves returns the paths of all values of a schema, sorted. Each enum value has its own path.
func leaves(s crdtest.Schema, path string) []string {
	var all []string
	s.Walk(path, func(path string, s crdtest.Schema) bool {
		for _, value := range s.List("enum") {
			all = append(all, fmt.Sprintf("%s=%v", path, value))
		}
		if s["enum"] == nil && s["properties"] == nil && s["items"] == nil && s["additionalProperties"] == nil {
			all = append(all, path)
		}
		return true
	})
	slices.Sort(all)
	return all
}

// specLeaves returns the paths of a CRD's spec.
func specLeaves(t *testing.T, crd []byte) []string {
	t.Helper()
	properties, _ := crdtest.Of(t, crd)["properties"].(map[string]any)
	spec, ok := properties["spec"].(map[string]any)
	if !ok {
		t.Fatal("there is no spec")
	}
	return leaves(spec, "spec")
}

func TestWalkFindsEveryFieldAndEnumValue(t *testing.T) {
	t.Parallel()
	var s crdtest.Schema
	if err := yaml.Unmarshal([]byte(`
properties:
  a: {type: string}
  b: {enum: [One, Two]}
  c: {items: {properties: {d: {type: string}, e: {items: {enum: [Three]}}}}}
  f: {additionalProperties: {type: string}}
  g: {x-kubernetes-preserve-unknown-fields: true}
`), &s); err != nil {
		t.Fatal(err)
	}
	want := []string{"spec.a", "spec.b=One", "spec.b=Two", "spec.c[].d", "spec.c[].e[]=Three", "spec.f{}", "spec.g"}
	if diff := cmp.Diff(want, leaves(s, "spec")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEveryFieldHasDecision(t *testing.T) {
	t.Parallel()
	class, err := crds.FS.ReadFile("karve.sh_gpunodeclasses.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		crd       []byte
		decisions []decision
	}{"NodePool": {karpapis.NodePoolCRD, nodePoolFields}, "GPUNodeClass": {class, classFields}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fields := specLeaves(t, c.crd)
			decided := map[string]bool{}
			for _, d := range c.decisions {
				if decided[d.path] {
					t.Errorf("%s is decided on twice", d.path)
				}
				decided[d.path] = true
				if !slices.Contains(fields, d.path) {
					t.Errorf("%s is decided on in fieldtable_test.go, and the schema does not have it", d.path)
				}
			}
			for _, field := range fields {
				if !decided[field] {
					t.Errorf("%s needs a decision in fieldtable_test.go: the test that shows that it is honored, or a case of `reported`", field)
				}
			}
		})
	}
}

func TestEveryDecisionHasTest(t *testing.T) {
	t.Parallel()
	reportedPaths := map[string]bool{}
	for _, r := range reported {
		reportedPaths[r.path] = true
	}
	tests := map[string]string{}
	for _, d := range slices.Concat(nodePoolFields, classFields) {
		if d.by == "" {
			if !reportedPaths[d.path] {
				t.Errorf("%s has neither a test nor a case of `reported`", d.path)
			}
			continue
		}
		pkg, name, _ := strings.Cut(d.by, ".")
		if tests[pkg] == "" {
			tests[pkg] = testsOf(t, filepath.Join(root, pkg))
		}
		if !regexp.MustCompile(`(?m)^func ` + name + `\(t \*testing\.T\)`).MatchString(tests[pkg]) {
			t.Errorf("%s is honored by %s, which is no test", d.path, d.by)
		}
	}
	for path := range reportedPaths {
		if path != "" && !slices.ContainsFunc(nodePoolFields, func(d decision) bool { return d.path == path && d.by == "" }) {
			t.Errorf("%s is reported, and the table does not say so", path)
		}
	}
}

// testsOf returns the text of a package's tests.
func testsOf(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(content)
	}
	return all.String()
}

func TestDocsDescribeEveryFieldAndReason(t *testing.T) {
	t.Parallel()
	const head = "| field | |\n|---|---|\n"
	file := filepath.Join(root, "docs", "nodepool.md")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), head)
	_, after, ends := strings.Cut(rest, "\n\n")
	if !found || !ends {
		t.Fatal("there is no table")
	}
	var want strings.Builder
	want.WriteString(before + head)
	paths, says := map[string][]string{}, []string(nil)
	for _, d := range nodePoolFields {
		if d.says == "honored" {
			continue // The page says so of all fields that it does not name.
		}
		if len(paths[d.says]) == 0 {
			says = append(says, d.says)
		}
		paths[d.says] = append(paths[d.says], "`"+strings.Replace(d.path, "=", ": ", 1)+"`")
	}
	for _, text := range says { // Fields with the same text share a row.
		fmt.Fprintf(&want, "| %s | %s |\n", strings.Join(paths[text], ", "), text)
	}
	want.WriteString("\n" + after)
	if *update {
		if err := os.WriteFile(file, []byte(want.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want.String(), string(content)); diff != "" {
		t.Errorf("docs/nodepool.md differs from fieldtable_test.go; go test ./pkg/snapshot -run DocsDescribe -update rewrites it (-want +got):\n%s", diff)
	}
	for _, r := range reported {
		if !strings.Contains(string(content), "`"+r.reason+"`") {
			t.Errorf("docs/nodepool.md does not explain %s", r.reason)
		}
	}
}
