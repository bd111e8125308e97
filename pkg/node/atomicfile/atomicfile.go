// Package atomicfile replaces files such that a reader, or a machine that crashes, has the old content or the new one, and never a part.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces a file in a directory that exists. Its content survives a crash of the machine.
func Write(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	// The name has no extension, so that nobody who reads all files of a kind in the directory reads half of one.
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
