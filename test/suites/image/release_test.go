package image

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/registry"
)

// A release is built twice, from two clones of the repository in different folders. The first is published to a registry, and used as a user would.
func TestReleaseIsCompleteAndReproducible(t *testing.T) {
	if os.Getenv("KARVE_IMAGES") != "1" {
		t.Skip("it compiles everything for six platforms, which takes minutes: make test-image")
	}
	if len(withCompilers()) == 0 {
		t.Skip("there is no C compiler that tools/cc knows")
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	version, err := chart.Version()
	if err != nil {
		t.Fatal(err)
	}
	store := registry.New(t)
	base := store.Base(t)
	downloads := http.NewServeMux()
	site := httptest.NewServer(downloads)
	t.Cleanup(site.Close)
	first, second := release(t, root, base, site.URL), release(t, root, base, site.URL)
	downloads.Handle("/", http.FileServer(http.Dir(first)))
	sums := checksums(t, first)
	if got := checksums(t, second); !maps.Equal(sums, got) {
		for name, sum := range sums {
			if got[name] != sum {
				t.Errorf("%s has other bytes in the second release", name)
			}
		}
	}
	want := []string{"chart-karve-crd.tar", "chart-karve.tar", "karve-" + version + ".tgz", "karve-crd-" + version + ".tgz", "karve-crds.yaml", "karve.yaml", "notes.md"}
	for _, image := range []string{"controller", "node"} {
		want = append(want, "image-"+image+".tar")
		of := []string{"index"}
		for _, a := range withCompilers() {
			of = append(of, "linux-"+a)
		}
		if len(of) == 2 {
			of = of[1:] // An image for one platform has no index.
		}
		for _, of := range of {
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
	pluginsInstall(t, filepath.Join(first, "karve.yaml"), version)
	notes, err := os.ReadFile(filepath.Join(first, "notes.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"controller", "node", "charts/karve", "charts/karve-crd"} {
		if !strings.Contains(string(notes), "\n| "+name+":"+version+" | sha256:") {
			t.Errorf("the notes do not have the digest of %s:\n%s", name, notes)
		}
	}
	for _, name := range []string{"karve", "karve-crd"} {
		renders(t, filepath.Join(first, name+"-"+version+".tgz"), name)
	}
	publish := exec.CommandContext(t.Context(), filepath.Join(root, "tools", "publish"))
	publish.Env = append(os.Environ(), "RELEASE="+first, "REPOSITORY="+store.Host+"/karve")
	if out, err := publish.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"karve", "karve-crd"} {
		helm(t, "template", name, "oci://"+store.Host+"/karve/charts/"+name, "--version="+version, "--plain-http",
			"--set=controller.image.repository="+store.Host+"/karve/controller", "--set=node.image.repository="+store.Host+"/karve/node")
	}
}

// pluginsInstall does what krew does with a manifest: it downloads each archive, compares its checksum and takes the named files out of it. It runs the
// program for this machine.
func pluginsInstall(t *testing.T, manifest, version string) {
	t.Helper()
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	var plugin struct {
		Spec struct {
			Platforms []struct {
				URI, SHA256, Bin string
				Files            []struct{ From string }
				Selector         struct{ MatchLabels map[string]string }
			}
		}
	}
	if err := yaml.Unmarshal(text, &plugin); err != nil || len(plugin.Spec.Platforms) != 6 {
		t.Fatalf("%d platforms, %v", len(plugin.Spec.Platforms), err)
	}
	ran := false
	for _, p := range plugin.Spec.Platforms {
		archive, folder := download(t, p.URI), t.TempDir()
		content, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256(content)); sum != p.SHA256 {
			t.Errorf("%s has the checksum %s, and the manifest %s", p.URI, sum, p.SHA256)
		}
		unpack(t, archive, folder)
		for _, f := range p.Files {
			if _, err := os.Stat(filepath.Join(folder, f.From)); err != nil {
				t.Errorf("%s: %v", p.URI, err)
			}
		}
		if p.Selector.MatchLabels["os"] != runtime.GOOS || p.Selector.MatchLabels["arch"] != runtime.GOARCH {
			continue
		}
		ran = true
		if out, err := exec.CommandContext(t.Context(), filepath.Join(folder, p.Bin), "version", "--client").CombinedOutput(); err != nil || string(out) != "Client: v"+version+"\n" {
			t.Errorf("kubectl karve version: %v\n%s", err, out)
		}
	}
	if !ran {
		t.Errorf("the manifest has nothing for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
}

func download(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, response.Status, err)
	}
	file := filepath.Join(t.TempDir(), filepath.Base(url))
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestReleaseThatNobodyCouldRepeatIsRefused checks the errors that come before anything is built.
func TestReleaseThatNobodyCouldRepeatIsRefused(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	version, err := chart.Version()
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
	git("-C", clone, "tag", "--force", "v"+version, strings.TrimSpace(string(other)))
	refused("the tag v" + version + " is on another commit")
	git("-C", clone, "tag", "--delete", "v"+version)
	for _, tag := range []string{"v99.0.0", "v" + version + ".1"} {
		git("-C", clone, "tag", tag)
		refused("this commit has the tag " + tag + ", and the charts have the version " + version)
		git("-C", clone, "tag", "--delete", tag)
	}
	if err := os.WriteFile(filepath.Join(clone, "new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("the work tree has changes that are not committed")
}

// release clones the repository, builds a release in the clone and returns its folder.
func release(t *testing.T, root, base, downloads string) string {
	t.Helper()
	clone := filepath.Join(t.TempDir(), "karve")
	if out, err := exec.CommandContext(t.Context(), "git", "clone", "--quiet", root, clone).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	build := exec.CommandContext(t.Context(), filepath.Join(clone, "tools", "release"))
	build.Env = append(os.Environ(), "BASE_CONTROLLER="+base, "BASE_NODE="+base, "DOWNLOADS="+downloads, "PLATFORMS=linux/"+strings.Join(withCompilers(), ",linux/"))
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
