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

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"karve.sh/karve/pkg/manifests"
)

// fileFlags are kubectl's flags that name manifests: -f, -R and -k.
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
	for _, name := range o.Filenames {
		var read []manifests.File
		var err error
		switch {
		case name == "-":
			read, err = one("standard input")(io.ReadAll(in))
		case strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://"):
			read, err = one(name)(download(ctx, name))
		default:
			read, err = readPath(name, o.Recursive)
		}
		if err != nil {
			return nil, err
		}
		files = append(files, read...)
	}
	return files, nil
}

// one returns a function that turns content into a single file.
func one(name string) func([]byte, error) ([]manifests.File, error) {
	return func(content []byte, err error) ([]manifests.File, error) {
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		return []manifests.File{{Name: name, Content: content}}, nil
	}
}

// download returns the content of a URL.
func download(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, errors.Unwrap(err) // The caller names the URL.
	}
	defer answer.Body.Close() //nolint:errcheck // It is only read.
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answered %s", answer.Status)
	}
	return io.ReadAll(answer.Body)
}

// kustomization returns the output of kubectl kustomize for a directory.
func kustomization(directory string) ([]manifests.File, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy // as kubectl does
	objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), directory)
	if err != nil {
		return nil, fmt.Errorf("-k %s: %w", directory, err)
	}
	return one("kustomization " + directory)(objects.AsYaml())
}

// readPath reads a file or the files in a directory.
func readPath(name string, recursive bool) ([]manifests.File, error) {
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
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, manifests.File{Name: path, Content: content, Found: info.IsDir()})
	}
	return files, nil
}

// writeWhole writes a file that everybody may read. A file at the path is replaced only when all has been written, and something else than a file, such as
// a pipe, is written to.
func writeWhole(path string, content []byte) error {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, content, 0o644) //nolint:gosec // G306: see above.
	}
	part, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part")
	if err != nil {
		return err
	}
	_, err = part.Write(content)
	err = errors.Join(err, part.Chmod(0o644), part.Close())
	if err == nil {
		err = os.Rename(part.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part.Name()))
	}
	return nil
}

// expand returns the files in a directory that have one of kubectl's extensions.
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
		}
		return nil
	})
	if err == nil && len(paths) == 0 {
		return nil, fmt.Errorf("%s has no files named *.yaml, *.yml or *.json; -R also reads its subdirectories", directory)
	}
	return paths, err
}
