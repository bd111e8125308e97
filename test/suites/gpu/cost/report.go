package cost

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Report is what the tests of package gpu found on a machine, as far as it is about the cost of sharing.
type Report struct {
	// Name is that of the file without its extension.
	Name    string `json:"-"`
	Date    string `json:"date"`
	Product string `json:"product"`
	Driver  string `json:"driver"`
	Checks  []struct {
		Name     string `json:"name"`
		Result   string `json:"result"`
		Measured struct {
			Cost []Row `json:"cost"`
		} `json:"measured"`
	} `json:"checks"`
}

// Rows returns the measurements of all checks.
func (r Report) Rows() []Row {
	var rows []Row
	for _, c := range r.Checks {
		rows = append(rows, c.Measured.Cost...)
	}
	return rows
}

// Read returns the reports of a directory that have measurements, sorted by name.
func Read(dir string) ([]Report, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("listing reports: %w", err)
	}
	var reports []Report
	for _, file := range files {
		text, err := os.ReadFile(file) //nolint:gosec // A report that is committed.
		if err != nil {
			return nil, fmt.Errorf("reading a report: %w", err)
		}
		r := Report{Name: strings.TrimSuffix(filepath.Base(file), ".json")}
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		if len(r.Rows()) > 0 {
			reports = append(reports, r)
		}
	}
	return reports, nil
}
