// Package smi compares what Karve reads of a GPU with what nvidia-smi prints.
package smi

import (
	"encoding/xml"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
)

// Log is the output of nvidia-smi -q -x, as far as Karve reads the same.
type Log struct {
	Driver string `xml:"driver_version"`
	CUDA   string `xml:"cuda_version"`
	Count  string `xml:"attached_gpus"`
	GPUs   []GPU  `xml:"gpu"`
}

// GPU is a GPU in the output. Values are texts with units, and "N/A" or "[Not Supported]" if the GPU does not report them.
type GPU struct {
	Product      string    `xml:"product_name"`
	Architecture string    `xml:"product_architecture"`
	UUID         string    `xml:"uuid"`
	Minor        string    `xml:"minor_number"`
	MIG          string    `xml:"mig_mode>current_mig"`
	ComputeMode  string    `xml:"compute_mode"`
	BusID        string    `xml:"pci>pci_bus_id"`
	Total        string    `xml:"fb_memory_usage>total"`
	Used         string    `xml:"fb_memory_usage>used"`
	Free         string    `xml:"fb_memory_usage>free"`
	GPUPercent   string    `xml:"utilization>gpu_util"`
	MemPercent   string    `xml:"utilization>memory_util"`
	Celsius      string    `xml:"temperature>gpu_temp"`
	Watts        string    `xml:"gpu_power_readings>power_draw"`
	InstantWatts string    `xml:"gpu_power_readings>instant_power_draw"`
	OldWatts     string    `xml:"power_readings>power_draw"`
	SMClock      string    `xml:"clocks>sm_clock"`
	MemClock     string    `xml:"clocks>mem_clock"`
	Recovery     string    `xml:"gpu_recovery_action"`
	Processes    []Process `xml:"processes>process_info"`
}

// Process is a process in the output.
type Process struct {
	PID  int    `xml:"pid"`
	Used string `xml:"used_memory"`
}

// Parse reads the output of nvidia-smi -q -x.
func Parse(text []byte) (Log, error) {
	var l Log
	if err := xml.Unmarshal(text, &l); err != nil {
		return Log{}, fmt.Errorf("reading the output of nvidia-smi: %w", err)
	}
	return l, nil
}

// Value is one value of a GPU, read by Karve and printed by nvidia-smi.
type Value struct {
	Name  string `json:"name"`
	Karve string `json:"karve"`
	SMI   string `json:"nvidiaSMI"`
	// Agree reports whether they are the same, or as close as values can be that change between two readings.
	Agree bool `json:"agree"`
}

// Reading is what Karve reads of a GPU.
type Reading struct {
	Driver gpu.Driver
	Device gpu.Device
	Usage  gpu.Usage
	// Recovery is what the driver asks for.
	Recovery gpu.Recovery
	// RootOf returns the PCIe root complex of a PCI address such as "0000:00:1e.0", as the kernel has it.
	RootOf func(address string) string
	// Labels are those of the node.
	Labels map[string]string
}

