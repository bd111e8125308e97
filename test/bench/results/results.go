// Package results stores the measurements of benchmarks and of the demo.
package results

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Save writes results to a file as JSON. It creates the folder if needed.
func Save(path string, results any) error {
	content, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the figures: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // For everybody.
		return fmt.Errorf("writing the figures: %w", err)
	}
	if err := os.WriteFile(path, append(content, '\n'), 0o644); err != nil { //nolint:gosec // For everybody.
		return fmt.Errorf("writing the figures: %w", err)
	}
	return nil
}
