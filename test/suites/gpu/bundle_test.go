//go:build !gpu

package gpu_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
	"karve.sh/karve/test/suites/gpu/report"
)

// impossible are the checks that the fake driver cannot serve, with the reason that the report must have.
var impossible = map[string]string{
	"TestNVIDIASMI":              "nvidia-smi",
	"TestWholeGPUs":              "needs three of them",
	"TestMIGProfiles":            "no GPU that can be divided",
	"TestDivide":                 "KARVE_DIVIDE names no profile",
	"TestCosts/timeSlicingShort": "KARVE_TIME_SLICE", "TestCosts/timeSlicingMedium": "KARVE_TIME_SLICE", "TestCosts/timeSlicingLong": "KARVE_TIME_SLICE",
	"TestProfilingCounters":           "has no profiling counters",
	"TestMPS/a_server_that_is_killed": "tells no process",
}

// TestBundle builds the bundle, and runs it on a fake driver in an empty root file system that has nothing but glibc.
func TestBundle(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	root, out := t.TempDir(), ""
	must(t, os.Chmod(root, 0o755)) // Another user runs programs in it.
	bundle := filepath.Join(root, "bundle")
	repository, err := cluster.Root()
	must(t, err)
	must(t, builder.Alone(repository, func() error {
		cmd := exec.CommandContext(t.Context(), filepath.Join(repository, "tools", "gpu-bundle"))
		cmd.Env = append(os.Environ(), "OUT="+bundle, "TRIMPATH=no")
		text, err := cmd.CombinedOutput()
		out = string(text)
		return err
	}), out)
	const most = 60 << 20
	if size := sizeOf(t, bundle); size > most {
		t.Errorf("the bundle has %d bytes, want at most %d", size, most)
	}

	// The driver: NVML, CUDA, and the control daemon of MPS.
	driver := filepath.Join(root, "driver")
	must(t, os.MkdirAll(driver, 0o755))
	library, err := nvmltest.BuildIn(t.Context(), filepath.Join(repository, "_output", "lib"))
	must(t, err)
	copyFile(t, library, filepath.Join(driver, filepath.Base(library)))
	command(t, "gcc", "-std=c11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", filepath.Join(driver, "libcuda.so.1"), filepath.Join("testdata", "fakecuda.c"))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(driver, "nvidia-cuda-mps-control"), "karve.sh/karve/test/harness/kubelet/cmd/mps-control")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := build.CombinedOutput()
	must(t, err, string(text))
	state := nvmltest.T4(1)
	must(t, os.WriteFile(filepath.Join(driver, "gpus"), []byte(state.String()), 0o600))

	// glibc, as the programs find it.
	for _, program := range []string{"gpu.test", "karve-node", "client"} {
		for line := range strings.Lines(command(t, "ldd", filepath.Join(bundle, program))) {
			for _, path := range regexp.MustCompile(`/\S+`).FindAllString(line, 1) {
				if !strings.HasPrefix(path, root) {
					copyFile(t, path, filepath.Join(root, path))
				}
			}
		}
	}
	for _, dir := range []string{"proc", "sys", "dev", "tmp", "work"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	unshare := []string{"--mount"}
	if os.Geteuid() != 0 {
		unshare = append(unshare, "--map-root-user")
		impossible["TestOnlyItsDevices"] = "making /dev/"
	}
	if text, err := exec.CommandContext(t.Context(), "unshare", append(unshare, "true")...).CombinedOutput(); err != nil {
		t.Skipf("this machine makes no empty root file system: %v %s", err, text)
	}
	script := `set -e
		mount --bind "$1" "$1"
		for dir in proc sys; do mount --rbind /$dir "$1/$dir"; done
		mount -t tmpfs none "$1/dev"
		mkdir "$1/dev/shm"
		for file in null zero urandom; do : >"$1/dev/$file"; mount --bind /dev/$file "$1/dev/$file"; done
		: >"$1/dev/nvidia0"; mount --bind /dev/null "$1/dev/nvidia0"
		exec chroot "$1" /bundle/run`
	run := exec.CommandContext(t.Context(), "unshare", append(unshare, "sh", "-c", script, "sh", root)...)
	run.Env = []string{
		"PATH=/driver:/usr/sbin:/usr/bin:/sbin:/bin", "LD_LIBRARY_PATH=/driver", nvmltest.Env + "=/driver/gpus", "KARVE_GPU_SHORT=1",
		"KARVE_FAKE_CUDA_FILE=/dev/nvidia0", fmt.Sprint("KARVE_FAKE_CUDA_MIB=", catalog.GPU{Name: "t4", MemoryMiB: 16384}.UsableMiB()),
	}
	text, err = run.CombinedOutput()
	t.Logf("%s", text)
	var r report.Report
	content, readErr := os.ReadFile(filepath.Join(root, "report.json"))
	must(t, readErr)
	must(t, json.Unmarshal(content, &r))
	if err != nil {
		t.Errorf("run failed: %v", err)
	}
	for _, c := range r.Checks {
		why, expected := impossible[c.Name]
		switch {
		case c.Result == report.Failed:
			t.Errorf("%s failed: %s\n%s", c.Name, c.Why, strings.Join(c.Log, "\n"))
		case expected != (c.Result == report.NotPossible), !strings.Contains(c.Why, why):
			t.Errorf("%s: %s %s", c.Name, c.Result, c.Why)
		}
	}
	for name := range impossible {
		if !slices.ContainsFunc(r.Checks, func(c report.Check) bool { return c.Name == name }) {
			t.Errorf("there is no check %s", name)
		}
	}
	if page, err := os.ReadFile(filepath.Join(root, "report.md")); err != nil || !strings.Contains(string(page), "Tesla T4") {
		t.Errorf("the page is %s, %v", page, err)
	}
}

func must(t *testing.T, err error, said ...string) {
	t.Helper()
	if err != nil {
		t.Fatal(err, said)
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	must(t, err, string(out))
	return string(out)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	must(t, err)
	must(t, os.MkdirAll(filepath.Dir(to), 0o755))
	must(t, os.WriteFile(to, content, 0o755))
}

func sizeOf(t *testing.T, dir string) (size int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		size += info.Size()
	}
	return size
}