// Compare compares a reading with the output for the same GPU. A value that nvidia-smi does not print, and Karve does not have, is left out.
func Compare(r Reading, l Log) []Value {
	i := slices.IndexFunc(l.GPUs, func(g GPU) bool { return g.UUID == r.Device.UUID })
	if i < 0 {
		return []Value{{Name: "uuid", Karve: r.Device.UUID}}
	}
	g := l.GPUs[i]
	var out []Value
	same := func(name, ours, theirs string) {
		out = append(out, Value{name, ours, theirs, strings.EqualFold(ours, theirs)})
	}
	near := func(name string, ours int64, theirs string, tolerance int64) {
		n, printed := number(theirs)
		if !printed && ours < 0 {
			return
		}
		out = append(out, Value{name, strconv.FormatInt(ours, 10), theirs, printed && ours >= 0 && ours-n <= tolerance && n-ours <= tolerance})
	}
	same("driver", r.Driver.Version, l.Driver)
	same("CUDA", fmt.Sprintf("%d.%d", r.Driver.CUDAMajor, r.Driver.CUDAMinor), l.CUDA)
	same("uuid", r.Device.UUID, g.UUID)
	same("product", r.Device.Product, g.Product)
	near("minor number", int64(r.Device.Minor), g.Minor, 0)
	same("PCIe root", r.Device.PCIeRoot, r.RootOf(strings.ToLower(shortBus(g.BusID))))
	same("MIG mode", map[[2]bool]string{{true, true}: "Enabled", {true, false}: "Disabled"}[[2]bool{r.Device.MIGCapable, r.Device.MIG}], available(g.MIG))
	same("compute mode", map[gpu.ComputeMode]string{gpu.ComputeDefault: "Default", gpu.ComputeProhibited: "Prohibited", gpu.ComputeExclusiveProcess: "Exclusive_Process"}[r.Device.ComputeMode], g.ComputeMode)
	recovery := ""
	if r.Recovery != gpu.RecoveryUnknown {
		recovery = r.Recovery.String()
	}
	same("recovery action", recovery, words.ReplaceAllString(available(g.Recovery), ""))
	near("memory in MiB", r.Device.MemoryMiB, g.Total, 1)
	const moved = 64 // MiB by which the use of a GPU may change between two readings
	near("memory used in MiB", r.Usage.MemoryUsedMiB, g.Used, moved)
	near("memory free in MiB", r.Usage.MemoryFreeMiB, g.Free, moved)
	near("GPU in %", int64(r.Usage.GPUPercent), g.GPUPercent, 30)
	near("memory bus in %", int64(r.Usage.MemoryPercent), g.MemPercent, 30)
	near("temperature in °C", int64(r.Usage.TemperatureCelsius), g.Celsius, 5)
	watts := r.Usage.PowerMilliwatts
	if watts >= 0 {
		watts /= 1000
	}
	near("power in W", watts, firstPrinted(g.Watts, g.InstantWatts, g.OldWatts), 60)
	near("SM clock in MHz", int64(r.Usage.SMClockMHz), g.SMClock, 2000)
	near("memory clock in MHz", int64(r.Usage.MemClockMHz), g.MemClock, 10)
	label := func(key, theirs string) {
		same("label "+key, r.Labels[nodecontract.NVIDIAPrefix+key], strings.ReplaceAll(theirs, " ", "-"))
	}
	label("gpu.product", g.Product)
	label("gpu.family", g.Architecture)
	label("gpu.count", l.Count)
	label("gpu.memory", strings.TrimSuffix(g.Total, " MiB"))
	label("cuda.driver-version.full", l.Driver)
	label("mig.capable", strconv.FormatBool(available(g.MIG) != ""))
	var ours, theirs []string
	for _, p := range r.Usage.Processes {
		ours = append(ours, fmt.Sprintf("%d: %d MiB", p.PID, p.MemoryMiB))
	}
	for _, p := range g.Processes {
		theirs = append(theirs, fmt.Sprintf("%d: %s", p.PID, p.Used))
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	same("processes", strings.Join(ours, ", "), strings.Join(theirs, ", "))
	return out
}

// words are what stands between the words of an action, as in "Drain and Reset".
var words = regexp.MustCompile(`[^A-Za-z0-9]+`)

var digits = regexp.MustCompile(`^-?[0-9]+`)

// number returns the number with which a text begins.
func number(text string) (int64, bool) {
	n, err := strconv.ParseInt(digits.FindString(strings.TrimSpace(text)), 10, 64)
	return n, err == nil
}

// available returns "" for a value that the GPU does not report.
func available(text string) string {
	if text == "N/A" || strings.Contains(text, "Not Supported") {
		return ""
	}
	return text
}

func firstPrinted(texts ...string) string {
	for _, text := range texts {
		if _, ok := number(text); ok {
			return text
		}
	}
	return ""
}

// shortBus returns an address with a domain of four digits, as the kernel has it: nvidia-smi prints eight.
func shortBus(id string) string {
	if domain, rest, ok := strings.Cut(id, ":"); ok && len(domain) == 8 {
		return domain[4:] + ":" + rest
	}
	return id
}
