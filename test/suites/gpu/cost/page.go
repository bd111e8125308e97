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
	"short":     "An almost empty kernel, one after the other: the cost of a launch.",
	"polling":   "The same, but the client asks again and again whether the kernel is done, instead of sleeping until the driver wakes it up.",
	"compute":   "A kernel that has all multiprocessors busy with arithmetic for about 2 ms, one after the other.",
	"memory":    "A kernel that copies 64 MiB of device memory several times, for about 2 ms, one after the other.",
	"inference": "100 requests per second and client, each of 20 kernels of about 100 µs on a quarter of the multiprocessors. Latency counts from the arrival of a\nrequest. If the throughput is less than the number of clients, requests queue up, and the latency depends on how long that lasts: here less than 2 s.",
}

const intro = `# What sharing a GPU costs

Generated from the reports of ` + "`make test-gpu`" + ` on real GPUs, in ` + "`test/suites/gpu/reports`" + `. Each client is a process
with a CUDA context. All clients run the same load at the same time for a second or more. They wait for each operation, and sleep meanwhile
(` + "`CU_CTX_SCHED_BLOCKING_SYNC`" + `).

| mode | |
|---|---|
| TimeSlicing | clients take turns, at the default interval of the GPU |
| MPS | clients run at the same time, each with up to all threads: ` + "`activeThreadPercent: 100`" + ` |
| MPS, limited threads | clients run at the same time, each with 100 percent of the threads divided by the clients, which is the default |

Throughput is that of all clients together, relative to one client that has the GPU alone. p50 is the median client's median latency. p99 is the 99th
percentile of the client for which it is highest.
`

// Page returns docs/sharing-cost.md.
func Page(reports []Report) string {
	var b strings.Builder
	b.WriteString(intro)
	for _, r := range reports {
		fmt.Fprintf(&b, "\n## %s\n\nDriver %s, %s.\n\n![p99 latency by the number of clients](images/%s)\n", r.Product, r.Driver, r.Began.Format(time.DateOnly), r.Picture())
		b.WriteString(Tables(r.Rows))
	}
	return b.String()
}

// Picture returns the file name of the report's picture.
func (r Report) Picture() string { return "sharing-cost-" + r.Name + ".svg" }

// Tables returns a table for each load that was measured, and one of the device memory of contexts.
func Tables(rows []Row) string {
	var b strings.Builder
	modes := present(Modes, rows, func(r Row) string { return r.Mode })
	for _, load := range present(Loads, rows, func(r Row) string { return r.Load }) {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| clients |", titles[load], descriptions[load])
		for _, mode := range modes {
			fmt.Fprintf(&b, " %s: throughput | p50 | p99 |", titles[mode])
		}
		b.WriteString("\n|---|" + strings.Repeat("---|", 3*len(modes)) + "\n")
		alone, _ := find(rows, TimeSlicing, load, 1)
		for _, n := range counts(rows) {
			fmt.Fprintf(&b, "| %d |", n)
			for _, mode := range modes {
				b.WriteString(cells(rows, mode, load, n, alone.OpsPerSecond))
			}
			b.WriteString("\n")
		}
	}
	b.WriteString("\n### Device memory of a client\n\nWhat each client takes beyond what it allocates. With MPS, this includes its part of the server's memory.\n\n| clients |")
	for _, mode := range modes {
		fmt.Fprintf(&b, " %s |", titles[mode])
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(modes)) + "\n")
	for _, n := range counts(rows) {
		fmt.Fprintf(&b, "| %d |", n)
		for _, mode := range modes {
			// All loads of one number of clients run in the same contexts.
			i := slices.IndexFunc(rows, func(r Row) bool { return r.Mode == mode && r.Clients == n })
			if i < 0 {
				b.WriteString(" - |")
				continue
			}
			fmt.Fprintf(&b, " %.0f MiB |", rows[i].MemoryMiBPerClient)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func cells(rows []Row, mode, load string, clients int, alone float64) string {
	r, ok := find(rows, mode, load, clients)
	if !ok {
		return " - | - | - |"
	}
	throughput := "-"
	if alone > 0 {
		throughput = fmt.Sprintf("%.2f", r.OpsPerSecond/alone)
	}
	return fmt.Sprintf(" %s | %s | %s |", throughput, duration(r.P50us), duration(r.P99us))
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
