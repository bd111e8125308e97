package report_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/test/suites/gpu/report"
)

const printed = "\x16=== RUN   TestMPS\n" +
	"    mps_test.go:12: four clients\n" +
	"\x16=== ATTR  TestMPS machine {\"product\":\"Tesla T4\"}\n" +
	"\x16=== RUN   TestMPS/a_client_crashes\n" +
	"\x16=== ATTR  TestMPS/a_client_crashes others they end\n" +
	"    mps_test.go:14: the other client has 3 MiB\n        and a second line\n" +
	"\x16--- FAIL: TestMPS/a_client_crashes (1.50s)\n" +
	"\x16=== RUN   TestMPS/threads\n" +
	"    mps_test.go:20: no | daemon\n" +
	"\x16--- SKIP: TestMPS/threads (0.00s)\n" +
	"\x16=== NAME  TestMPS\n" +
	"\x16--- FAIL: TestMPS (2.00s)\nFAIL\n"

func TestParse(t *testing.T) {
	t.Parallel()
	checks := report.Parse(printed, "exit status 1")
	var got []string
	for _, c := range checks {
		got = append(got, c.Name+": "+string(c.Result)+": "+c.Why)
	}
	want := []string{
		"TestMPS: failed: four clients", "TestMPS/a_client_crashes: failed: the other client has 3 MiB", "TestMPS/threads: not possible here: no | daemon",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := string(checks[1].Measured["others"][0]); got != `"they end"` || checks[1].Seconds != 1.5 || len(checks[1].Log) != 2 {
		t.Errorf("the part is %+v", checks[1])
	}
	var machine report.Machine
	if err := json.Unmarshal(checks[0].Measured[report.MachineAttribute][0], &machine); err != nil || machine.Product != "Tesla T4" {
		t.Errorf("the machine is %+v, %v", machine, err)
	}
}

func TestTestWithoutResultFailed(t *testing.T) {
	t.Parallel()
	for _, output := range []string{"\x16=== RUN   TestFault\n    x.go:1: began\n", "\x16=== RUN   TestFault\npanic: no\n\ngoroutine 1 [running]:\n"} {
		if checks := report.Parse(output, "it did not end within 1m30s"); len(checks) != 1 || checks[0].Result != report.Failed || checks[0].Why != "it did not end within 1m30s" || len(checks[0].Log) == 0 {
			t.Errorf("%+v", checks)
		}
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	r := report.Report{
		Began: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Seconds: 90, Karve: "v1", Checks: report.Parse(printed, ""),
		Machine: report.Machine{Product: "Tesla T4", GPUs: 1, Driver: "580.1"},
	}
	r.Checks = append(r.Checks, report.Check{Name: "TestNVML", Result: report.Passed, Measured: map[string][]json.RawMessage{"uuid": {json.RawMessage(`"GPU-1"`)}}})
	text := r.Markdown()
	for _, want := range []string{
		"# 1 × Tesla T4\n\n1 checks passed, 1 failed, 1 were not possible here.\n", "- driver: 580.1\n", "- took: 1m30s\n",
		"## Failed\n\n| check | s | why |\n|---|---|---|\n| TestMPS/a client crashes | 1.5 | the other client has 3 MiB",
		`| TestMPS/threads | 0.0 | no \| daemon |`, "| TestNVML | 0.0 | uuid: \"GPU-1\" |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
