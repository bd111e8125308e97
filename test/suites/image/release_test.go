package image

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	want := []string{"chart-karve-crd.tar", "chart-karve.tar", "karve-0.1.0.tgz", "karve-crd-0.1.0.tgz", "karve.yaml", "notes.md"}
	for _, image := range []string{"controller", "node"} {
		want = append(want, "image-"+image+".tar")
		for _, of := range []string{"index", "linux-amd64", "linux-arm64"} {
			want = append(want, "image-"+image+"-"+of+".spdx.json")
		}
	}
	for _, platform := range []string{"darwin-amd64", "darwin-arm64", "linux-amd64", "linux-arm64", "windows-amd64", "windows-arm64"} {
		want = append(want, "kubectl-karve-"+platform+".tar.gz", "kubectl-karve-"+platform+".cdx.json")
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(sums))); diff != "" {
		t.Fatalf("the release lacks (-) or has (+) files:\n%s", diff)
	}
	for name := range sums {
		if info, err := os.Stat(filepath.Join(first, name)); err == nil {
			t.Logf("%7.1f MB %s", float64(info.Size())/1e6, name)
		}
	}
	unpack(t, filepath.Join(first, "kubectl-karve-linux-amd64.tar.gz"), first)
	if out, err := exec.CommandContext(t.Context(), filepath.Join(first, "kubectl-karve"), "version", "--client").CombinedOutput(); err != nil || string(out) != "Client: v0.1.0\n" {
		t.Errorf("kubectl karve version: %v\n%s", err, out)
	}
	manifest, err := os.ReadFile(filepath.Join(first, "karve.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for name, sum := range sums {
		if strings.HasSuffix(name, ".tar.gz") && !strings.Contains(string(manifest), sum) {
			t.Errorf("karve.yaml has no %s with the checksum %s", name, sum)
		}
	}
	notes, err := os.ReadFile(filepath.Join(first, "notes.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"controller", "node", "charts/karve", "charts/karve-crd"} {
		if !strings.Contains(string(notes), "\n| "+name+":0.1.0 | sha256:") {
			t.Errorf("the notes do not have the digest of %s:\n%s", name, notes)
		}
	}
	for _, name := range []string{"karve", "karve-crd"} {
		renders(t, filepath.Join(first, name+"-0.1.0.tgz"), name)
	}
}

// TestReleaseThatNobodyCouldRepeatIsRefused checks the errors that come before anything is built.
func TestReleaseThatNobodyCouldRepeatIsRefused(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "karve")
	git := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	refused := func(want string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), filepath.Join(clone, "tools", "release")).CombinedOutput(); err == nil || !strings.HasPrefix(string(out), "tools/release: "+want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%v, want %q:\n%s", err, want, out)
		}
	}
	git("clone", "--quiet", root, clone)
	tree, err := exec.CommandContext(t.Context(), "git", "-C", clone, "rev-parse", "HEAD^{tree}").Output()
	if err != nil {
		t.Fatal(err)
	}
	other, err := exec.CommandContext(t.Context(), "git", "-C", clone, "-c", "user.name=test", "-c", "user.email=test@example.com", "commit-tree", "-m", "another", strings.TrimSpace(string(tree))).Output()
	if err != nil {
		t.Fatal(err)
	}
	git("-C", clone, "tag", "--force", "v0.1.0", strings.TrimSpace(string(other)))
	refused("the tag v0.1.0 is on another commit")
	if err := os.WriteFile(filepath.Join(clone, "new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("the work tree has changes that are not committed")
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
