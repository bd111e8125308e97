package main

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
)

// best.csv has the prices of the cheapest plans that were ever found, by any search in any time: the row, the number of its snapshot, and micro-dollars an hour.
// The flag -best searches for cheaper ones and updates it.
//
//go:embed best.csv
var bestCSV string

// best are the prices of the best known plans, by row and snapshot.
type best map[string][]planner.MicroUSD

func readBest() (best, error) {
	records, err := csv.NewReader(strings.NewReader(bestCSV)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("reading best.csv: %w", err)
	}
	b := best{}
	for i, r := range records[1:] {
		price, err := strconv.ParseInt(r[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("reading best.csv: line %d: %w", i+2, err)
		}
		b[r[0]] = append(b[r[0]], planner.MicroUSD(price))
	}
	return b, nil
}

// price returns the lowest known price for the n-th snapshot of a row, counted from 1, if one is known besides that of the given plan.
func (b best) price(row string, n int, found planner.MicroUSD) (planner.MicroUSD, bool) {
	if n > len(b[row]) {
		return 0, false
	}
	return min(b[row][n-1], found), true
}

// over returns how much more prices add up to than the best known ones, in percent, or nil if not all are known.
func over(prices, known []planner.MicroUSD) *float64 {
	if len(known) == 0 || len(known) < len(prices) {
		return nil
	}
	var sum, least planner.MicroUSD
	for i := range prices {
		sum, least = sum+prices[i], least+known[i]
	}
	return new(100 * (float64(sum)/float64(least) - 1))
}

// improve searches for a plan of each snapshot of a row for a time, and keeps the prices of those that are cheaper than the best known ones.
func (b best) improve(r row, budget time.Duration) error {
	n := 0
	for s := range r.snapshots {
		p, _ := plan(s, budget)
		if err := check.Plan(s, p); err != nil {
			return fmt.Errorf("%s: the plan breaks a rule: %w", r.name, err)
		}
		if n++; n > len(b[r.name]) {
			b[r.name] = append(b[r.name], math.MaxInt64)
		}
		b[r.name][n-1] = min(b[r.name][n-1], p.Price)
		fmt.Printf("%s, %d: %.3f, best known %.3f\n", r.name, n, float64(p.Price)/1e6, float64(b[r.name][n-1])/1e6)
	}
	return nil
}

// save writes the prices to a file.
func (b best) save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := csv.NewWriter(f)
	records := [][]string{{"row", "snapshot", "microUSDPerHour"}}
	var rows []string
	for row := range b {
		rows = append(rows, row)
	}
	slices.Sort(rows)
	for _, row := range rows {
		for i, price := range b[row] {
			records = append(records, []string{row, strconv.Itoa(i + 1), strconv.FormatInt(int64(price), 10)})
		}
	}
	if err := w.WriteAll(records); err != nil {
		return err
	}
	return f.Close()
}
