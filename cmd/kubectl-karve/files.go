package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"karve.sh/karve/pkg/manifests"
)

// extensions are the extensions of the files that are read from directories, as in kubectl. Files that are named explicitly may have any extension.
var extensions = []string{".yaml", ".yml", ".json"}

// readFiles reads files and the files in directories. The name - stands for standard input.
func readFiles(names []string, recursive bool, in io.Reader) ([]manifests.File, error) {
	var files []manifests.File
	for _, name := range names {
		if name == "-" {
			content, err := io.ReadAll(in)
			if err != nil {
				return nil, fmt.Errorf("reading standard input: %w", err)
			}
			files = append(files, manifests.File{Name: "standard input", Content: content})
			continue
		}
		paths, err := expand(name, recursive)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			files = append(files, manifests.File{Name: path, Content: content})
		}
	}
	return files, nil
}

// expand returns the files that a name stands for.
func expand(name string, recursive bool) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	var paths []string
	err = filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != name && !recursive:
			return filepath.SkipDir
		case !entry.IsDir() && slices.Contains(extensions, filepath.Ext(path)):
			paths = append(paths, path)
		}
		return nil
	})
	if err == nil && len(paths) == 0 {
		return nil, fmt.Errorf("%s has no files named *.yaml, *.yml or *.json; -R looks into its folders too", name)
	}
	return paths, err
}
