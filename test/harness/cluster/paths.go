package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Root returns the root of the repository: the nearest folder above the working directory with the product's go.mod. The tests have go.mod files of
// their own, so the folder must also contain test/harness/cluster.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for {
		if exists(filepath.Join(dir, "go.mod")) && exists(filepath.Join(dir, "test", "harness", "cluster")) {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("finding the repository: no go.mod beside test/harness/cluster in this folder or above it")
		}
		dir = parent
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// logTail returns the end of a log file for error messages, where a component reports why it failed.
func logTail(path string) string {
	const most = 4 << 10
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, 2); err != nil {
			return err.Error()
		}
	}
	tail := make([]byte, most)
	n, _ := f.Read(tail)
	return string(tail[:n])
}
