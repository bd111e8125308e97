// Package limited bounds what the agent reads, and what it says about it.
package limited

import (
	"fmt"
	"io"
	"os"
	"strings"
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

// Text returns a text of at most limit bytes that ends in dots if it was longer.
func Text(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-3], "") + "..."
}
