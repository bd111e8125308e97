// Package registry is an in-memory container registry on loopback, for tests that build on base images and push images.
package registry

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Registry is a running registry.
type Registry struct {
	// Host is the address on which it listens.
	Host string
}

// New starts a registry, which stops when the test ends.
func New(t testing.TB) *Registry {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(server.Close)
	return &Registry{Host: strings.TrimPrefix(server.URL, "http://")}
}

// Base creates a non-root image without layers for two platforms, and returns its reference.
func (r *Registry) Base(t testing.TB) string {
	t.Helper()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range []string{"amd64", "arm64"} {
		image, err := mutate.ConfigFile(mutate.MediaType(empty.Image, types.OCIManifestSchema1), &v1.ConfigFile{
			OS: "linux", Architecture: architecture, Config: v1.Config{User: "65532"}, RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{}},
		})
		if err != nil {
			t.Fatal(err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: mutate.ConfigMediaType(image, types.OCIConfigJSON), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}
	reference := r.Host + "/base:latest"
	if err := remote.WriteIndex(parsed(t, reference), index); err != nil {
		t.Fatal(err)
	}
	return reference
}

// Load pushes the images of an OCI layout to a repository, each by the tag that the index gives it.
func (r *Registry) Load(t testing.TB, folder, repository string) {
	t.Helper()
	from, err := layout.FromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	all, err := from.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	list, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Manifests {
		image, err := all.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(parsed(t, r.Host+"/"+repository+":"+m.Annotations["org.opencontainers.image.ref.name"]), image); err != nil {
			t.Fatal(err)
		}
	}
}

// Has reports whether an image can be pulled. The reference begins with Host and names a tag or a digest.
func (r *Registry) Has(reference string) bool {
	parsed, err := name.ParseReference(reference)
	if err != nil || parsed.Context().RegistryStr() != r.Host {
		return false
	}
	_, err = remote.Head(parsed)
	return err == nil
}

func parsed(t testing.TB, reference string) name.Reference {
	t.Helper()
	r, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
