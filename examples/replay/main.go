// Command replay writes the sample trace of kubectl karve replay: a made-up day of a team with GPUs. It always writes the same.
//
//	go run ./examples/replay > examples/replay/trace.csv
package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// Times are in seconds since midnight.
const (
	minute = 60
	hour   = 60 * minute
	day    = 24 * hour
)

// pod is a line of the trace. It requests one replica of a GPU.
type pod struct {
	name                string
	milliCPU, memoryMiB int
	// milliGPU is the part of 16 GiB of GPU memory that it needs, in thousandths.
	milliGPU int
	from, to int
}

// team returns the pods of a day: services that always run, notebooks in office hours, and jobs at any time.
func team() (all []pod) {
	random := rand.New(rand.NewPCG(2026, 11)) //nolint:gosec // It is to be the same each time.
	between := func(low, high int) int { return low + random.IntN(high-low+1) }
	one := func(of ...int) int { return of[random.IntN(len(of))] }
	for i := range 8 {
		all = append(all, pod{fmt.Sprintf("serve-%d", i), 500, 2048, 300, 0, day})
	}
	for i := range 30 {
		from := between(8*hour, 11*hour)
		all = append(all, pod{fmt.Sprintf("notebook-%d", i), 250, 2048, one(100, 150, 200), from, from + between(4*hour, 9*hour)})
	}
	for i := range 60 {
		from := between(0, day-3*hour)
		length := between(5*minute, 40*minute)
		if i%4 == 0 {
			length = between(hour, 3*hour)
		}
		all = append(all, pod{fmt.Sprintf("job-%d", i), 1000, 3072, one(100, 150, 250), from, from + length})
	}
	return all
}

// write writes the trace.
func write(to io.Writer) error {
	out := bufio.NewWriter(to)
	fmt.Fprintln(out, "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time")
	for _, p := range team() {
		fmt.Fprintf(out, "%s,%d,%d,1,%d,%d,%d\n", p.name, p.milliCPU, p.memoryMiB, p.milliGPU, p.from, p.to)
	}
	return out.Flush()
}

func main() {
	if err := write(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
