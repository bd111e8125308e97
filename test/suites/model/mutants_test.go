package model

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutant is Karve with one of its past bugs reintroduced.
type mutant struct {
	name  string
	edits []edit
	// says is a part of the failure that the model reports.
	says string
}

// edit replaces text in a file of the repository.
type edit struct {
	file, is, becomes string
}

var mutants = []mutant{
	{"a machine that never initializes is room for good", []edit{
		{"pkg/snapshot/records/status.go", "f.breaks = lifecycle.Of(f.state).Breaks", "f.breaks = lifecycle.Of(f.state).Breaks && f.state != lifecycle.Initializing"},
	}, "stuck:"},
	{"a broken machine that is kept keeps its pool closed", []edit{
		{"pkg/controllers/readiness/broken.go", "return healthy != nil && !m.Fresh(healthy.LastTransitionTime.Time, c.Clock.Now(), c.Timeout), nil", "return false, nil"},
		{"pkg/controllers/readiness/broken.go", `m.Pods[i].Name), since.Add(timeout)`, `m.Pods[i].Name), time.Time{}`},
		{"pkg/snapshot/offer.go", "m.Fresh(transitionTime(healthy), now, timeout) ||", "m.Broken(now, timeout) ||"},
	}, "stuck:"},
	{"machines that start use up the disruption budget", []edit{
		{"pkg/fleet/disruption/budget.go", "if !counts(m.Machine) {\n\t\t\tcontinue\n\t\t}\n\t\tu, draining", "u, draining"},
		{"pkg/fleet/disruption/budget.go", "if !counts(c.Machine.Machine) {\n\t\treturn\n\t}\n", ""},
	}, "is idle and stays, though the budget allows"},
	{"machines with pods of one PodDisruptionBudget drain at once", []edit{
		{"pkg/fleet/disruption/replace.go", "if other == \"\" || other == m.Claim.Name {\n\t\t\tcontinue\n\t\t}", "if true {\n\t\t\tcontinue\n\t\t}"},
	}, "are drained at once, with pods of the PodDisruptionBudget"},
	{"idle machines are each judged against the same room", []edit{
		{"pkg/fleet/disruption/idle.go", "slices.Concat(going, ", "slices.Concat(going[:0], "},
	}, "pods without replicas of idle machines that Karve removes have a place"},
	{"an outage keeps machines that never start", []edit{
		{"pkg/controllers/readiness/broken.go", "return out, since.Add(timeout)", "return out, time.Time{}"},
	}, "stuck:"},
	{"machines of a group open one by one", []edit{
		{"pkg/snapshot/groupmachines.go", `case unready != "":`, `case unready != "" && false:`},
		{"pkg/snapshot/groupmachines.go", "case !plan.whole || slices.ContainsFunc(plan.on, lost):", "case false && (!plan.whole || slices.ContainsFunc(plan.on, lost)):"},
	}, "opens for gang"},
	{"machines of a group open after one of them has failed", []edit{
		{"pkg/snapshot/groupmachines.go", "return name != m.Claim.Name && !g.exposing[name]", "return false && !g.exposing[name]"},
	}, "opens for gang"},
	{"machines open for a group of which too few pods exist", []edit{
		{"pkg/snapshot/groupmachines.go", "of == nil || of.refusal() == nil", "of == nil || true"},
	}, "opens for gang"},
	{"machines wait for their group for good", []edit{
		{"pkg/controllers/readiness/groups.go", "if !c.overdue(m) {", "if true {"},
	}, "is neither opened nor given back"},
	{"machines stay for pods that are gone", []edit{
		{"pkg/fleet/disruption/look.go", "= wanted[m.Node.Name], reserved", `= wanted[m.Node.Name] || m.Claim.Annotations["karve.sh/planned-pods"] != "", reserved`},
	}, "holds no pod and stays"},
	{"running pods of a group are planned for again", []edit{
		{"pkg/snapshot/groups.go", "of.bound = append(of.bound, pod)", "of.bound, of.open = append(of.bound, pod), append(of.open, pod)"},
	}, "of gang"},
	{"a group that has started needs all places at once again", []edit{
		{"pkg/snapshot/groups.go", "return max(0, g.min-int64(len(g.bound))-g.ended)", "return max(0, g.min-g.ended)"},
	}, "stuck: pod gang"},
}

// root is the relative path of the repository.
const root = "../../.."

// overlay writes the mutant's changed files and the overlay file that makes the go command read them.
func (m *mutant) overlay(t *testing.T) string {
	t.Helper()
	dir, changed := t.TempDir(), map[string]string{}
	for _, e := range m.edits {
		text := changed[e.file]
		if text == "" {
			data, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				t.Fatal(err)
			}
			text = string(data)
		}
		if n := strings.Count(text, e.is); n != 1 {
			t.Fatalf("%s has %d times %q; change this mutant with the code", e.file, n, e.is)
		}
		changed[e.file] = strings.Replace(text, e.is, e.becomes, 1)
	}
	replace := map[string]string{}
	for file, text := range changed {
		original, err := filepath.Abs(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		replace[original] = filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(replace[original], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	document, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, document, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestModelFindsFixedBugs checks that the runs of TestNoObjectGetsStuck find each mutant. It builds Karve for each mutant, so it runs only with
// KARVE_MODEL_MUTANTS=1. It always checks that the mutants still apply to the code.
func TestModelFindsFixedBugs(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			overlay := m.overlay(t)
			if os.Getenv("KARVE_MODEL_MUTANTS") == "" {
				t.Skip("KARVE_MODEL_MUTANTS is not set")
			}
			test := exec.CommandContext(context.WithoutCancel(t.Context()), "go", "test", "-overlay", overlay, "-run", "^TestNoObjectGetsStuck$", ".")
			test.Env = append(os.Environ(), "KARVE_MODEL_SEED=", "KARVE_MODEL_RUNS=") // The defaults apply.
			out, err := test.CombinedOutput()
			if err == nil {
				t.Fatal("no run finds it")
			}
			var found strings.Builder
			for line := range strings.Lines(string(out)) {
				if _, seed, ok := strings.Cut(line, ": seed "); ok {
					found.WriteString("seed " + seed)
				}
			}
			reason := found.String()
			if !strings.Contains(reason, m.says) {
				t.Fatalf("the runs say %q; want %q\n%s", reason, m.says, out)
			}
			t.Log(reason)
		})
	}
}
