package lifecycle

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/internal/docpage"
	"karve.sh/karve/pkg/nodecontract"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/machines.md")

const page = "../../docs/machines.md"

// limit formats a limit for the tables.
func limit(l Limit) string {
	switch {
	case l.Default == 0 && l.Setting == "":
		return "none"
	case l.Default == 0:
		return "`" + l.Setting + "`"
	case l.Setting == "":
		return short(l.Default)
	}
	return fmt.Sprintf("`%s` (%s)", l.Setting, short(l.Default))
}

// short formats a duration without the units that are 0.
func short(d time.Duration) string {
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}

func states() string {
	var b strings.Builder
	b.WriteString("| state | when | who takes the next step | limit |\n|---|---|---|---|\n")
	for _, r := range Table {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.State, r.Means, r.Owner, limit(r.Limit))
	}
	return b.String()
}

func TestPageHasTableOfStates(t *testing.T) {
	t.Parallel()
	docpage.Check(t, page, "<!-- states -->\n", "<!-- end of states -->\n", states(), *update)
}

// TestDiagramHasStepsAndLimitsOfTable checks that each arrow of the diagram is a step in the table, that no step is missing, and that the labels have the limits.
func TestDiagramHasStepsAndLimitsOfTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, diagram, _ := strings.Cut(string(text), "```mermaid\nstateDiagram-v2\n")
	diagram, _, _ = strings.Cut(diagram, "```")
	labels := map[State]map[State]string{}
	for line := range strings.Lines(diagram) {
		arrow, label, labeled := strings.Cut(strings.TrimSpace(line), ": ")
		from, to, ok := strings.Cut(arrow, " --> ")
		if !ok || !labeled {
			t.Fatalf("%q is no arrow with a label", line)
		}
		if labels[State(from)] == nil {
			labels[State(from)] = map[State]string{}
		}
		labels[State(from)][State(to)] = label
	}
	for _, r := range Table {
		leaves := labels[r.State]
		for _, to := range Table {
			_, drawn := leaves[to.State]
			// A machine becomes Unhealthy or loses its Node by a fault. What becomes Broken at the limit is deleted as a broken machine.
			fault := r.State == Started && (to.State == Unhealthy || to.State == NodeMissing)
			deleted := r.Breaks && to.State == Draining
			step := to.State != r.State && !deleted && strings.Contains(r.Next+r.Late, string(to.State))
			if drawn != (step || fault) {
				t.Errorf("%s --> %s: drawn is %t", r.State, to.State, drawn)
			}
		}
		want := "after " + r.Limit.Setting
		if r.Limit.Default > 0 {
			want = "after " + short(r.Limit.Default)
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(leaves)), func(label string) bool { return strings.Contains(label, want) }) {
			t.Errorf("no arrow from %s has the limit: %q", r.State, want)
		}
	}
}

// TestEveryStateHasOwnerLimitAndNextStep checks that every state ends: it has a limit and a next step, or somebody is notified.
func TestEveryStateHasOwnerLimitAndNextStep(t *testing.T) {
	t.Parallel()
	all := []State{Requested, Launched, Registered, Initializing, Broken, NodeMissing, Started, Unhealthy, Replacing, Disrupting, Draining}
	if len(all) != len(Table) {
		t.Errorf("there are %d states, and the table has %d", len(all), len(Table))
	}
	for _, s := range all {
		r := Of(s)
		if r.Means == "" || r.Owner == "" || r.Next == "" || r.Late == "" || r.Limit == (Limit{}) {
			t.Errorf("%s lacks something: %+v", s, *r)
		}
		if r.Breaks && (r.Limit != replicasTimeout || !strings.HasPrefix(r.Late, string(Broken))) {
			t.Errorf("%s breaks at the replicas timeout, but the table says otherwise: %+v", s, *r)
		}
		named := slices.ContainsFunc(all, func(next State) bool { return next != s && strings.Contains(r.Next+r.Late, string(next)) })
		if !named && s != Draining {
			t.Errorf("%s leads to no other state: %+v", s, *r)
		}
	}
}

// facts are the labels, annotations and taints that state facts, and those that users write and remove.
var facts = []string{
	v1alpha1.GPUNodeClassLabel, nodecontract.ResourceAnnotation, nodecontract.GPUsAnnotation, nodecontract.ReplicasPerGPUAnnotation, nodecontract.MPSAnnotation, v1alpha1.PriceAnnotation, v1alpha1.ListPriceAnnotation, v1alpha1.GPUMemoryAnnotation,
	v1alpha1.ThroughputAnnotation, v1alpha1.FollowsLoadAnnotation, v1alpha1.GroupAnnotation, v1alpha1.GroupMinMembersAnnotation,
	v1alpha1.ReplacesAnnotation, nodecontract.UnusedSinceAnnotation, nodecontract.HoldersAnnotation, v1alpha1.EvictWhenUnusedAnnotation, nodecontract.GPUResetAnnotation, nodecontract.GPUThreadsAnnotation, nodecontract.GPUCordonAnnotation, v1alpha1.CanaryLabel, v1alpha1.ImageRolloutAnnotation,
	v1alpha1.FormerSelectorTermsAnnotation, v1alpha1.CanaryTaintKey, v1alpha1.SchedulingRetriedLabel, v1alpha1.PlannedPodsAnnotation, v1alpha1.PlanAnnotation, v1alpha1.PlannedLaunchesAnnotation,
}

// An author who adds an annotation or a taint documents in marks what it blocks, for how long, and who removes it.
func TestEveryAnnotationAndTaintIsFactOrMark(t *testing.T) {
	t.Parallel()
	known := slices.Clone(facts)
	for _, m := range marks {
		known = append(known, m.Name)
	}
	found := 0
	for _, file := range []string{"../apis/v1alpha1/labels.go", "../nodecontract/annotations.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			sum, ok := n.(*ast.BinaryExpr)
			if !ok {
				return true
			}
			suffix, ok := sum.Y.(*ast.BasicLit)
			if !ok {
				return true
			}
			name, err := strconv.Unquote(suffix.Value)
			if err != nil {
				t.Fatal(err)
			}
			found++
			if !slices.Contains(known, v1alpha1.Group+name) {
				t.Errorf("%s is neither a fact nor in marks", v1alpha1.Group+name)
			}
			return true
		})
	}
	if found < len(facts) {
		t.Errorf("only %d names were found", found)
	}
}

func TestBackoffDoublesUpToLimit(t *testing.T) {
	t.Parallel()
	for failures, want := range map[int]time.Duration{0: time.Minute, 1: time.Minute, 2: 2 * time.Minute, 3: 4 * time.Minute, 4: 5 * time.Minute, 1 << 40: 5 * time.Minute} {
		if got := Backoff(time.Minute, 5*time.Minute, failures); got != want {
			t.Errorf("after %d failures it is %s, want %s", failures, got, want)
		}
	}
	if got := Backoff(time.Hour, time.Minute, 1); got != time.Minute {
		t.Errorf("the limit is exceeded: %s", got)
	}
}
