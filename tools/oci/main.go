// Command oci writes OCI layouts of a release: folders that tools such as oras, skopeo and crane copy into a registry, with the digests that they have here.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Media types of OCI, and of charts in a registry, which Helm defines.
const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.cncf.helm.config.v1+json"
	contentType  = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// tagKey is the annotation with the tag of an entry in the index of a layout.
const tagKey = "org.opencontainers.image.ref.name"

// descriptor names a blob of a layout. Fields that are not known here are kept.
type descriptor map[string]any

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

func main() {
	answer, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "oci:", err)
		os.Exit(1)
	}
	fmt.Println(answer)
}

// run returns the digest that the layout's content has in a registry, or the image that it is based on.
func run(args []string) (string, error) {
	switch {
	case len(args) == 3 && args[0] == "chart":
		return chart(args[1], args[2])
	case len(args) == 3 && args[0] == "tag":
		return tag(args[1], args[2])
	case len(args) == 2 && args[0] == "digest":
		i, err := readIndex(args[1])
		if err != nil {
			return "", err
		}
		return fmt.Sprint(i.Manifests[0]["digest"]), nil
	case len(args) == 2 && args[0] == "base":
		return base(args[1])
	}
	return "", errors.New("usage: oci chart PACKAGED_CHART LAYOUT | oci tag LAYOUT TAG | oci digest LAYOUT | oci base LAYOUT")
}

// chart writes the layout of a packaged chart, as helm push would push it. Its tag is the chart's version. The bytes depend on the chart alone.
func chart(packaged, layout string) (string, error) {
	content, err := os.ReadFile(packaged)
	if err != nil {
		return "", err
	}
	text, modified, err := chartYAML(content)
	if err != nil {
		return "", fmt.Errorf("reading chart %s: %w", packaged, err)
	}
	config, err := yaml.YAMLToJSON(text)
	if err != nil {
		return "", fmt.Errorf("reading Chart.yaml of %s: %w", packaged, err)
	}
	var about struct {
		Name, Version, Description, Home string
		Sources                          []string
	}
	if err := json.Unmarshal(config, &about); err != nil {
		return "", fmt.Errorf("reading Chart.yaml of %s: %w", packaged, err)
	}
	if about.Name == "" || about.Version == "" {
		return "", fmt.Errorf("Chart.yaml of %s has no name or no version", packaged)
	}
	annotations := map[string]string{"org.opencontainers.image.created": modified.UTC().Format(time.RFC3339)}
	for key, value := range map[string]string{"title": about.Name, "version": about.Version, "description": about.Description, "url": about.Home, "source": strings.Join(about.Sources[:min(1, len(about.Sources))], "")} {
		if value != "" {
			annotations["org.opencontainers.image."+key] = value
		}
	}
	m := manifest{SchemaVersion: 2, MediaType: manifestType, Annotations: annotations}
	if m.Config, err = blob(layout, configType, config); err != nil {
		return "", err
	}
	layer, err := blob(layout, contentType, content)
	if err != nil {
		return "", err
	}
	m.Layers = []descriptor{layer}
	encoded, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	top, err := blob(layout, manifestType, encoded)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(layout, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		return "", err
	}
	if err := writeIndex(layout, index{SchemaVersion: 2, MediaType: "application/vnd.oci.image.index.v1+json", Manifests: []descriptor{top}}); err != nil {
		return "", err
	}
	return tag(layout, about.Version)
}

// chartYAML returns Chart.yaml of a packaged chart, and its time.
func chartYAML(packaged []byte) ([]byte, time.Time, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(packaged))
	if err != nil {
		return nil, time.Time{}, err
	}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil, time.Time{}, errors.New("it has no Chart.yaml")
		}
		if err != nil {
			return nil, time.Time{}, err
		}
		if folder, name := path.Split(path.Clean(header.Name)); name == "Chart.yaml" && strings.Count(folder, "/") == 1 {
			text, err := io.ReadAll(files)
			return text, header.ModTime, err
		}
	}
}

// blob writes content under its digest and returns its descriptor.
func blob(layout, mediaType string, content []byte) (descriptor, error) {
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	folder := filepath.Join(layout, "blobs", "sha256")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(folder, sum), content, 0o644); err != nil {
		return nil, err
	}
	return descriptor{"mediaType": mediaType, "digest": "sha256:" + sum, "size": len(content)}, nil
}

// tag gives the only entry of a layout a tag, and returns its digest.
func tag(layout, name string) (string, error) {
	i, err := readIndex(layout)
	if err != nil {
		return "", err
	}
	annotations, _ := i.Manifests[0]["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
	}
	annotations[tagKey] = name
	i.Manifests[0]["annotations"] = annotations
	return fmt.Sprint(i.Manifests[0]["digest"]), writeIndex(layout, i)
}

// base returns the image that a layout's image is based on, with its digest, as ko writes it into annotations.
func base(layout string) (string, error) {
	i, err := readIndex(layout)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(layout, "blobs", strings.Replace(fmt.Sprint(i.Manifests[0]["digest"]), ":", "/", 1)))
	if err != nil {
		return "", err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return "", fmt.Errorf("reading the manifest of %s: %w", layout, err)
	}
	const key = "org.opencontainers.image.base."
	if m.Annotations[key+"name"] == "" || m.Annotations[key+"digest"] == "" {
		return "", fmt.Errorf("%s does not name the image that it is based on", layout)
	}
	return m.Annotations[key+"name"] + "@" + m.Annotations[key+"digest"], nil
}

// readIndex returns the index of a layout with one entry.
func readIndex(layout string) (index, error) {
	var i index
	text, err := os.ReadFile(filepath.Join(layout, "index.json"))
	if err != nil {
		return i, err
	}
	if err := json.Unmarshal(text, &i); err != nil {
		return i, fmt.Errorf("reading the index of %s: %w", layout, err)
	}
	if len(i.Manifests) != 1 {
		return i, fmt.Errorf("%s has %d images, want one", layout, len(i.Manifests))
	}
	return i, nil
}

func writeIndex(layout string, i index) error {
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(layout, "index.json"), text, 0o644)
}
