// Package image builds the container images as a release does, upon a base of its own from a registry of its own, and looks into them.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"karve.sh/karve/test/cluster"
)

const (
	index    = "application/vnd.oci.image.index.v1+json"
	manifest = "application/vnd.oci.image.manifest.v1+json"
	config   = "application/vnd.oci.image.config.v1+json"
)

// descriptor names a part of an image.
type descriptor struct {
	MediaType string    `json:"mediaType"`
	Digest    string    `json:"digest"`
	Size      int       `json:"size"`
	Platform  *platform `json:"platform,omitempty"`
}

type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

// document is an index or a manifest.
type document struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests,omitempty"`
	Config        *descriptor  `json:"config,omitempty"`
	Layers        []descriptor `json:"layers"`
}

// settings are the part of an image's configuration that says how it is run.
type settings struct {
	platform
	Config struct {
		User       string   `json:"User,omitempty"`
		Entrypoint []string `json:"Entrypoint,omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// registry serves one image without layers, for two platforms, whose user is not root.
type registry struct {
	blobs map[string][]byte
	types map[string]string
	base  string
}

func newRegistry(t *testing.T) string {
	t.Helper()
	r := &registry{blobs: map[string][]byte{}, types: map[string]string{}}
	all := document{SchemaVersion: 2, MediaType: index, Layers: []descriptor{}}
	for _, architecture := range []string{"amd64", "arm64"} {
		p := platform{"linux", architecture}
		var s settings
		s.platform, s.Config.User, s.RootFS.Type, s.RootFS.DiffIDs = p, "65532", "layers", []string{}
		c := r.put(t, config, s)
		m := r.put(t, manifest, document{SchemaVersion: 2, MediaType: manifest, Config: &c, Layers: []descriptor{}})
		m.Platform = &p
		all.Manifests = append(all.Manifests, m)
	}
	r.base = r.put(t, index, all).Digest
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://") + "/base:latest"
}

func (r *registry) put(t *testing.T, mediaType string, content any) descriptor {
	t.Helper()
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(text))
	r.blobs[digest], r.types[digest] = text, mediaType
	return descriptor{MediaType: mediaType, Digest: digest, Size: len(text)}
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name := req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]
	if name == "latest" {
		name = r.base
	}
	blob, ok := r.blobs[name]
	switch {
	case req.URL.Path == "/v2/":
	case !ok:
		http.NotFound(w, req)
	default:
		w.Header().Set("Content-Type", r.types[name])
		w.Header().Set("Docker-Content-Digest", name)
		w.Header().Set("Content-Length", fmt.Sprint(len(blob)))
		if req.Method != http.MethodHead {
			_, _ = w.Write(blob)
		}
	}
}

func TestTheImagesHoldTheProgramsForEachPlatform(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	base := newRegistry(t)
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

// withCompilers are the architectures that the agent can be built for here.
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

// images are the manifests of the images in a layout, SBOMs not among them.
func images(t *testing.T, layout string) []document {
	t.Helper()
	var found []document
	for _, d := range read[document](t, layout, "").Manifests {
		all := []descriptor{d}
		if strings.Contains(d.MediaType, "index") || strings.Contains(d.MediaType, "list") {
			all = read[document](t, layout, d.Digest).Manifests
		}
		for _, m := range all {
			found = append(found, read[document](t, layout, m.Digest))
		}
	}
	return found
}

func look(t *testing.T, layout, name, architecture string, m document) {
	t.Helper()
	s := read[settings](t, layout, m.Config.Digest)
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

// file is a file of an image.
func file(t *testing.T, layout string, m document, path string) []byte {
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
