// Package cost has the measured cost of sharing a GPU: what TestCosts of the package above measures, and how the documentation shows it.
package cost

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"karve.sh/karve/pkg/density"
)

// Modes in which clients share a GPU.
const (
	TimeSlicing = string(density.TimeSlicing)
	MPS         = string(density.MPS)
	MPSThreads  = string(density.MPSThreads)
)

// Modes and Loads are in the order of tables, and Intervals are time-slicing at intervals other than the default. testdata/load.c of the package above defines
// the loads.
var (
	Intervals = []string{"timeSlicingShort", "timeSlicingMedium", "timeSlicingLong"}

	Modes = append(append([]string{TimeSlicing}, Intervals...), MPS, MPSThreads)
	Loads = []string{"short", "polling", "compute", "memory", "inference"}
)

// Attribute is the key of a [Row] among the attributes of a test.
const Attribute = "cost"

// Row is what clients got of one GPU that ran the same load at the same time.
type Row struct {
	Mode    string `json:"mode"`
	Clients int    `json:"clients"`
	Load    string `json:"load"`
	// OpsPerSecond is the throughput of all clients, and PerClientMin and PerClientMax those of the slowest and the fastest.
	OpsPerSecond float64 `json:"opsPerSecond"`
	PerClientMin float64 `json:"perClientMin"`
	PerClientMax float64 `json:"perClientMax"`
	// P50us is the median of the clients' median latencies in microseconds, and P99us the highest of their 99th percentiles.
	P50us float64 `json:"p50us"`
	P99us float64 `json:"p99us"`
	// MemoryMiBPerClient is the device memory that the clients take beyond their buffers, by client, as the difference of the GPU's used memory. For MPS, it
	// includes a part of the server's.
	MemoryMiBPerClient float64 `json:"memoryMiBPerClient"`
	// ProcessMiBPerClient is the same as the driver reports it by process. It is 0 if the driver does not.
	ProcessMiBPerClient float64 `json:"processMiBPerClient"`
}

// Result is what one client got, as it prints it. Latencies are in microseconds.
type Result struct {
	Operations float64 `json:"operations"`
	Seconds    float64 `json:"seconds"`
	P50        float64 `json:"p50"`
	P99        float64 `json:"p99"`
}

// Summarize sets the throughput and the latencies of the row from the results of its clients, of which there is at least one.
func (r *Row) Summarize(results []Result) {
	var rates, medians, tails []float64
	r.OpsPerSecond = 0
	for _, c := range results {
		rates, medians, tails = append(rates, c.Operations/c.Seconds), append(medians, c.P50), append(tails, c.P99)
		r.OpsPerSecond += c.Operations / c.Seconds
	}
	slices.Sort(medians)
	r.PerClientMin, r.PerClientMax = slices.Min(rates), slices.Max(rates)
	r.P50us, r.P99us = medians[(len(medians)-1)/2], slices.Max(tails)
}

// String returns the row as one line of JSON, with one decimal place.
func (r Row) String() string {
	for _, v := range []*float64{&r.OpsPerSecond, &r.PerClientMin, &r.PerClientMax, &r.P50us, &r.P99us, &r.MemoryMiBPerClient, &r.ProcessMiBPerClient} {
		*v = math.Round(*v*10) / 10
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Sprintf("%q", err) // A number that is not finite.
	}
	return string(text)
}
