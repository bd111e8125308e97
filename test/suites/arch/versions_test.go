package arch

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"karve.sh/karve/test/harness/chart"
)

// TestModulesBuiltTogetherAgreeOnVersions keeps builds small: if two modules require different versions of a package, it is compiled twice, and so is
// every package that imports it.
func TestModulesBuiltTogetherAgreeOnVersions(t *testing.T) {
	t.Parallel()
	for name, pair := range map[string]struct {
		module, like string
		other        map[string]bool // may have another version, because little is built from it
		only         map[string]bool // if not empty, only these must agree
	}{
		"the tests are built with the product's libraries": {module: "test", like: "."},
		"Karpenter is built with the product's libraries":  {module: "test/harness/cluster/build/karpenter", like: "."},
		"Kubernetes is built with the product's libraries below k8s.io": {module: "test/harness/cluster/build/kubernetes", like: ".", only: map[string]bool{
			"google.golang.org/protobuf": true, "github.com/prometheus/client_golang": true, "github.com/prometheus/common": true, "golang.org/x/oauth2": true,
			"github.com/google/gnostic-models": true, "golang.org/x/net": true, "golang.org/x/sys": true, "golang.org/x/text": true,
		}},
		"NVIDIA's device plugin and its parser are built with the product's libraries": {module: "test/suites/nvidia", like: ".", other: map[string]bool{"github.com/NVIDIA/go-nvml": true, "k8s.io/kubelet": true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			like := versions(t, pair.like)
			for path, version := range versions(t, pair.module) {
				if want, ok := like[path]; ok && version != want && !pair.other[path] && (len(pair.only) == 0 || pair.only[path]) {
					t.Errorf("%s has %s %s, and %s has %s: go mod edit -require %s@<the newer> in both, and go mod tidy", pair.module, path, version, pair.like, want, path)
				}
			}
		})
	}
}

// TestChartsWithUnreleasedChangesHaveNoReleasedVersion keeps charts of a checkout apart from those of a release.
func TestChartsWithUnreleasedChangesHaveNoReleasedVersion(t *testing.T) {
	t.Parallel()
	version, err := chart.Version()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, changes, found := strings.Cut(string(text), "\n## Unreleased\n")
	unreleased, released, _ := strings.Cut(changes, "\n## ")
	if !found {
		t.Fatal("CHANGELOG.md has no section Unreleased")
	}
	if strings.Contains(unreleased, "\n- ") && strings.Contains("\n## "+released, "\n## "+version+" ") {
		t.Errorf("CHANGELOG.md has changes after %s, and the charts have that version: raise it in charts/*/Chart.yaml, as docs/releasing.md says", version)
	}
}

// versions returns the versions of the modules that a module requires.
func versions(t *testing.T, module string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
	cmd.Dir = filepath.Join("..", "..", "..", module)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	type version struct{ Path, Version string }
	var file struct {
		Require []version
		Replace []struct{ Old, New version }
	}
	if err := json.Unmarshal(out, &file); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, r := range file.Require {
		all[r.Path] = r.Version
	}
	for _, r := range file.Replace {
		if _, ok := all[r.Old.Path]; ok {
			all[r.Old.Path] = r.New.Version
		}
	}
	return all
}
