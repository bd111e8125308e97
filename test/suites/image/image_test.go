// Package image builds the container images as for a release, on its own base image from its own registry, and inspects them.
package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"

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
			found := images(t, filepath.Join(root, "_output", "images", name))
			if len(found) != len(platforms) {
				t.Fatalf("there are %d images, want %v", len(found), platforms)
			}
			for i, image := range found {
				look(t, name, platforms[i], image)
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

// images returns the images in an OCI layout, without SBOMs.
func images(t *testing.T, folder string) []v1.Image {
	t.Helper()
	all, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	found, err := partial.FindImages(all, func(d v1.Descriptor) bool { return d.MediaType.IsImage() })
	if err != nil {
		t.Fatal(err)
	}
	indexes, err := partial.FindIndexes(all, func(v1.Descriptor) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	for _, index := range indexes {
		more, err := partial.FindImages(index, func(d v1.Descriptor) bool { return d.MediaType.IsImage() })
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, more...)
	}
	return found
}

func look(t *testing.T, name, architecture string, image v1.Image) {
	t.Helper()
	s, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	program := "/ko-app/" + name
	if s.OS != "linux" || s.Architecture != architecture || s.Config.User != "65532" || len(s.Config.Entrypoint) != 1 || s.Config.Entrypoint[0] != program {
		t.Errorf("the image is %+v", s)
	}
	binary := file(t, image, program)
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
func file(t *testing.T, image v1.Image, path string) []byte {
	t.Helper()
	all := mutate.Extract(image)
	defer all.Close()
	for files := tar.NewReader(all); ; {
		header, err := files.Next()
		if err != nil {
			t.Fatalf("%s is not in the image: %v", path, err)
		}
		if strings.TrimPrefix(header.Name, "/") != strings.TrimPrefix(path, "/") {
			continue
		}
		content, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
}
