//go:build cgo && gpu

package gpu_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/nvml"
)

const smActive, dramActive = "sm_active_ratio", "dram_active_ratio"

// TestProfilingCounters checks that the profiling counters tell a load that computes from one that copies memory, and both from an idle GPU, and
// that the traffic on PCIe has the right unit.
func TestProfilingCounters(t *testing.T) {
	w := newWorld(t)
	w.whole(7)
	// settle is longer than the agent keeps values. The second reading after a change is then a mean of the time since the change.
	const settle = 1300 * time.Millisecond
	w.library(func(l *nvml.Library) {
		uuid := w.devices[0].UUID
		_, err := l.Devices()
		w.must(err)
		_, err = l.Usage(uuid)
		w.must(err)
		time.Sleep(settle)
		u, err := l.Usage(uuid)
		w.must(err)
		if u.Profiling == nil {
			t.Skipf("the %s has no profiling counters", w.devices[0].Product)
		}
	})
	w.share("timeSlicing", 4)
	w.run()
	w.allocatable(4 * len(w.devices))

	ctx, cancel := context.WithTimeout(t.Context(), costsTimeout)
	defer cancel()
	alone := w.calibrate()
	client := w.load(ctx, alone["multiprocessors"], nil)
	if line := client.line(); line != "ready" {
		t.Fatalf("the client is not ready: %q", line)
	}
	command := func(load string) string { return fmt.Sprintf("%s %d 3", load, alone[load]) }
	for _, c := range []struct {
		what, command string
		ok            func(got map[string]float64) bool
		want          string
	}{
		{"compute", command("compute"), func(got map[string]float64) bool { return got[smActive] > 0.5 && got[dramActive] < 0.2 }, "SM active above 0.5, and DRAM active below 0.2"},
		{"memory", command("memory"), func(got map[string]float64) bool { return got[dramActive] > 0.3 }, "DRAM active above 0.3"},
		{"send", "send 3.5", func(got map[string]float64) bool { return got[dramActive] < 0.3 }, "DRAM active below 0.3"},
		{"idle", "", func(got map[string]float64) bool { return got[smActive] < 0.1 && got[dramActive] < 0.1 }, "SM active and DRAM active below 0.1"},
	} {
		if c.command != "" {
			_, err := fmt.Fprintln(client.in, c.command)
			w.must(err)
		}
		time.Sleep(settle)
		w.counters()
		time.Sleep(settle)
		got := w.counters()
		if c.command != "" {
			line := client.line()
			if n, err := strconv.ParseFloat(line, 64); err == nil {
				got["sent"] = n
			}
			t.Logf("%s: the client said %s", c.what, line)
		}
		attr(t, c.what, got)
		if !c.ok(got) {
			t.Errorf("%s: %v, want %s", c.what, got, c.want)
		}
		for name, value := range got {
			if strings.HasSuffix(name, "_ratio") && value > 1 {
				t.Errorf("%s: %s is %g", c.what, name, value)
			}
		}
		// Headers of packets add some. Machines whose GPU has another link than PCIe to the CPU send nothing over PCIe.
		if received := got["pcie_receive_bytes_per_second"]; got["sent"] > 0 && received > 0 && (received < got["sent"]/2 || received > 2*got["sent"]) {
			t.Errorf("the client sends %.3g bytes per second, and the GPU receives %.3g", got["sent"], received)
		}
	}
	w.must(client.in.Close())
	w.must(client.cmd.Wait())
}

// counters returns the metrics of the first GPU that come from profiling counters.
func (w *world) counters() map[string]float64 {
	w.t.Helper()
	values := map[string]float64{}
	for _, name := range []string{
		smActive, "sm_occupancy_ratio", "tensor_active_ratio", "fp64_active_ratio", "fp32_active_ratio", "fp16_active_ratio", dramActive,
		"pcie_transmit_bytes_per_second", "pcie_receive_bytes_per_second", "nvlink_transmit_bytes_per_second", "nvlink_receive_bytes_per_second",
	} {
		values[name] = w.metric("karve_gpu_"+name, w.devices[0].UUID)
	}
	return values
}
