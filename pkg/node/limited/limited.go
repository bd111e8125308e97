// Package limited bounds what the agent reads.
package limited

import (
	"fmt"
	"io"
	"os"
)

// ReadFile reads a file of at most limit bytes. A larger one is an error.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %s", path, sizeText(limit))
	}
	return data, err
}

func sizeText(bytes int64) string {
	if bytes>>20 > 0 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}
