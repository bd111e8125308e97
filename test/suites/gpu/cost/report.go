package cost

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"karve.sh/karve/pkg/density"
	"karve.sh/karve/test/suites/gpu/report"
)

// Report is what the suite measured on a machine.
type Report struct {
	// Name is that of the file without its extension.
	Name string
	report.Report

	Rows []Row
}

// Read returns the reports of a directory that have measurements, the newest first.
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
		err = json.Unmarshal(text, &r.Report)
		for _, c := range r.Checks {
			for _, row := range c.Measured[Attribute] {
				if err == nil {
					r.Rows = append(r.Rows, Row{})
					err = json.Unmarshal(row, &r.Rows[len(r.Rows)-1])
				}
			}
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		if len(r.Rows) > 0 {
			reports = append(reports, r)
		}
	}
	slices.SortStableFunc(reports, func(a, b Report) int { return b.Began.Compare(a.Began) })
	return reports, nil
}

// perSecond is the number of requests per second of each client of the load "inference", in load.c.
const perSecond = 100

// Density returns the measurements as plans use them.
func (r Report) Density() density.Measurement {
	m := density.Measurement{Product: r.Product, Driver: r.Driver, Date: r.Began.Format(time.DateOnly)}
	for _, mode := range Modes {
		alone, _ := find(r.Rows, TimeSlicing, "compute", 1)
		for _, n := range counts(r.Rows) {
			compute, ok := find(r.Rows, mode, "compute", n)
			requests, also := find(r.Rows, mode, "inference", n)
			if !ok || !also || alone.OpsPerSecond == 0 {
				continue
			}
			row := density.Row{Mode: density.Mode(mode), Pods: n, Compute: thousandths(compute.OpsPerSecond / float64(n) / alone.OpsPerSecond), Requests: min(1, thousandths(requests.OpsPerSecond/float64(n)/perSecond))}
			if row.Requests == 1 {
				row.RequestP99 = thousandths(requests.P99us / 1000)
			}
			m.Rows = append(m.Rows, row)
		}
	}
	return m
}

// thousandths rounds a number to three decimals.
func thousandths(x float64) float64 { return math.Round(x*1000) / 1000 }
