// Command run runs the GPU suite of the folder in which it lies, and writes report.json and report.md into the working directory. It takes no arguments, and
// needs nothing but the driver of the machine. It fails if a check fails.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"karve.sh/karve/test/suites/gpu/report"
)

// machine is the test that finds the GPUs. If it does not pass, there is nothing to test.
const machine = "TestMachine"

// limits are how long tests may take, other than 90 seconds.
var limits = map[string]time.Duration{machine: 30 * time.Second, "TestMPS": 3 * time.Minute, "TestCosts": 8 * time.Minute}

func limit(test string) time.Duration { return cmp.Or(limits[test], 90*time.Second) }

// version is that of the agent. The build sets it.
var version string

func main() {
	r, err := run(context.Background())
	if err == nil {
		err = write(r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(2)
	}
	fmt.Printf("%d checks passed, %d failed, %d were not possible here: see report.md\n", r.Count(report.Passed), r.Count(report.Failed), r.Count(report.NotPossible))
	if r.Count(report.Failed) > 0 {
		os.Exit(1)
	}
}

func run(ctx context.Context) (report.Report, error) {
	self, err := os.Executable()
	if err != nil {
		return report.Report{}, fmt.Errorf("finding the folder of the program: %w", err)
	}
	suite := filepath.Join(filepath.Dir(self), "gpu.test")
	if err := os.Setenv("KARVE_GPU_BUNDLE", filepath.Dir(suite)); err != nil {
		return report.Report{}, fmt.Errorf("naming the folder of the program: %w", err)
	}
	list, err := exec.CommandContext(ctx, suite, "-test.list", ".").Output()
	if err != nil {
		return report.Report{}, fmt.Errorf("listing the tests: %w", err)
	}
	r := report.Report{Began: time.Now().UTC(), Karve: version}
	tests := strings.Fields(string(list))
	slices.SortStableFunc(tests, func(a, b string) int { return cmp.Compare(limit(a), limit(b)) }) // What takes long comes last.
	for _, name := range tests {
		checks := test(ctx, suite, name)
		r.Checks = append(r.Checks, checks...)
		for i := range checks {
			for _, text := range checks[i].Measured[report.MachineAttribute] {
				if err := json.Unmarshal(text, &r.Machine); err != nil {
					return r, fmt.Errorf("reading what %s says about the machine: %w", name, err)
				}
			}
		}
		r.Seconds = time.Since(r.Began).Seconds()
		if err := write(r); err != nil { // Whatever comes next, this is not lost.
			return r, err
		}
		if name == machine && checks[0].Result != report.Passed {
			return r, fmt.Errorf("there is no GPU to test: %s", checks[0].Why)
		}
		fmt.Printf("%-17s %6.1f s  %s %s\n", checks[0].Result, checks[0].Seconds, name, checks[0].Why)
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		r.Kernel = strings.TrimSpace(string(release))
	}
	r.CPUs = runtime.NumCPU()
	return r, nil
}

// test runs a test in processes of their own, and ends them all when it is over.
func test(ctx context.Context, suite, name string) []report.Check {
	most := limit(name)
	ctx, cancel := context.WithTimeout(ctx, most+5*time.Second)
	defer cancel()
	args := []string{"-test.run", "^" + name + "$", "-test.v=test2json", "-test.timeout", most.String()}
	if os.Getenv("KARVE_GPU_SHORT") != "" { // For tests of the suite itself.
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(ctx, suite, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	ended := fmt.Sprint("the process ended before the check: ", err)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) || strings.Contains(out.String(), "panic: test timed out") {
		ended = fmt.Sprintf("it did not end within %s", most)
	}
	checks := report.Parse(out.String(), ended)
	if !slices.ContainsFunc(checks, func(c report.Check) bool { return c.Name == name }) {
		checks = append([]report.Check{{Name: name, Result: report.Failed, Why: ended, Log: strings.Split(out.String(), "\n")}}, checks...)
	}
	return checks
}

func write(r report.Report) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile("report.json", append(text, '\n'), 0o600)
	}
	if err == nil {
		err = os.WriteFile("report.md", []byte(r.Markdown()), 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
