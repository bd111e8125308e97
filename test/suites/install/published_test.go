package install

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"karve.sh/karve/test/harness/chart"
)

// TestPublishedReleaseCanBeInstalled publishes charts and images with tools/publish, and installs them by the commands of docs/install.md.
func TestPublishedReleaseCanBeInstalled(t *testing.T) {
	version, err := chart.Version()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.env = append(w.env, "version="+version)
	release := w.release(t, version)
	w.publish(t, release, "")
	page := blocks(t, w.root, "docs/install.md")
	w.forgetCRDs(t)
	w.run(t, append(page[:1:1], only(page, publishedRelease)...))
	w.imagesExist(t)
	w.kubectl(t, "get", "crd", "gpunodeclasses.karve.sh", "gpuimagerollouts.karve.sh")

	notes := filepath.Join(release, "notes.md")
	text, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(notes, []byte(strings.ReplaceAll(string(text), "/karve:"+version+" | sha256:", "/karve:"+version+" | sha256:0")), 0o600); err != nil {
		t.Fatal(err)
	}
	w.publish(t, release, "has another digest than in notes.md")
	if err := os.Remove(filepath.Join(release, "chart-karve.tar")); err != nil {
		t.Fatal(err)
	}
	w.publish(t, release, "has no chart-karve.tar")
}

// release builds what tools/publish needs of a release, with programs that do nothing, and returns its folder.
func (w *world) release(t *testing.T, version string) string {
	t.Helper()
	release, layouts := t.TempDir(), t.TempDir()
	w.shell(t, `
REPOSITORY=$host/built tools/image
OUT=$release tools/charts >$layouts/charts
for image in controller node; do
  go tool -modfile=tools/ko/go.mod crane pull --format=oci $host/built/$image:$version $layouts/$image
  tools/archive $release/image-$image.tar $layouts/$image .
done`, "host="+w.registry.Host, "release="+release, "layouts="+layouts)
	var notes strings.Builder
	notes.WriteString("# Karve " + version + "\n")
	for _, image := range []string{"controller", "node"} {
		text, err := os.ReadFile(filepath.Join(layouts, image, "index.json"))
		if err != nil {
			t.Fatal(err)
		}
		var index struct{ Manifests []struct{ Digest string } }
		if err := json.Unmarshal(text, &index); err != nil || len(index.Manifests) != 1 {
			t.Fatalf("%v: %s", err, text)
		}
		fmt.Fprintf(&notes, "| %s:%s | %s |\n", image, version, index.Manifests[0].Digest)
	}
	charts, err := os.ReadFile(filepath.Join(layouts, "charts"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(charts)) {
		packed, digest, _ := strings.Cut(strings.TrimSpace(line), " ")
		fmt.Fprintf(&notes, "| charts/%s:%s | %s |\n", strings.TrimSuffix(filepath.Base(packed), "-"+version+".tgz"), version, digest)
	}
	if err := os.WriteFile(filepath.Join(release, "notes.md"), []byte(notes.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return release
}

// publish runs tools/publish. It must print four references, or fail with the message.
func (w *world) publish(t *testing.T, release, message string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(w.root, "tools", "publish"))
	cmd.Env = append(w.env, "REPOSITORY="+w.registry.Host+"/karve", "RELEASE="+release)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if message != "" {
		if err == nil || !strings.Contains(stderr.String(), message) {
			t.Errorf("%v, want %q: %s", err, message, stderr.String())
		}
		return
	}
	references := strings.Fields(string(out))
	if err != nil || len(references) != 4 {
		t.Fatalf("%v: %q\n%s", err, references, stderr.String())
	}
	for _, r := range references {
		if !strings.Contains(r, "@sha256:") || !w.registry.Has(r) {
			t.Errorf("the registry does not have %s", r)
		}
	}
}

func (w *world) shell(t *testing.T, script string, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", script)
	cmd.Dir, cmd.Env = w.root, append(append([]string(nil), w.env...), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
