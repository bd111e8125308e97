package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite testdata")

// archive writes an archive with files that hold their own names.
func archive(t *testing.T, folder, name string, files ...string) string {
	t.Helper()
	var content bytes.Buffer
	zipped := gzip.NewWriter(&content)
	packed := tar.NewWriter(zipped)
	for _, f := range files {
		if err := packed.WriteHeader(&tar.Header{Name: f, Size: int64(len(f)), Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
		if _, err := packed.Write([]byte(f)); err != nil {
			t.Fatal(err)
		}
	}
	if err := packed.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, content.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func archives(t *testing.T) []string {
	t.Helper()
	folder := t.TempDir()
	var all []string
	for _, p := range []string{"darwin-amd64", "darwin-arm64", "linux-amd64", "linux-arm64", "windows-amd64", "windows-arm64"} {
		program := "kubectl-karve"
		if strings.HasPrefix(p, "windows") {
			program += ".exe"
		}
		all = append(all, archive(t, folder, "kubectl-karve-"+p+".tar.gz", "LICENSE", program))
	}
	return all
}

func TestManifestHasAnEntryForEachArchive(t *testing.T) {
	t.Parallel()
	got, err := manifest("0.1.0", "https://downloads.example.com/v0.1.0/", archives(t))
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "karve.yaml")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the manifest is not that of %s (-update rewrites it):\n%s", golden, got)
	}
}

// The rules are those of krew's internal/index/validation and cmd/validate-krew-manifest, version 0.5.
func TestManifestKeepsTheRulesOfKrew(t *testing.T) {
	t.Parallel()
	text, err := manifest("0.1.0", "https://downloads.example.com/v0.1.0", archives(t))
	if err != nil {
		t.Fatal(err)
	}
	var p plugin
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	if p.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || p.Kind != "Plugin" {
		t.Errorf("it is a %s of %s", p.Kind, p.APIVersion)
	}
	for what, rule := range map[string]struct{ value, pattern string }{
		"name":              {p.Metadata["name"], `^[\w-]+$`},
		"version":           {p.Spec.Version, `^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`},
		"short description": {p.Spec.ShortDescription, `^[^\r\n]{1,50}$`}, // Longer ones are cut off in lists.
		"homepage":          {p.Spec.Homepage, `^https://`},
	} {
		if !regexp.MustCompile(rule.pattern).MatchString(rule.value) {
			t.Errorf("the %s is %q", what, rule.value)
		}
	}
	selected := map[string]bool{}
	for _, entry := range p.Spec.Platforms {
		labels := entry.Selector.MatchLabels
		if len(labels) != 2 || labels["os"] == "" || labels["arch"] == "" {
			t.Errorf("a selector has the labels %v, and only os and arch are allowed", labels)
		}
		key := labels["os"] + "/" + labels["arch"]
		if selected[key] {
			t.Errorf("two entries select %s", key)
		}
		selected[key] = true
		if !regexp.MustCompile(`^[a-f0-9]{64}$`).MatchString(entry.SHA256) {
			t.Errorf("the checksum for %s is %q", key, entry.SHA256)
		}
		if want := "https://downloads.example.com/v0.1.0/kubectl-karve-" + labels["os"] + "-" + labels["arch"] + ".tar.gz"; entry.URI != want {
			t.Errorf("the address for %s is %s, want %s", key, entry.URI, want)
		}
		if len(entry.Files) != 2 || entry.Files[0].From != entry.Bin || entry.Files[1].From != "LICENSE" || strings.HasSuffix(entry.Bin, ".exe") != (labels["os"] == "windows") {
			t.Errorf("the program for %s is %s, of the files %v", key, entry.Bin, entry.Files)
		}
	}
	if len(selected) != 6 {
		t.Errorf("it has %d platforms, want 6", len(selected))
	}
}

func TestArchiveThatKrewCannotInstallIsRefused(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	broken := filepath.Join(folder, "kubectl-karve-linux-arm64.tar.gz")
	if err := os.WriteFile(broken, []byte("this is not an archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		archive(t, folder, "kubectl-karve-linux-amd64.tar.gz", "LICENSE"):                    "it has no kubectl-karve",
		archive(t, folder, "kubectl-karve-darwin-amd64.tar.gz", "kubectl-karve"):             "it has no LICENSE",
		archive(t, folder, "kubectl-karve-windows-amd64.tar.gz", "LICENSE", "kubectl-karve"): "it has no kubectl-karve.exe",
		archive(t, folder, "karve.tar.gz", "LICENSE", "kubectl-karve"):                       "its name is not",
		broken: "invalid header",
		filepath.Join(folder, "kubectl-karve-darwin-arm64.tar.gz"): "no such file",
	} {
		if text, err := manifest("0.1.0", "https://downloads.example.com", []string{path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q\n%s", filepath.Base(path), err, want, text)
		}
	}
}
