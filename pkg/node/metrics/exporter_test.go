package metrics_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/metrics"
)

// scrape reads the metrics as Prometheus does.
func scrape(t *testing.T, h http.Handler) map[string]*dto.MetricFamily {
	t.Helper()
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if got := recorder.Header().Get("Content-Type"); recorder.Code != http.StatusOK || got != metrics.ContentType {
		t.Errorf("status %d, content type %q", recorder.Code, got)
	}
	return parse(t, recorder.Body.String())
}

func parse(t testing.TB, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return families
}

// samples formats a metric's samples as lines, without the given labels.
func samples(family *dto.MetricFamily, without ...string) []string {
	var out []string
	for _, m := range family.GetMetric() {
		var parts []string
		for _, l := range m.GetLabel() {
			if !slices.Contains(without, l.GetName()) && l.GetValue() != "" {
				parts = append(parts, l.GetName()+"="+l.GetValue())
			}
		}
		value := m.GetGauge().GetValue()
		if family.GetType() == dto.MetricType_COUNTER {
			value = m.GetCounter().GetValue()
		}
		out = append(out, strings.Join(parts, " ")+" "+strconv.FormatFloat(value, 'f', -1, 64))
	}
	return out
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// machine returns a machine with two T4s. Two pods use the first, and one of two containers of a pod uses the second.
func machine(t *testing.T) (*gputest.Fake, metrics.Config) {
	t.Helper()
	devices := gputest.T4s(2)
	f := gputest.New(devices...)
	if _, err := f.Init(); err != nil {
		t.Fatal(err)
	}
	second := strings.Replace(uid, "0b61", "ffff", 1)
	other := strings.Repeat("e", 64)
	proc := t.TempDir()
	for pid, content := range map[int]string{
		10: "0::/kubepods/pod" + uid + "/" + id, 11: "0::/kubepods/pod" + uid + "/" + id,
		20: "0::/kubepods/pod" + second + "/" + other,
		30: "0::/system.slice/nvidia-persistenced.service",
		40: "0::/kubepods/pod" + strings.Replace(uid, "0b61", "aaaa", 1) + "/" + id,
	} {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.SetUsage(devices[0].UUID, gpu.Usage{
		MemoryUsedMiB: 4000, MemoryFreeMiB: 11000, GPUPercent: 29, MemoryPercent: 5, TemperatureCelsius: 50, PowerMilliwatts: 68250, EnergyMillijoules: 12500,
		SMClockMHz: 1590, MemClockMHz: 5000,
		Processes: []gpu.Process{
			{PID: 10, MemoryMiB: 1000, SMPercent: 20},
			{PID: 11, MemoryMiB: -1, SMPercent: 9},
			{PID: 20, MemoryMiB: 2000, SMPercent: -1},
			{PID: 30, MemoryMiB: 3, SMPercent: 0},
			{PID: 40, MemoryMiB: 5, SMPercent: 0},
			{PID: 99, MemoryMiB: 7, SMPercent: 0},
			{PID: 0, MemoryMiB: 1},
		},
	})
	f.SetUsage(devices[1].UUID, gpu.Usage{
		MemoryUsedMiB: 100, MemoryFreeMiB: 15000, GPUPercent: -1, MemoryPercent: -1, TemperatureCelsius: -1, PowerMilliwatts: -1, EnergyMillijoules: -1, SMClockMHz: -1, MemClockMHz: -1,
		Processes: []gpu.Process{{PID: 20, MemoryMiB: 100, SMPercent: 0}},
	})
	return f, metrics.Config{
		Library: f,
		Proc:    proc,
		Pods: logs(t, []string{"default_train-0_" + uid + "/main", "team_infer_" + second + "/server", "team_infer_" + second + "/proxy"},
			[]string{"infer_team_server-" + other + ".log"}),
		Replicas: func() map[string]metrics.Replicas {
			return map[string]metrics.Replicas{devices[0].UUID: {Total: 10, Allocated: 3}}
		},
		Held: func() ([]metrics.Held, error) {
			return []metrics.Held{
				{Namespace: "default", Pod: "train-0", Container: "main", UUID: devices[0].UUID, Replicas: 2},
				{Namespace: "team", Pod: "infer", Container: "server", UUID: devices[0].UUID, Replicas: 1},
				{Namespace: "team", Pod: "other", Container: "main", UUID: "fpga-0", Replicas: 1},
			}, nil
		},
		Host: "node-1",
	}
}

func TestMetricsOfGPUsAndPods(t *testing.T) {
	t.Parallel()
	f, config := machine(t)
	x := metrics.New(config)
	devices, err := f.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []gpu.Event{
		{UUID: devices[0].UUID, XID: 31}, {UUID: devices[0].UUID, XID: 31}, {UUID: devices[0].UUID, XID: 13}, {UUID: devices[1].UUID, Lost: true}, {UUID: "GPU-gone", XID: 79},
	} {
		x.Observe(e)
	}
	x.Asked(devices[0].UUID, gpu.RecoveryNone)
	x.Asked(devices[0].UUID, gpu.RecoveryDrainAndReset)
	x.Asked(devices[1].UUID, gpu.RecoveryUnknown)
	x.Asked("GPU-gone", gpu.RecoveryReset)
	families := scrape(t, x)
	for name, want := range map[string][]string{
		"karve_gpu_library_up":             {" 1"},
		"karve_gpu_up":                     {"index=0 1", "index=1 1"},
		"karve_gpu_utilization_ratio":      {"index=0 0.29"},
		"karve_gpu_memory_used_bytes":      {"index=0 4194304000", "index=1 104857600"},
		"karve_gpu_memory_total_bytes":     {"index=0 16106127360", "index=1 16106127360"},
		"karve_gpu_temperature_celsius":    {"index=0 50"},
		"karve_gpu_power_watts":            {"index=0 68.25"},
		"karve_gpu_energy_joules_total":    {"index=0 12.5"},
		"karve_gpu_sm_clock_hertz":         {"index=0 1590000000"},
		"karve_gpu_memory_clock_hertz":     {"index=0 5000000000"},
		"karve_gpu_replicas":               {"index=0 10"},
		"karve_gpu_replicas_allocated":     {"index=0 3"},
		"karve_pod_gpu_replicas":           {"namespace=default pod=train-0 container=main 2", "namespace=team pod=infer container=server 1"},
		"karve_gpu_xid_errors_total":       {"index=0 xid=13 1", "index=0 xid=31 2", "xid=79 1"},
		"karve_gpu_recovery_action":        {"index=0 action=DrainAndReset 1"},
		"karve_pod_gpu_memory_used_bytes":  {"namespace=default pod=train-0 container=main 1048576000", "namespace=team pod=infer container=server 2097152000", "namespace=team pod=infer container=server 104857600"},
		"karve_pod_gpu_sm_ratio":           {"namespace=default pod=train-0 container=main 0.29", "namespace=team pod=infer container=server 0"},
		"DCGM_FI_DEV_GPU_UTIL":             nil,
		"karve_gpu_something_else_unknown": nil,
	} {
		if diff := cmp.Diff(want, samples(families[name], "gpu", "product")); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := samples(families["karve_gpu_up"])[1]; got != "gpu="+devices[1].UUID+" index=1 product=Tesla T4 1" {
		t.Error(got)
	}
}

// TestAllocatedReplicasAreThoseThatContainersHold checks that replicas of pods that have ended are not counted, although the device plugin does not hear of their end.
func TestAllocatedReplicasAreThoseThatContainersHold(t *testing.T) {
	t.Parallel()
	_, config := machine(t)
	all, failed := must(config.Held())(t), error(nil)
	config.Held = func() ([]metrics.Held, error) { return all, failed }
	x := metrics.New(config)
	expect := func(when string, want int) {
		t.Helper()
		got := samples(scrape(t, x)["karve_gpu_replicas_allocated"], "gpu", "product")
		if !slices.Equal(got, []string{fmt.Sprint("index=0 ", want)}) {
			t.Errorf("%s, %v replicas are allocated, want %d", when, got, want)
		}
	}
	expect("while two containers hold some", 3)
	all = all[1:]
	expect("after a pod has ended", 1)
	all = nil
	expect("after all pods have ended", 0)
	all = []metrics.Held{{UUID: must(config.Library.Devices())(t)[0].UUID, Replicas: 11}}
	expect("while an ended container is listed beside its successor", 10)
	failed = errors.New("the kubelet does not answer")
	expect("while the kubelet does not say what is held", 3)
}

func TestDCGMMetrics(t *testing.T) {
	t.Parallel()
	f, config := machine(t)
	config.DCGM = true
	x := metrics.New(config)
	devices, err := f.Devices()
	if err != nil {
		t.Fatal(err)
	}
	x.Observe(gpu.Event{UUID: devices[1].UUID, XID: 48})
	families := scrape(t, x)
	shared := "gpu=0 device=nvidia0 modelName=Tesla T4 Hostname=node-1"
	alone := "gpu=1 device=nvidia1 modelName=Tesla T4 Hostname=node-1 container=server namespace=team pod=infer"
	for name, want := range map[string][]string{
		"DCGM_FI_DEV_GPU_UTIL":                 {shared + " 29"},
		"DCGM_FI_DEV_FB_USED":                  {shared + " 4000", alone + " 100"},
		"DCGM_FI_DEV_FB_FREE":                  {shared + " 11000", alone + " 15000"},
		"DCGM_FI_DEV_GPU_TEMP":                 {shared + " 50"},
		"DCGM_FI_DEV_POWER_USAGE":              {shared + " 68.25"},
		"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": {shared + " 12500"},
		"DCGM_FI_DEV_SM_CLOCK":                 {shared + " 1590"},
		"DCGM_FI_DEV_MEM_CLOCK":                {shared + " 5000"},
		"DCGM_FI_DEV_XID_ERRORS":               {shared + " 0", alone + " 48"},
	} {
		if diff := cmp.Diff(want, samples(families[name], "UUID")); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestMetricsOfProfilingCounters(t *testing.T) {
	t.Parallel()
	devices := gputest.H100s(3)
	f := gputest.New(devices...)
	if _, err := f.Init(); err != nil {
		t.Fatal(err)
	}
	f.SetUsage(devices[0].UUID, gpu.Usage{Profiling: &gpu.Profiling{
		GraphicsActive: 0.99, SMActive: 0.75, SMOccupancy: 0.5, TensorActive: 0.25, FP64Active: 0.125, FP32Active: 0.375, FP16Active: 0, DRAMActive: 0.0625,
		PCIeTransmit: 3e6, PCIeReceive: 12e9, NVLinkTransmit: 7e6, NVLinkReceive: 9e6,
	}})
	f.SetUsage(devices[1].UUID, gpu.Usage{Profiling: &gpu.Profiling{SMActive: 1, NVLinkTransmit: -1, NVLinkReceive: -1}})
	x := metrics.New(metrics.Config{Library: f, DCGM: true})
	names := map[string][]string{
		"karve_gpu_sm_active_ratio":                  {"0.75", "1"},
		"karve_gpu_sm_occupancy_ratio":               {"0.5", "0"},
		"karve_gpu_tensor_active_ratio":              {"0.25", "0"},
		"karve_gpu_fp64_active_ratio":                {"0.125", "0"},
		"karve_gpu_fp32_active_ratio":                {"0.375", "0"},
		"karve_gpu_fp16_active_ratio":                {"0", "0"},
		"karve_gpu_dram_active_ratio":                {"0.0625", "0"},
		"karve_gpu_pcie_transmit_bytes_per_second":   {"3000000", "0"},
		"karve_gpu_pcie_receive_bytes_per_second":    {"12000000000", "0"},
		"karve_gpu_nvlink_transmit_bytes_per_second": {"7000000"},
		"karve_gpu_nvlink_receive_bytes_per_second":  {"9000000"},
		"DCGM_FI_PROF_GR_ENGINE_ACTIVE":              {"0.99", "0"},
		"DCGM_FI_PROF_SM_ACTIVE":                     {"0.75", "1"},
		"DCGM_FI_PROF_SM_OCCUPANCY":                  {"0.5", "0"},
		"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE":            {"0.25", "0"},
		"DCGM_FI_PROF_DRAM_ACTIVE":                   {"0.0625", "0"},
		"DCGM_FI_PROF_PCIE_TX_BYTES":                 {"3000000", "0"},
		"DCGM_FI_PROF_PCIE_RX_BYTES":                 {"12000000000", "0"},
		"DCGM_FI_PROF_NVLINK_TX_BYTES":               {"7000000"},
		"DCGM_FI_PROF_NVLINK_RX_BYTES":               {"9000000"},
	}
	expect := func(when string, want func(values []string) []string) {
		t.Helper()
		families := scrape(t, x)
		for name, values := range names {
			if family := families[name]; family != nil && family.GetType() != dto.MetricType_GAUGE {
				t.Errorf("%s is a %s, want a gauge", name, family.GetType())
			}
			var got []string
			for _, m := range families[name].GetMetric() {
				got = append(got, strconv.FormatFloat(m.GetGauge().GetValue(), 'f', -1, 64))
			}
			if diff := cmp.Diff(want(values), got); diff != "" {
				t.Errorf("%s, %s: %s", when, name, diff)
			}
		}
	}
	expect("in the first scrape", func([]string) []string { return nil })
	expect("in the second scrape", func(values []string) []string { return values })
	f.Lose(devices[1].UUID)
	expect("without the second GPU", func(values []string) []string { return values[:1] })
}

func TestUnreadableValuesAreLeftOut(t *testing.T) {
	t.Parallel()
	f, config := machine(t)
	config.More = func(t *metrics.Text) {
		t.Family("karve_more", metrics.Gauge, "More.")
		t.Sample(7)
	}
	x := metrics.New(config)
	devices, err := f.Devices()
	if err != nil {
		t.Fatal(err)
	}
	f.Lose(devices[0].UUID)
	families := scrape(t, x)
	if got := samples(families["karve_gpu_up"], "gpu", "product"); !slices.Equal(got, []string{"index=0 0", "index=1 1"}) {
		t.Errorf("up: %v", got)
	}
	if got := samples(families["karve_gpu_memory_used_bytes"], "gpu", "product"); len(got) != 1 {
		t.Errorf("memory: %v", got)
	}

	f.Fail("Devices", errors.New("broken"))
	families = scrape(t, x)
	if got := samples(families["karve_gpu_library_up"]); !slices.Equal(got, []string{" 0"}) || families["karve_gpu_up"] != nil {
		t.Errorf("library up: %v", got)
	}
	if got := samples(families["karve_more"]); !slices.Equal(got, []string{" 7"}) {
		t.Errorf("more: %v", got)
	}
}

func TestScrapesAreSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	f, config := machine(t)
	x := metrics.New(config)
	devices, err := f.Devices()
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 5 {
				scrape(t, x)
				x.Observe(gpu.Event{UUID: devices[0].UUID, XID: 13})
			}
		})
	}
	group.Wait()
	if got := samples(scrape(t, x)["karve_gpu_xid_errors_total"], "gpu", "product"); !slices.Equal(got, []string{"index=0 xid=13 20"}) {
		t.Error(got)
	}
}

// FuzzText checks that Prometheus reads what was written, whatever it contains.
func FuzzText(f *testing.F) {
	f.Add("help\nwith \\ and \"", "value \"with\" \\n and \n", 1e300)
	f.Add("", "\xff", -0.1)
	f.Fuzz(func(t *testing.T, help, value string, number float64) {
		var b strings.Builder
		text := metrics.NewText(&b)
		text.Family("karve_empty", metrics.Gauge, "Without samples.")
		text.Family("karve_test", metrics.Gauge, help)
		text.Sample(number, "label", value, "other", "x")
		if err := text.Flush(); err != nil {
			t.Fatal(err)
		}
		families := parse(t, b.String())
		got := families["karve_test"].GetMetric()
		if len(families) != 1 || len(got) != 1 {
			t.Fatalf("%d families in %q", len(families), b.String())
		}
		if read := got[0].GetGauge().GetValue(); read != number && number == number {
			t.Errorf("read %v, wrote %v", read, number)
		}
		if read := got[0].GetLabel()[0].GetValue(); read != strings.ToValidUTF8(value, "\uFFFD") {
			t.Errorf("read %q, wrote %q", read, value)
		}
	})
}

// asked counts the calls of Devices.
type asked struct {
	gpu.Library
	times atomic.Int32
}

func (a *asked) Devices() ([]gpu.Device, error) {
	a.times.Add(1)
	return a.Library.Devices()
}

func TestScrapeDoesNotWaitForHungDriver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := gputest.New(gputest.T4s(2)...)
		if _, err := f.Init(); err != nil {
			t.Fatal(err)
		}
		asked := &asked{Library: f}
		x := metrics.New(metrics.Config{Library: asked})
		f.Hang(true)
		for range 3 {
			began := clock.RealClock{}.Now() // The bubble's clock.
			families := scrape(t, x)
			if got := samples(families["karve_gpu_library_up"]); !slices.Equal(got, []string{" 0"}) || families["karve_gpu_temperature_celsius"] != nil {
				t.Errorf("up is %q, families %v", got, families)
			}
			if took := (clock.RealClock{}).Since(began); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
		}
		if n := asked.times.Load(); n != 1 {
			t.Errorf("three scrapes wait for %d answers", n)
		}
		f.Hang(false)
		synctest.Wait()
		if got := samples(scrape(t, x)["karve_gpu_library_up"]); !slices.Equal(got, []string{" 1"}) {
			t.Errorf("up is %q when it does not hang any more", got)
		}
	})
}

func TestGPUWithUnknownMemoryHasNoMemoryMetric(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(2)
	devices[1].MemoryMiB = 0
	f := gputest.New(devices...)
	if _, err := f.Init(); err != nil {
		t.Fatal(err)
	}
	if got := scrape(t, metrics.New(metrics.Config{Library: f}))["karve_gpu_memory_total_bytes"].GetMetric(); len(got) != 1 {
		t.Errorf("%v", got)
	}
}
