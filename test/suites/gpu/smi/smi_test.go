package smi_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/labels"
	"karve.sh/karve/test/suites/gpu/smi"
)

const printed = `<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version><attached_gpus>1</attached_gpus>
	<gpu id="00000000:00:1E.0">
		<product_name>Tesla T4</product_name><product_architecture>Turing</product_architecture>
		<mig_mode><current_mig>N/A</current_mig><pending_mig>N/A</pending_mig></mig_mode>
		<uuid>GPU-1</uuid><minor_number>0</minor_number>
		<pci><pci_bus_id>00000000:00:1E.0</pci_bus_id></pci>
		<fb_memory_usage><total>15360 MiB</total><reserved>451 MiB</reserved><used>612 MiB</used><free>14298 MiB</free></fb_memory_usage>
		<compute_mode>Default</compute_mode><gpu_recovery_action>None</gpu_recovery_action>
		<utilization><gpu_util>7 %</gpu_util><memory_util>0 %</memory_util></utilization>
		<temperature><gpu_temp>31 C</gpu_temp></temperature>
		<gpu_power_readings><average_power_draw>N/A</average_power_draw><instant_power_draw>27.52 W</instant_power_draw></gpu_power_readings>
		<clocks><graphics_clock>585 MHz</graphics_clock><sm_clock>585 MHz</sm_clock><mem_clock>5000 MHz</mem_clock></clocks>
		<processes><process_info><pid>4711</pid><type>C</type><process_name>client</process_name><used_memory>608 MiB</used_memory></process_info></processes>
	</gpu>
</nvidia_smi_log>`

func reading() smi.Reading {
	r := smi.Reading{
		Driver: gpu.Driver{Version: "580.95.05", CUDAMajor: 13},
		Device: gpu.Device{UUID: "GPU-1", Product: "Tesla T4", MemoryMiB: 15360, PCIeRoot: "pci0000:00"},
		Usage: gpu.Usage{
			MemoryUsedMiB: 612, MemoryFreeMiB: 14298, GPUPercent: 7, TemperatureCelsius: 31, PowerMilliwatts: 27520, SMClockMHz: 585, MemClockMHz: 5000,
			Processes: []gpu.Process{{PID: 4711, MemoryMiB: 608}},
		},
		RootOf: func(address string) string { return map[string]string{"0000:00:1e.0": "pci0000:00"}[address] },
	}
	r.Device.ComputeMajor, r.Device.ComputeMinor = 7, 5
	r.Labels = labels.For([]gpu.Device{r.Device}, r.Driver, labels.Sharing{}, labels.Machine{})
	return r
}

func disagreeing(t *testing.T, r smi.Reading) []string {
	t.Helper()
	l, err := smi.Parse([]byte(printed))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, v := range smi.Compare(r, l) {
		if !v.Agree {
			out = append(out, fmt.Sprintf("%s: %s, %s", v.Name, v.Karve, v.SMI))
		}
	}
	return out
}

func TestCompare(t *testing.T) {
	t.Parallel()
	if got := disagreeing(t, reading()); got != nil {
		t.Errorf("%q", got)
	}
	for want, change := range map[string]func(*smi.Reading){
		"uuid: GPU-2, ":                            func(r *smi.Reading) { r.Device.UUID = "GPU-2" },
		"product: NVIDIA L4, Tesla T4":             func(r *smi.Reading) { r.Device.Product = "NVIDIA L4" },
		"minor number: 1, 0":                       func(r *smi.Reading) { r.Device.Minor = 1 },
		"MIG mode: Disabled, ":                     func(r *smi.Reading) { r.Device.MIGCapable = true },
		"PCIe root: pci0000:80, pci0000:00":        func(r *smi.Reading) { r.Device.PCIeRoot = "pci0000:80" },
		"memory in MiB: 16384, 15360 MiB":          func(r *smi.Reading) { r.Device.MemoryMiB = 16384 },
		"power in W: -1, 27.52 W":                  func(r *smi.Reading) { r.Usage.PowerMilliwatts = -1; r.Usage.TemperatureCelsius = 30 },
		"processes: , 4711: 608 MiB":               func(r *smi.Reading) { r.Usage.Processes = nil },
		"compute mode: Exclusive_Process, Default": func(r *smi.Reading) { r.Device.ComputeMode = gpu.ComputeExclusiveProcess },
		"memory used in MiB: 1000, 612 MiB":        func(r *smi.Reading) { r.Usage.MemoryUsedMiB = 1000 },
		"label gpu.family: ampere, Turing":         func(r *smi.Reading) { r.Labels["nvidia.com/gpu.family"] = "ampere" },
		"recovery action: DrainAndReset, None":     func(r *smi.Reading) { r.Recovery = gpu.RecoveryDrainAndReset },
	} {
		r := reading()
		change(&r)
		if got := disagreeing(t, r); !slices.Equal(got, []string{want}) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// testdata/h100.xml is the output on a real H100 with driver 580.159.04, as far as it is read.
func TestCompareWithRealOutput(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/h100.xml")
	if err != nil {
		t.Fatal(err)
	}
	l, err := smi.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	d := gpu.Device{UUID: "GPU-00000000-0000-0000-0000-000000000001", Product: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, ComputeMajor: 9, MIGCapable: true, PCIeRoot: "pci0000:00"}
	driver := gpu.Driver{Version: "580.159.04", CUDAMajor: 13}
	for _, v := range smi.Compare(smi.Reading{
		Driver: driver, Device: d, Labels: labels.For([]gpu.Device{d}, driver, labels.Sharing{}, labels.Machine{}),
		Usage:  gpu.Usage{MemoryFreeMiB: 81079, TemperatureCelsius: 30, PowerMilliwatts: 70_000, SMClockMHz: 345, MemClockMHz: 2619},
		RootOf: func(address string) string { return map[string]string{"0000:00:06.0": "pci0000:00"}[address] },
	}, l) {
		if !v.Agree {
			t.Errorf("%s: %s, and nvidia-smi prints %s", v.Name, v.Karve, v.SMI)
		}
	}
}
