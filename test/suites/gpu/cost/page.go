package cost

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// titles are the modes and loads in words.
var titles = map[string]string{
	TimeSlicing: "TimeSlicing", "timeSlicingShort": "TimeSlicing, short", "timeSlicingMedium": "TimeSlicing, medium", "timeSlicingLong": "TimeSlicing, long", MPS: "MPS", MPSThreads: "MPS, limited threads",
	"short": "Short kernels", "polling": "Short kernels, polling", "compute": "Compute", "memory": "Memory bandwidth", "inference": "Inference",
}

var descriptions = map[string]string{
	"short":     "An almost empty kernel, one after the other: the cost of a launch",
	"polling":   "The same, but the client polls instead of sleeping until the driver wakes it up",
	"compute":   "A kernel that has all multiprocessors busy with arithmetic for about 2 ms, one after the other",
	"memory":    "A kernel that copies 64 MiB of device memory for about 2 ms, one after the other",
	"inference": "100 requests per second and client, each of 20 kernels of about 100 µs on a quarter of the multiprocessors. If the throughput is less than the clients, requests queue up",
}

// intro begins with what all reports show. TestIntroHolds compares it with them.
const intro = `# What sharing a GPU costs

| pods run | with time-slicing | with MPS |
|---|---|---|
| long kernels that fill the GPU | They share its throughput without loss | 5 to 10 % more throughput together, less with limited threads |
| many short kernels | All together get at most 35 % of what one gets alone | Eight get more than 6 times as much, at the latency of one |
| inference at 100 requests per second | Four are served at the latency of one. With eight, requests queue up | Sixteen are served, with limited threads at four times the latency |

A client also takes about 520 MiB of device memory, with MPS and limited threads 145 MiB if there are four and 59 MiB if there are sixteen.

Measured by ` + "`make test-gpu`" + ` on real GPUs; the [reports](../test/suites/gpu/reports) also have medians, and two and eight clients. Each client is a process with a CUDA
context, and all run the same load at the same time. The column of a mode has the throughput of all clients, relative to one that has the GPU alone, and p99 is
the highest 99th percentile of a client. With MPS, each client has up to all threads (` + "`activeThreadPercent: 100`" + `), and with limited threads its share of them,
the default.

| load | |
|---|---|
`

// Page returns docs/sharing-cost.md.
func Page(reports []Report) string {
	var b strings.Builder
	b.WriteString(intro)
	for _, load := range Loads {
		fmt.Fprintf(&b, "| %s | %s |\n", titles[load], descriptions[load])
	}
	for _, r := range reports {
		fmt.Fprintf(&b, "\n## %s\n\nDriver %s, %s.\n\n![p99 latency by the number of clients](images/%s)\n", r.Product, r.Driver, r.Began.Format(time.DateOnly), r.Picture())
		b.WriteString(Table(r.Rows))
	}
	return b.String()
}

// Picture returns the file name of the report's picture.
func (r Report) Picture() string { return "sharing-cost-" + r.Name + ".svg" }

// Table returns the throughput and the latency of each load with 1, 4 and 16 clients. The picture has the other numbers of clients.
func Table(rows []Row) string {
	var b strings.Builder
	modes := present(Modes, rows, func(r Row) string { return r.Mode })
	b.WriteString("\n| load | clients |")
	for _, mode := range modes {
		fmt.Fprintf(&b, " %s | p99 |", titles[mode])
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", 2*len(modes)) + "\n")
	for _, load := range present(Loads, rows, func(r Row) string { return r.Load }) {
		alone, _ := find(rows, TimeSlicing, load, 1)
		for _, n := range []int{1, 4, 16} {
			fmt.Fprintf(&b, "| %s | %d |", titles[load], n)
			for _, mode := range modes {
				b.WriteString(cells(rows, mode, load, n, alone.OpsPerSecond))
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func cells(rows []Row, mode, load string, clients int, alone float64) string {
	r, ok := find(rows, mode, load, clients)
	if !ok {
		return " - | - |"
	}
	throughput := "-"
	if alone > 0 {
		throughput = fmt.Sprintf("%.2f", r.OpsPerSecond/alone)
	}
	return fmt.Sprintf(" %s | %s |", throughput, duration(r.P99us))
}

func find(rows []Row, mode, load string, clients int) (Row, bool) {
	i := slices.IndexFunc(rows, func(r Row) bool { return r.Mode == mode && r.Load == load && r.Clients == clients })
	if i < 0 {
		return Row{}, false
	}
	return rows[i], true
}

// present returns those of the names that a row has.
func present(names []string, rows []Row, name func(Row) string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return !slices.ContainsFunc(rows, func(r Row) bool { return name(r) == n })
	})
}

// counts returns the numbers of clients, rising.
func counts(rows []Row) []int {
	var all []int
	for _, r := range rows {
		all = append(all, r.Clients)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// duration returns microseconds with a unit and about three digits.
func duration(us float64) string {
	switch {
	case us < 999.5:
		return fmt.Sprintf("%.3g µs", us)
	case us < 999.5e3:
		return fmt.Sprintf("%.3g ms", us/1e3)
	default:
		return fmt.Sprintf("%.3g s", us/1e6)
	}
}
