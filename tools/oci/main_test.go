package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func layout(t *testing.T, index string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "index.json"), []byte(index), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

func TestTagKeepsWhatTheIndexSays(t *testing.T) {
	t.Parallel()
	folder := layout(t, `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","size":1234567890123,"digest":"sha256:a","annotations":{"other":"kept"}}]}`)
	for _, name := range []string{"0.0.9", "0.1.0"} {
		if digest, err := run([]string{"digest", folder}); err != nil || digest != "sha256:a" {
			t.Errorf("%q, %v", digest, err)
		}
		if digest, err := run([]string{"tag", folder, name}); err != nil || digest != "sha256:a" {
			t.Fatalf("the digest is %q: %v", digest, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(folder, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Manifests []struct {
			Size        int64
			Annotations map[string]string
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if m := got.Manifests[0]; m.Size != 1234567890123 || m.Annotations["other"] != "kept" || m.Annotations[tagKey] != "0.1.0" {
		t.Errorf("the index is %s", text)
	}
}

func TestBaseIsThatOfTheAnnotations(t *testing.T) {
	t.Parallel()
	folder := layout(t, "")
	d, err := blob(folder, manifestType, []byte(`{"annotations":{"org.opencontainers.image.base.digest":"sha256:b","org.opencontainers.image.base.name":"registry.example.com/base:1"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := writeIndex(folder, index{Manifests: []descriptor{d}}); err != nil {
		t.Fatal(err)
	}
	if got, err := run([]string{"base", folder}); err != nil || got != "registry.example.com/base:1@sha256:b" {
		t.Errorf("the base is %q: %v", got, err)
	}
	if d, err = blob(folder, manifestType, []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if err := writeIndex(folder, index{Manifests: []descriptor{d}}); err != nil {
		t.Fatal(err)
	}
	if got, err := run([]string{"base", folder}); err == nil {
		t.Errorf("an image that does not say so has the base %q", got)
	}
}

func TestWhatIsNoLayoutAndNoChartIsRefused(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "chart.tgz")
	if err := os.WriteFile(text, []byte("this is not an archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"has 2 images, want one": {"tag", layout(t, `{"manifests":[{},{}]}`), "0.1.0"},
		"reading the index":      {"tag", layout(t, `{`), "0.1.0"},
		"no such file":           {"tag", t.TempDir(), "0.1.0"},
		"reading chart":          {"chart", text, t.TempDir()},
		"usage":                  {"tag"},
	} {
		if _, err := run(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}
