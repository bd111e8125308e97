// Package report turns the output of the GPU suite into a report of which checks passed, failed, or were not possible on a machine, and what was measured.
package report

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Result is how a check ended.
type Result string

// Results.
const (
	Passed      Result = "passed"
	Failed      Result = "failed"
	NotPossible Result = "not possible here"
)

// Report is what a run of the suite found out about a machine.
type Report struct {
	// Began is when the run began, in UTC. Seconds is how long it took.
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	Machine
	// Karve is the version of the agent that ran.
	Karve  string  `json:"karve"`
	Checks []Check `json:"checks"`
}

// Machine is what the report is about. It is empty if the driver does not open.
type Machine struct {
	// Product is the name of the first GPU as the driver has it, and GPUs their number.
	Product string `json:"product,omitempty"`
	GPUs    int    `json:"gpus,omitempty"`
	// MemoryMiB is the device memory of the first GPU, in MiB.
	MemoryMiB         int64  `json:"memoryMiB,omitempty"`
	ComputeCapability string `json:"computeCapability,omitempty"`
	Driver            string `json:"driver,omitempty"`
	CUDA              string `json:"cuda,omitempty"`
	// Kernel is that of the machine, and CPUs how many of them it has.
	Kernel string `json:"kernel,omitempty"`
	CPUs   int    `json:"cpus,omitempty"`
}

// MachineAttribute is the attribute with which the suite describes the machine, as JSON.
const MachineAttribute = "machine"

// Check is a test of the suite, or a part of one.
type Check struct {
	Name    string  `json:"name"`
	Result  Result  `json:"result"`
	Seconds float64 `json:"seconds"`
	// Why is the reason unless the check passed.
	Why string `json:"why,omitempty"`
	// Measured has the values that the check measured, by name, in their order.
	Measured map[string][]json.RawMessage `json:"measured,omitempty"`
	// Log is what the check printed.
	Log []string `json:"log,omitempty"`
}

var (
	result = regexp.MustCompile(`^\x16?--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)$`)
	named  = regexp.MustCompile(`^\x16?=== (?:RUN|NAME|CONT|PAUSE)\s+(\S+)$`)
	attr   = regexp.MustCompile(`^\x16?=== ATTR\s+(\S+) (\S+) (.*)$`)
	where  = regexp.MustCompile(`^\s+\w+\.go:\d+: `)
)

// maxLines and mostBytes bound what a report keeps of the log of a check.
const maxLines, mostBytes = 200, 2000

// Parse reads what a test binary printed with -test.v=test2json about one test, with its parts. A test that began and has no result failed because of ended,
// which says how the process ended.
func Parse(output, ended string) []Check {
	var checks []Check
	of := func(name string) *Check {
		i := slices.IndexFunc(checks, func(c Check) bool { return c.Name == name })
		if i < 0 {
			i = len(checks)
			checks = append(checks, Check{Name: name})
		}
		return &checks[i]
	}
	current := ""
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		if m := named.FindStringSubmatch(line); m != nil {
			current = m[1]
			of(current)
		} else if m := attr.FindStringSubmatch(line); m != nil {
			c := of(m[1])
			if c.Measured == nil {
				c.Measured = map[string][]json.RawMessage{}
			}
			c.Measured[m[2]] = append(c.Measured[m[2]], value(m[3]))
		} else if m := result.FindStringSubmatch(line); m != nil {
			c := of(m[2])
			c.Result = map[string]Result{"PASS": Passed, "FAIL": Failed, "SKIP": NotPossible}[m[1]]
			c.Seconds, _ = strconv.ParseFloat(m[3], 64)
			current = m[2]
		} else if c := of(current); current != "" && len(c.Log) < maxLines && !strings.HasPrefix(line, "\x16") && line != "PASS" && line != "FAIL" {
			c.Log = append(c.Log, strings.TrimRight(line[:min(len(line), mostBytes)], " "))
		}
	}
	checks = slices.DeleteFunc(checks, func(c Check) bool { return c.Name == "" })
	for i := range checks {
		c := &checks[i]
		if c.Result == "" {
			c.Result, c.Why = Failed, ended
			continue
		}
		if c.Result != Passed {
			c.Why = why(c.Log)
		}
	}
	return checks
}

// value returns text as JSON: itself if it is JSON, and a string otherwise.
func value(text string) json.RawMessage {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		return json.RawMessage(`""`)
	}
	return quoted
}

// why returns the first message of a check.
func why(log []string) string {
	for _, line := range log {
		if at := where.FindString(line); at != "" {
			return line[len(at):]
		}
	}
	return ""
}

// Count returns how many checks have a result. A test with parts does not count beside them, unless it alone failed.
func (r Report) Count(result Result) int {
	n := 0
	for i, c := range r.Checks {
		if c.Result == result && !r.parent(i) {
			n++
		}
	}
	return n
}

// parent reports whether the check has parts and the same result as one of them, or passed.
func (r Report) parent(i int) bool {
	parts := false
	for _, c := range r.Checks {
		if strings.HasPrefix(c.Name, r.Checks[i].Name+"/") {
			if c.Result == r.Checks[i].Result {
				return true
			}
			parts = true
		}
	}
	return parts && r.Checks[i].Result == Passed
}
