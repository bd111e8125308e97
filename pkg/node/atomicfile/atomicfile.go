// Package atomicfile replaces files atomically: a reader finds either the old or the new content, never a part of it, even after a crash of the
// machine.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces a file in an existing directory. Its content survives a crash of the machine.
func Write(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	// The name has no extension, so that a process that reads all files of a kind in the directory does not read it.
	next, err := os.CreateTemp(dir, ".karve-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(next.Name()) }() // It no longer exists after a success.
	_, err = next.Write(data)
	if err = errors.Join(err, next.Chmod(mode), next.Sync(), next.Close()); err != nil {
		return err
	}
	if err := os.Rename(next.Name(), path); err != nil {
		return err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	return folder.Sync()
}
