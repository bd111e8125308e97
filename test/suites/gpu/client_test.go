//go:build !gpu

package gpu_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestClientOnFakeDriver runs the program that the tests run on GPUs, on testdata/fakecuda.c. TestBundle runs all tests with it.
func TestClientOnFakeDriver(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	client := filepath.Join(dir, "client")
	for _, args := range [][]string{
		{"-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", client, "testdata/client.c", "-ldl"},
		{"-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), "testdata/fakecuda.c"},
	} {
		if out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	run := func(t *testing.T, input string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), client, args...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "KARVE_FAKE_CUDA_MIB=4096", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G", "KARVE_FAKE_NVML="+filepath.Join(dir, "state"))
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.Output()
		var failed *exec.ExitError
		if err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	for argument, want := range map[string]string{
		"64": "64", "all": "1024", "total": "1024", "2048": "error cuMemAlloc 2", "fault": "error cuCtxSynchronize 700",
	} {
		if got := run(t, "", argument); got != want {
			t.Errorf("client %s: %q, want %q", argument, got, want)
		}
	}
	if got, want := run(t, "shirt 1 1\n", "load"), "ready\nerror command 3"; got != want {
		t.Errorf("an unknown load: %q, want %q", got, want)
	}
	if got := run(t, "send 0.05\n", "load"); !regexp.MustCompile(`^ready\n[1-9]\d{8,}$`).MatchString(got) {
		t.Errorf("memory is sent: %q", got)
	}
	lines := strings.Split(run(t, "calibrate\nshort 1 0.1\npolling 1 0.1\ncompute 1000 0.1\nmemory 4 0.1\ninference 50 0.1\n", "load", "8"), "\n")
	if len(lines) != 7 || lines[0] != "ready" {
		t.Fatalf("the client said %q", lines)
	}
	var sizes map[string]int
	if err := json.Unmarshal([]byte(lines[1]), &sizes); err != nil || sizes["multiprocessors"] != 8 || sizes["short"] != 1 || sizes["compute"] < 100 || sizes["memory"] < 2 || sizes["inference"] < 10 {
		t.Errorf("the loads have the sizes %s, %v", lines[1], err)
	}
	for i, load := range []string{"short", "polling", "compute", "memory", "inference"} {
		var got struct {
			Load               string
			Operations         int
			P50, P90, P99, Max float64
		}
		err := json.Unmarshal([]byte(lines[2+i]), &got)
		if err != nil || got.Load != load || got.Operations == 0 || got.P50 <= 0 || got.P90 < got.P50 || got.P99 < got.P90 || got.Max < got.P99 {
			t.Errorf("%s was measured as %s, %v", load, lines[2+i], err)
		}
	}
}
