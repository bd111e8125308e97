package solve_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

var update = flag.Bool("update", false, "rewrite the plans in testdata, for the diff to be reviewed")

// The files are txtar archives with two members.
const (
	snapshotMarker = "-- snapshot --\n"
	planMarker     = "-- plan --\n"
)

// TestScenariosMatchGoldenPlans reads testdata/*.txtar: a comment that describes the scenario, the snapshot, and the expected plan.
//
// The lines of a snapshot, in any order:
//
//	pool NAME [nodes=N] [gpus=N] [cpu=N] [weight=N] [closed=REASON: MESSAGE]
//	quota NAME EACH
//	machines POOL TYPE,TYPE… [replicas=N] [zones=A,B] [spot]
//	unavailable TYPE ZONE CAPACITY-TYPE MESSAGE
//	node NAME cpu=MILLI memory=MIB replicas=N pods=N [gpus=REPLICAS:MIB,REPLICAS:MIB…]
//	pods NAME COUNT cpu=MILLI memory=MIB replicas=N [gpumemory=MIB] [takes=QUOTA] [capacity=TYPE] [pools=A,B] [nodes=A,B] [blocked=REASON: MESSAGE]
//	apart NAME,NAME… from NAME,NAME…
//
// The lines that rules_golden_test.go reads:
//
//	choice POOL of N
//	rule spread|together|apart NAME,NAME… by=zone|node [counts=NAME,NAME…] [skew=N] [min=N] [there=ZONE:N,ZONE:N…] [others] [wish]
//	node … [zone=ZONE]
//	pods … [priority=N] [prefers=ZONE]
//
// A pod is admitted everywhere unless capacity, pools or nodes restrict it. The value - is an empty list.
func TestScenariosMatchGoldenPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, _ := strings.Cut(string(data), planMarker)
			_, snapshot, ok := strings.Cut(input, snapshotMarker)
			if !ok {
				t.Fatalf("%s has no line %s", file, snapshotMarker)
			}
			s := parseSnapshot(t, snapshot)
			p := solve.Plan(s)
			if err := check.Plan(s, p); err != nil {
				t.Fatal(err)
			}
			got := describe(s, p)
			if *update {
				if err := os.WriteFile(file, []byte(input+planMarker+got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got; -update accepts it)\n%s", diff)
			}
		})
	}
}

// describe formats a plan for review: identical machines are merged, and pods are counts of their classes.
func describe(s planner.Snapshot, p planner.Plan) string {
	var out strings.Builder
	fmt.Fprintf(&out, "price %s, bound %s\n", dollars(p.Price), dollars(p.Bound))
	group := func(lines []string) {
		for i := 0; i < len(lines); {
			n := 1
			for i+n < len(lines) && lines[i+n] == lines[i] {
				n++
			}
			fmt.Fprintf(&out, "%d × %s\n", n, lines[i])
			i += n
		}
	}
	var placed, launched, left []string
	for _, x := range p.Placements {
		placed = append(placed, fmt.Sprintf("existing %s: %s", s.Nodes[x.Node].Name, classes(x.Pods)+onGPUs(x.Pods, x.GPUs)))
	}
	for _, x := range p.Launches {
		o := s.Offerings[x.Offering]
		launched = append(launched, fmt.Sprintf("launch %s %s%s %s %s at %s: %s",
			s.Pools[o.Pool].Name, o.InstanceType, alternativesOf(s, x), o.Zone, o.CapacityType, dollars(o.Price), classes(x.Pods)+onGPUs(x.Pods, x.GPUs)))
	}
	for _, x := range p.Unplaced {
		left = append(left, fmt.Sprintf("unplaced %s: %s: %s", classes([]string{x.Pod})[2:], x.Reason, x.Message))
	}
	group(placed)
	group(launched)
	group(left)
	return out.String()
}

// onGPUs returns which pods each GPU has, or "" if they do not state device memory.
func onGPUs(pods []string, gpus []int) string {
	if gpus == nil {
		return ""
	}
	var out []string
	for g := range slices.Max(gpus) + 1 {
		var on []string
		for i, pod := range pods {
			if gpus[i] == g {
				on = append(on, pod)
			}
		}
		if len(on) > 0 {
			out = append(out, fmt.Sprintf("GPU %d has %s", g, classes(on)))
		}
	}
	return " (" + strings.Join(out, ", ") + ")"
}

func dollars(m planner.MicroUSD) string {
	return "$" + strings.TrimRight(strings.TrimRight(fmt.Sprintf("%d.%06d", m/1e6, m%1e6), "0"), ".")
}

// classes counts pods by the name before their number.
func classes(pods []string) string {
	n := map[string]int{}
	var names []string
	for _, pod := range pods {
		name := pod[len("default/"):strings.LastIndex(pod, "-")]
		if n[name]++; n[name] == 1 {
			names = append(names, name)
		}
	}
	var out []string
	for _, name := range names {
		out = append(out, fmt.Sprintf("%d %s", n[name], name))
	}
	return strings.Join(out, ", ")
}

// line is one line of a snapshot: words, and options with values.
type line struct {
	words   []string
	options map[string]string
}

func parseLine(text string) line {
	l := line{options: map[string]string{}}
	words := strings.Fields(text)
	for i, w := range words {
		k, v, ok := strings.Cut(w, "=")
		switch {
		case !ok:
			l.words = append(l.words, w)
			continue
		case k == "closed" || k == "blocked":
			l.options[k] = strings.Join(append([]string{v}, words[i+1:]...), " ")
			return l
		}
		l.options[k] = v
	}
	return l
}

func (l line) number(t *testing.T, name string, otherwise int64) int64 {
	t.Helper()
	text, ok := l.options[name]
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%v: %s: %v", l.words, name, err)
	}
	return n
}

