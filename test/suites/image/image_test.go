// Package image builds the container images as for a release, on its own base image from its own registry, and inspects them.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/registry"
)

func TestImagesHoldProgramsForEachPlatform(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	base := registry.New(t).Base(t)
	for name, platforms := range map[string][]string{"controller": {"amd64", "arm64"}, "node": withCompilers()} {
		t.Run(name, func(t *testing.T) {
			if name == "controller" && os.Getenv("KARVE_IMAGES") != "1" {
				t.Skip("it compiles everything for another machine, which takes minutes: make test-image")
			}
			if len(platforms) == 0 {
				t.Skip("there is no C compiler that tools/cc knows")
			}
			build := exec.CommandContext(t.Context(), filepath.Join(root, "tools", "image"), name)
			build.Env = append(os.Environ(), "BASE_CONTROLLER="+base, "BASE_NODE="+base, "PLATFORMS=linux/"+strings.Join(platforms, ",linux/"))
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			layout := filepath.Join(root, "_output", "images", name)
			found := images(t, layout)
			if len(found) != len(platforms) {
				t.Fatalf("there are %d images, want %v", len(found), platforms)
			}
			for i, m := range found {
				look(t, layout, name, platforms[i], m)
			}
		})
	}
}

// withCompilers returns the architectures that the agent can be built for on this machine.
func withCompilers() []string {
	var architectures []string
	for _, a := range [][2]string{{"amd64", "x86_64-linux-gnu-gcc"}, {"arm64", "aarch64-linux-gnu-gcc"}} {
		if _, err := exec.LookPath(a[1]); err == nil {
			architectures = append(architectures, a[0])
		}
	}
	return architectures
}

func read[T any](t *testing.T, layout, digest string) T {
	t.Helper()
	var content T
	path := filepath.Join(layout, "blobs", strings.Replace(digest, ":", "/", 1))
	if digest == "" {
		path = filepath.Join(layout, "index.json")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &content); err != nil {
		t.Fatal(err)
	}
	return content
}

// images returns the manifests of the images in an OCI layout, without SBOMs.
func images(t *testing.T, layout string) []registry.Document {
	t.Helper()
	var found []registry.Document
	for _, d := range read[registry.Document](t, layout, "").Manifests {
		all := []registry.Descriptor{d}
		if strings.Contains(d.MediaType, "index") || strings.Contains(d.MediaType, "list") {
			all = read[registry.Document](t, layout, d.Digest).Manifests
		}
		for _, m := range all {
			found = append(found, read[registry.Document](t, layout, m.Digest))
		}
	}
	return found
}

func look(t *testing.T, layout, name, architecture string, m registry.Document) {
	t.Helper()
	s := read[registry.Settings](t, layout, m.Config.Digest)
	program := "/ko-app/" + name
	if s.OS != "linux" || s.Architecture != architecture || s.Config.User != "65532" || len(s.Config.Entrypoint) != 1 || s.Config.Entrypoint[0] != program {
		t.Errorf("the image is %+v", s)
	}
	binary := file(t, layout, m, program)
	parsed, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[architecture]; parsed.Machine != want {
		t.Errorf("%s is for %s, want %s", program, parsed.Machine, want)
	}
	libraries, err := parsed.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	if dynamic := len(libraries) > 0; dynamic != (name == "node") {
		t.Errorf("%s needs the libraries %q of its base", program, libraries)
	}
	own := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[architecture]
	if machine, err := exec.CommandContext(t.Context(), "uname", "-m").Output(); err != nil || strings.TrimSpace(string(machine)) != own {
		return
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, binary, 0o700); err != nil {
		t.Fatal(err)
	}
	if help, err := exec.CommandContext(t.Context(), path, "--help").CombinedOutput(); err != nil || !bytes.Contains(help, []byte("log-level")) {
		t.Errorf("%s --help: %v\n%s", program, err, help)
	}
}

// file returns the content of a file in an image.
func file(t *testing.T, layout string, m registry.Document, path string) []byte {
	t.Helper()
	for _, layer := range m.Layers {
		f, err := os.Open(filepath.Join(layout, "blobs", strings.Replace(layer.Digest, ":", "/", 1)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		unzipped, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		for files := tar.NewReader(unzipped); ; {
			header, err := files.Next()
			if err != nil {
				break
			}
			if header.Name == path {
				content, err := io.ReadAll(files)
				if err != nil {
					t.Fatal(err)
				}
				return content
			}
		}
	}
	t.Fatalf("%s is not in the image", path)
	return nil
}
