package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"karve.sh/karve/pkg/manifests"
)

func fileFlags(usage string) *genericclioptions.FileNameFlags {
	return &genericclioptions.FileNameFlags{Usage: usage, Filenames: new([]string), Kustomize: new(""), Recursive: new(false)}
}

// readFiles reads files, the files in directories, URLs and a kustomization. The name - stands for standard input. The resource builder of cli-runtime
// does not suffice, because it loses the document of an object, and accepts duplicate fields.
func readFiles(ctx context.Context, o resource.FilenameOptions, in io.Reader) ([]manifests.File, error) {
	if o.Kustomize != "" {
		if len(o.Filenames) > 0 || o.Recursive {
			return nil, errors.New("-k cannot be used together with -f or -R")
		}
		return kustomization(o.Kustomize)
	}
	var files []manifests.File
	b := newBounded("the manifests", manifests.MaxSize)
	for _, name := range o.Filenames {
		var read []manifests.File
		var err error
		switch {
		case name == "-":
			read, err = singleFile("standard input")(b.readAll(in))
		case strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://"):
			read, err = singleFile(name)(b.download(ctx, name))
		default:
			read, err = b.readPath(name, o.Recursive)
		}
		if err != nil {
			return nil, err
		}
		files = append(files, read...)
	}
	return files, nil
}

// singleFile returns a function that turns content into a single file.
func singleFile(name string) func([]byte, error) ([]manifests.File, error) {
	return func(content []byte, err error) ([]manifests.File, error) {
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		return []manifests.File{{Name: name, Content: content}}, nil
	}
}

// bounded reads files with a limit on the size of all of them together, in bytes.
type bounded struct {
	limit, left int64
	// what is read, in errors.
	what string
}

func newBounded(what string, limit int64) *bounded { return &bounded{limit, limit, what} }

// readAll reads all of a stream. It returns an error, without reading on, when there is more than is left.
func (b *bounded) readAll(in io.Reader) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(in, b.left+1))
	if b.left -= int64(len(content)); b.left < 0 {
		return nil, fmt.Errorf("%s have more than %d MiB", b.what, b.limit>>20)
	}
	return content, err
}

// readFile reads a file, which may also be a pipe or a device.
func (b *bounded) readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // It is only read.
	content, err := b.readAll(f)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return content, nil
}

const downloadTimeout = time.Minute

func (b *bounded) download(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{Timeout: downloadTimeout}).Do(request)
	if err != nil {
		return nil, errors.Unwrap(err) // The caller names the URL.
	}
	defer answer.Body.Close() //nolint:errcheck // It is only read.
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answered %s", answer.Status)
	}
	return b.readAll(answer.Body)
}

func kustomization(directory string) ([]manifests.File, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy // as kubectl does
	objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), directory)
	if err != nil {
		return nil, fmt.Errorf("-k %s: %w", directory, err)
	}
	return singleFile("kustomization " + directory)(objects.AsYaml())
}

func (b *bounded) readPath(name string, recursive bool) ([]manifests.File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	paths := []string{name}
	if info.IsDir() {
		if paths, err = expand(name, recursive); err != nil {
			return nil, err
		}
	}
	var files []manifests.File
	for _, path := range paths {
		content, err := b.readFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, manifests.File{Name: path, Content: content, Found: info.IsDir()})
	}
	return files, nil
}

const maxFiles = 10_000

func expand(directory string, recursive bool) ([]string, error) {
	var paths []string
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != directory && !recursive:
			return filepath.SkipDir
		case !entry.IsDir() && slices.Contains(resource.FileExtensions, filepath.Ext(path)):
			paths = append(paths, path)
			return checkUsable(path, len(paths), directory)
		}
		return nil
	})
	if err == nil && len(paths) == 0 {
		return nil, fmt.Errorf("%s has no files named *.yaml, *.yml or *.json; -R also reads its subdirectories", directory)
	}
	return paths, err
}

// checkUsable returns an error if the n-th manifest of a directory is one too many, or something that may never end, such as a pipe.
func checkUsable(path string, n int, directory string) error {
	if n > maxFiles {
		return fmt.Errorf("%s has more than %d files named *.yaml, *.yml or *.json", directory, maxFiles)
	}
	info, err := os.Stat(path) // It follows links.
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s in a directory of manifests is not a file", path)
	}
	return err
}
