// Command krew writes the manifest with which krew, kubectl's plugin manager, installs kubectl-karve from the archives of a release.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// plugin is a manifest of krew's API, with the fields that are used here.
type plugin struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       spec              `json:"spec"`
}

type spec struct {
	Version          string     `json:"version"`
	Homepage         string     `json:"homepage"`
	ShortDescription string     `json:"shortDescription"`
	Description      string     `json:"description"`
	Caveats          string     `json:"caveats"`
	Platforms        []platform `json:"platforms"`
}

type platform struct {
	Selector selector `json:"selector"`
	URI      string   `json:"uri"`
	SHA256   string   `json:"sha256"`
	Files    []file   `json:"files"`
	Bin      string   `json:"bin"`
}

type selector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// file is copied from the archive into the folder of the plugin.
type file struct {
	From string `json:"from"`
	To   string `json:"to"`
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: krew VERSION DOWNLOADS ARCHIVE...")
		os.Exit(2)
	}
	text, err := manifest(os.Args[1], os.Args[2], os.Args[3:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "krew:", err)
		os.Exit(1)
	}
	fmt.Print(text)
}

// manifest returns the manifest of a version, such as 0.1.0, whose archives will be downloaded from the URL of a folder.
func manifest(version, downloads string, archives []string) (string, error) {
	p := plugin{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin", Metadata: map[string]string{"name": "karve"},
		Spec: spec{
			Version: "v" + version, Homepage: "https://karve.sh", ShortDescription: "Plan and inspect shared GPUs on Karpenter's nodes",
			Description: "Shows nodes with shared GPUs, who holds which replica, how much of it is used and\n" +
				"what it costs. Plans which nodes Karve would launch for pods, without a cluster or in\n" +
				"one, and explains why a pod waits or why a node stays.\n",
			Caveats: "Most verbs read a cluster in which Karve is installed: https://karve.sh\n" +
				"kubectl karve plan -f FILES needs no cluster.\n",
		},
	}
	for _, archive := range archives {
		entry, err := platformOf(archive)
		if err != nil {
			return "", fmt.Errorf("reading archive %s: %w", archive, err)
		}
		entry.URI = strings.TrimSuffix(downloads, "/") + "/" + filepath.Base(archive)
		p.Spec.Platforms = append(p.Spec.Platforms, entry)
	}
	text, err := yaml.Marshal(p)
	return string(text), err
}

var archiveName = regexp.MustCompile(`^kubectl-karve-([a-z]+)-([a-z0-9]+)\.tar\.gz$`)

// platformOf describes an archive, which names its platform. It returns an error if the archive lacks the program or the license.
func platformOf(archive string) (platform, error) {
	name := archiveName.FindStringSubmatch(filepath.Base(archive))
	if name == nil {
		return platform{}, errors.New("its name is not kubectl-karve-OS-ARCHITECTURE.tar.gz")
	}
	p := platform{Selector: selector{map[string]string{"os": name[1], "arch": name[2]}}, Bin: "kubectl-karve"}
	if name[1] == "windows" {
		p.Bin += ".exe"
	}
	content, err := os.ReadFile(archive)
	if err != nil {
		return p, err
	}
	p.SHA256 = fmt.Sprintf("%x", sha256.Sum256(content))
	unzipped, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return p, err
	}
	has := map[string]bool{}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return p, err
		}
		has[header.Name] = true
	}
	for _, name := range []string{p.Bin, "LICENSE"} {
		if !has[name] {
			return p, fmt.Errorf("it has no %s", name)
		}
		p.Files = append(p.Files, file{name, "."})
	}
	return p, nil
}