func (l line) refusal(name string) *planner.Refusal {
	text, ok := l.options[name]
	if !ok {
		return nil
	}
	reason, message, _ := strings.Cut(text, ": ")
	return &planner.Refusal{Reason: planner.Reason(reason), Message: message}
}

// among reports whether the option lists x or is absent.
func (l line) among(name, x string) bool {
	list, ok := l.options[name]
	return !ok || slices.Contains(strings.Split(list, ","), x)
}

func parseSnapshot(t *testing.T, text string) planner.Snapshot {
	t.Helper()
	var s planner.Snapshot
	var pods, aparts, ruled []line
	for row := range strings.Lines(text) {
		l := parseLine(row)
		if len(l.words) == 0 {
			continue
		}
		switch l.words[0] {
		case "pool":
			p := planner.Pool{Name: l.words[1], Remaining: planner.NoLimits, Closed: l.refusal("closed")}
			p.Remaining.Nodes = l.number(t, "nodes", planner.Unlimited)
			p.Remaining.GPUs = l.number(t, "gpus", planner.Unlimited)
			p.Remaining.MilliCPU = l.number(t, "cpu", planner.Unlimited)
			p.Weight = int32(l.number(t, "weight", 0))
			s.Pools = append(s.Pools, p)
		case "machines":
			s.Offerings = append(s.Offerings, machines(t, s, l)...)
		case "unavailable":
			for i := range s.Offerings {
				if o := &s.Offerings[i]; o.InstanceType == l.words[1] && o.Zone == l.words[2] && o.CapacityType == l.words[3] {
					o.Unavailable = &planner.Refusal{Reason: planner.ReasonUnavailable, Message: strings.Join(l.words[4:], " ")}
				}
			}
		case "rule", "choice":
			ruled = append(ruled, l)
		case "node":
			ruled = append(ruled, l)
			free := plantest.Request(l.number(t, "cpu", 0), l.number(t, "memory", 0), l.number(t, "replicas", 0))
			free.Pods = l.number(t, "pods", 20)
			s.Nodes = append(s.Nodes, planner.Node{Name: l.words[1], Free: free, GPUs: l.gpus(t)})
		case "quota":
			each, err := strconv.ParseInt(l.words[2], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			s.Quotas = append(s.Quotas, planner.Quota{Name: l.words[1], Each: each})
		case "pods":
			pods = append(pods, l)
		case "apart":
			aparts = append(aparts, l)
		default:
			t.Fatalf("unknown line: %s", row)
		}
	}
	for _, l := range pods {
		n, err := strconv.Atoi(l.words[2])
		if err != nil {
			t.Fatal(err)
		}
		c := plantest.Class(s, l.words[1], n, plantest.Request(l.number(t, "cpu", 0), l.number(t, "memory", 0), l.number(t, "replicas", 1)))
		c.Offerings = slices.DeleteFunc(c.Offerings, func(i int) bool {
			return !l.among("capacity", s.Offerings[i].CapacityType) || !l.among("pools", s.Pools[s.Offerings[i].Pool].Name)
		})
		c.Nodes = slices.DeleteFunc(c.Nodes, func(i int) bool { return !l.among("nodes", s.Nodes[i].Name) })
		c.Blocked = l.refusal("blocked")
		c.GPUMemoryBytes = l.number(t, "gpumemory", 0) * plantest.Mi
		for q := range s.Quotas {
			if _, ok := l.options["takes"]; ok && l.among("takes", s.Quotas[q].Name) {
				c.Quotas = append(c.Quotas, planner.Amount{Quota: q, Count: 1})
			}
		}
		s.Classes = append(s.Classes, c)
	}
	addRules(t, &s, pods, ruled)
	for _, l := range aparts {
		s.Rules = append(s.Rules, planner.Rule{
			Kind: planner.Apart, Name: "podAntiAffinity", Topology: planner.PerNode, Classes: named(pods, l.words[1]), Counted: named(pods, l.words[3]),
		})
	}
	return s
}

// named returns the indices of the classes whose names are in the list.
func named(pods []line, names string) []int {
	var out []int
	for i, p := range pods {
		if slices.Contains(strings.Split(names, ","), p.words[1]) {
			out = append(out, i)
		}
	}
	return out
}

// gpus parses the GPUs of a node.
func (l line) gpus(t *testing.T) []planner.GPU {
	t.Helper()
	var out []planner.GPU
	for _, text := range strings.FieldsFunc(l.options["gpus"], func(r rune) bool { return r == ',' }) {
		var replicas, mib int64
		if _, err := fmt.Sscanf(text, "%d:%d", &replicas, &mib); err != nil {
			t.Fatal(err)
		}
		out = append(out, planner.GPU{Replicas: replicas, MemoryBytes: mib * plantest.Mi})
	}
	return out
}

func machines(t *testing.T, s planner.Snapshot, l line) []planner.Offering {
	t.Helper()
	pool := slices.IndexFunc(s.Pools, func(p planner.Pool) bool { return p.Name == l.words[1] })
	var out []planner.Offering
	for _, m := range plantest.G4dn() {
		if l.words[2] != "g4dn" && !slices.Contains(strings.Split(l.words[2], ","), m.Type) {
			continue
		}
		zones := []string{"zone-a"}
		if list, ok := l.options["zones"]; ok {
			zones = strings.Split(list, ",")
		}
		for _, zone := range zones {
			out = append(out, m.Offering(pool, zone, "on-demand", m.Price, l.number(t, "replicas", 10)))
			if slices.Contains(l.words, "spot") {
				out = append(out, m.Offering(pool, zone, "spot", m.Price*2/5, l.number(t, "replicas", 10)))
			}
		}
	}
	return out
}
