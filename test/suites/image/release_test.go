package image

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/registry"
)

// A release is built twice, from two clones of the repository in different folders.
func TestReleaseIsCompleteAndReproducible(t *testing.T) {
	if os.Getenv("KARVE_IMAGES") != "1" {
		t.Skip("it compiles everything for six platforms, which takes minutes: make test-image")
	}
	if len(withCompilers()) < 2 {
		t.Skip("the agent for amd64 and arm64 needs Debian's gcc-x86-64-linux-gnu and gcc-aarch64-linux-gnu")
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	base := registry.New(t).Base(t)
	first, second := release(t, root, base), release(t, root, base)
	sums := checksums(t, first)
	if got := checksums(t, second); !maps.Equal(sums, got) {
		for name, sum := range sums {
			if got[name] != sum {
				t.Errorf("%s has other bytes in the second release", name)
			}
		}
	}
	names := slices.Collect(maps.Keys(sums))
	for _, want := range []string{
		"image-controller.tar.gz", "image-node.tar.gz", "karve-0.1.0.tgz", "karve-crd-0.1.0.tgz", "karve.yaml", "notes.md",
		"kubectl-karve-darwin-amd64.tar.gz", "kubectl-karve-darwin-arm64.tar.gz", "kubectl-karve-linux-amd64.tar.gz", "kubectl-karve-linux-arm64.tar.gz",
		"kubectl-karve-windows-amd64.tar.gz", "kubectl-karve-windows-arm64.tar.gz", "kubectl-karve-linux-amd64.cdx.json",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("the release has no %s", want)
		}
	}
	if t.Failed() {
		t.Fatalf("the release has %s", slices.Sorted(maps.Keys(sums)))
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "--extract", "--gzip", "--file="+filepath.Join(first, "kubectl-karve-linux-amd64.tar.gz"), "--directory="+first).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	head, err := exec.CommandContext(t.Context(), "git", "-C", root, "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(first, "kubectl-karve"), "version", "--client").CombinedOutput()
	if err != nil || !strings.Contains(string(out), strings.TrimSpace(string(head))) {
		t.Errorf("kubectl karve version: %v\n%s", err, out)
	}
	for _, name := range []string{"karve", "karve-crd"} {
		packed := chart.Chart{Name: filepath.Join(first, name+"-0.1.0.tgz"), Release: name, Namespace: "karve-system"}
		if _, err := packed.Template(t.Context(), "--set=settings.clusterName=test", "--set=controller.image.repository=registry.example.com/karve/controller", "--set=node.image.repository=registry.example.com/karve/node"); err != nil {
			t.Error(err)
		}
	}
}

// release clones the repository, builds a release in the clone and returns its folder.
func release(t *testing.T, root, base string) string {
	t.Helper()
	clone := filepath.Join(t.TempDir(), "karve")
	if out, err := exec.CommandContext(t.Context(), "git", "clone", "--quiet", root, clone).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	build := exec.CommandContext(t.Context(), filepath.Join(clone, "tools", "release"))
	build.Env = append(os.Environ(), "BASE_CONTROLLER="+base, "BASE_NODE="+base)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(clone, "_output", "release")
}

// checksums returns the checksum of each file of a release and verifies them.
func checksums(t *testing.T, release string) map[string]string {
	t.Helper()
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--quiet", "checksums.txt")
	check.Dir = release
	if out, err := check.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(release, "checksums.txt"))
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[name] = sum
	}
	return sums
}
