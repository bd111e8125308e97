// Package density has what pods get of a GPU that they share, as measured on real GPUs. The figures are those of docs/sharing-cost.md.
package density

import (
	_ "embed"
	"encoding/json"
	"slices"
	"sync"
)

// Mode is how processes share a GPU.
type Mode string

// Modes.
const (
	TimeSlicing Mode = "timeSlicing"
	MPS         Mode = "mps"
	// MPSThreads is MPS with a limit of threads for each process: 100 percent divided by their number.
	MPSThreads Mode = "mpsThreads"
)

// Measurement is what was measured on one GPU.
type Measurement struct {
	// Product is the GPU as the driver names it.
	Product string `json:"product"`
	Driver  string `json:"driver"`
	Date    string `json:"date"`
	Rows    []Row  `json:"rows"`
}

// Row is what each of several pods on a GPU got, all of them busy at the same time.
type Row struct {
	Mode Mode `json:"mode"`
	Pods int  `json:"pods"`
	// Compute is the throughput of kernels that use the whole GPU, relative to that of a pod that has the GPU alone.
	Compute float64 `json:"compute"`
	// Requests is the share of 100 requests per second that a pod could answer, each with 2 ms of work on a quarter of the GPU. RequestP99 is the 99th
	// percentile of their latency in milliseconds, of the pod for which it is highest. It is 0 if Requests is below 1: then requests queue up.
	Requests   float64 `json:"requests"`
	RequestP99 float64 `json:"requestP99Milliseconds"`
}

//go:embed measured.json
var text []byte

// Measured returns the measurements, the newest first.
var Measured = sync.OnceValue(func() []Measurement {
	var all []Measurement
	if err := json.Unmarshal(text, &all); err != nil {
		panic(err) // The file is part of the program.
	}
	return all
})

// Of returns what each of a number of pods on a GPU gets according to a measurement: the row with as many pods, or else the next larger number. It returns false
// if there is none.
func (m Measurement) Of(mode Mode, pods int64) (Row, bool) {
	rows := slices.DeleteFunc(slices.Clone(m.Rows), func(r Row) bool { return r.Mode != mode || int64(r.Pods) < pods })
	if len(rows) == 0 || pods < 1 {
		return Row{}, false
	}
	return slices.MinFunc(rows, func(a, b Row) int { return a.Pods - b.Pods }), true
}

// Of returns what each of a number of pods on a GPU gets according to the newest measurement that says it, and the GPU. It returns false if none does.
func Of(mode Mode, pods int64) (product string, row Row, ok bool) {
	for _, m := range Measured() {
		if row, ok := m.Of(mode, pods); ok {
			return m.Product, row, true
		}
	}
	return "", Row{}, false
}
