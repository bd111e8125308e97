// Package registry is an in-memory container registry on loopback, for tests that build on base images and push images.
package registry

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

const (
	// Index is the media type of a list of images.
	Index = "application/vnd.oci.image.index.v1+json"
	// Manifest is the media type of a single image.
	Manifest = "application/vnd.oci.image.manifest.v1+json"
	// Config is the media type of an image's configuration.
	Config = "application/vnd.oci.image.config.v1+json"
)

// Descriptor names a part of an image.
type Descriptor struct {
	MediaType string    `json:"mediaType"`
	Digest    string    `json:"digest"`
	Size      int       `json:"size"`
	Platform  *Platform `json:"platform,omitempty"`
}

// Platform is the platform of an image.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

// Document is an index or a manifest.
type Document struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []Descriptor `json:"manifests,omitempty"`
	Config        *Descriptor  `json:"config,omitempty"`
	Layers        []Descriptor `json:"layers"`
}

// Settings are the part of an image's configuration that determines how it runs.
type Settings struct {
	Platform
	Config struct {
		User       string   `json:"User,omitempty"`
		Entrypoint []string `json:"Entrypoint,omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// Registry holds blobs, and manifests by repository and by tag or digest.
type Registry struct {
	// Host is the address on which it listens.
	Host string

	mu        sync.Mutex // guards the rest
	blobs     map[string][]byte
	uploads   map[string][]byte
	manifests map[string]manifest
}

type manifest struct {
	mediaType string
	content   []byte
}

// New starts a registry, which stops when the test ends.
func New(t testing.TB) *Registry {
	t.Helper()
	r := &Registry{blobs: map[string][]byte{}, uploads: map[string][]byte{}, manifests: map[string]manifest{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.Host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// Base creates a non-root image without layers for two platforms, and returns its reference.
func (r *Registry) Base(t testing.TB) string {
	t.Helper()
	all := Document{SchemaVersion: 2, MediaType: Index, Layers: []Descriptor{}}
	for _, architecture := range []string{"amd64", "arm64"} {
		var s Settings
		s.Platform, s.Config.User, s.RootFS.Type, s.RootFS.DiffIDs = Platform{"linux", architecture}, "65532", "layers", []string{}
		c := r.put(t, "", Config, s)
		m := r.put(t, "base", Manifest, Document{SchemaVersion: 2, MediaType: Manifest, Config: &c, Layers: []Descriptor{}})
		m.Platform = &s.Platform
		all.Manifests = append(all.Manifests, m)
	}
	index := r.put(t, "base", Index, all)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.manifests["base:latest"] = r.manifests["base:"+index.Digest]
	return r.Host + "/base:latest"
}

// Load adds the content of an OCI layout to a repository, as tools that copy layouts into registries do: all blobs, and the manifests of the index by digest and by tag.
func (r *Registry) Load(t testing.TB, layout, repository string) {
	t.Helper()
	read := func(elements ...string) []byte {
		text, err := os.ReadFile(filepath.Join(append([]string{layout}, elements...)...))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	var index struct {
		Manifests []struct {
			Descriptor
			Annotations map[string]string `json:"annotations"`
		} `json:"manifests"`
	}
	if err := json.Unmarshal(read("index.json"), &index); err != nil {
		t.Fatal(err)
	}
	blobs, err := os.ReadDir(filepath.Join(layout, "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range blobs {
		r.blobs["sha256:"+b.Name()] = read("blobs", "sha256", b.Name())
	}
	for _, d := range index.Manifests {
		m := manifest{d.MediaType, r.blobs[d.Digest]}
		r.manifests[repository+":"+d.Digest], r.manifests[repository+":"+d.Annotations["org.opencontainers.image.ref.name"]] = m, m
	}
}

// Has reports whether an image can be pulled. The reference begins with Host and names a tag or a digest.
func (r *Registry) Has(reference string) bool {
	name, ok := strings.CutPrefix(reference, r.Host+"/")
	if repository, digest, found := strings.Cut(name, "@"); found {
		name = repository + ":" + digest
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, found := r.manifests[name]
	return ok && found
}

// put stores a manifest of the repository, or a blob if the repository is empty.
func (r *Registry) put(t testing.TB, repository, mediaType string, content any) Descriptor {
	t.Helper()
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if repository == "" {
		r.blobs[digest(text)] = text
	} else {
		r.manifests[repository+":"+digest(text)] = manifest{mediaType, text}
	}
	return Descriptor{MediaType: mediaType, Digest: digest(text), Size: len(text)}
}

func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

var path = regexp.MustCompile(`^/v2/(.+)/(blobs/uploads|blobs|manifests)/([^/]*)$`)

// ServeHTTP implements the part of the distribution API that clients need to pull and push.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if req.URL.Path == "/v2/" {
		return
	}
	part := path.FindStringSubmatch(req.URL.Path)
	if part == nil {
		http.NotFound(w, req)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	repository, name := part[1], part[3]
	switch part[2] {
	case "manifests":
		r.manifest(w, req, repository, name, body)
	case "blobs":
		serve(w, req, "application/octet-stream", r.blobs[name])
	default:
		r.upload(w, req, repository, name, body)
	}
}

func (r *Registry) manifest(w http.ResponseWriter, req *http.Request, repository, name string, body []byte) {
	if req.Method == http.MethodPut {
		m := manifest{req.Header.Get("Content-Type"), body}
		r.manifests[repository+":"+name], r.manifests[repository+":"+digest(body)] = m, m
		w.WriteHeader(http.StatusCreated)
		return
	}
	m := r.manifests[repository+":"+name]
	serve(w, req, m.mediaType, m.content)
}

// upload starts, continues or finishes the upload of a blob.
func (r *Registry) upload(w http.ResponseWriter, req *http.Request, repository, name string, body []byte) {
	if req.Method == http.MethodPost {
		name = fmt.Sprint(len(r.uploads))
	}
	r.uploads[name] = append(r.uploads[name], body...)
	if req.Method == http.MethodPut {
		if want := req.URL.Query().Get("digest"); digest(r.uploads[name]) != want {
			http.Error(w, "the content is not "+want, http.StatusBadRequest)
			return
		}
		r.blobs[digest(r.uploads[name])] = r.uploads[name]
		w.WriteHeader(http.StatusCreated)
		return
	}
	w.Header().Set("Location", "/v2/"+repository+"/blobs/uploads/"+name)
	w.WriteHeader(http.StatusAccepted)
}

func serve(w http.ResponseWriter, req *http.Request, mediaType string, content []byte) {
	if content == nil {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", digest(content))
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	if req.Method != http.MethodHead {
		_, _ = w.Write(content)
	}
}
