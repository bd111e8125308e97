package disruption

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

var update = flag.Bool("update", false, "rewrite what happens in testdata, for the diff to be reviewed")

const roundsMarker = "-- rounds --\n"

// TestScenarios runs rounds of decisions one after the other, without an API server. It reads testdata/*.txtar: a comment that describes the scenario, and the
// rounds. Lines that begin with ">" are the commands of the rounds before, and those with "> +" what others did. The flag -update writes them.
//
// The other lines, in any order:
//
//	class [idleAfter=5m] [restartCost=0.05] [policy=WhenIdle] [headroom=N]
//	pool [budget=N] [budget-REASON=N] [schedule="0 9 * * *" duration=8h budget=N] [grace=1h] [capacity=reserved]
//	reservation ID TYPE total=N [leaves=2h]
//	machine NAME TYPE [age=1h] [expireAfter=1h] [reservation=ID]
//	node NAME                a node that is not Karve's, with room for pods without replicas
//	pods N on MACHINE [app=NAME] [cpu=300m] [do-not-disrupt] [foreign]
//	pdb APP allows N
//	drift [MACHINE]          the NodePool's template changes, or one machine is of an earlier one
//	end N on MACHINE         pods end
//	delete MACHINE           somebody deletes the NodeClaim
//	come N                   pods arrive
//	sick MACHINE CONDITION   a condition of the Node becomes False
//	silent MACHINE           the kubelet no longer responds
//	well MACHINE
//	protect MACHINE, unprotect MACHINE
//	unblock                  all PodDisruptionBudgets go
//	refuse, allow            the cloud refuses launches, or no longer
//	restart                  the controller restarts: it remembers nothing
//	others                   everybody else acts
//	round [+DURATION]        time passes, and Karve decides
//	run DURATION             rounds every ten seconds, after each of which the others act
func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d scenarios: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			about, want, ok := strings.Cut(string(data), roundsMarker)
			if !ok {
				t.Fatalf("%s has no line %s", file, roundsMarker)
			}
			got := played(t, want)
			if *update {
				if err := os.WriteFile(file, []byte(about+roundsMarker+got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got; -update accepts it)\n%s", diff)
			}
		})
	}
}

// played runs a scenario and returns its lines with what happened.
func played(t *testing.T, script string) string {
	t.Helper()
	w := newRoundsWorld(t)
	w.cluster.GPUNodeClasses[0].Spec.Consolidation = v1alpha1.Consolidation{IdleAfter: "5m"}
	w.cluster.NodePools[0].Spec.Template.Spec.Requirements = snapshottest.Shared().NodePools[0].Spec.Template.Spec.Requirements
	var out strings.Builder
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, ">") {
			continue
		}
		out.WriteString(line)
		words, err := split(strings.TrimSpace(line))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if err := w.does(words[0], words[1:]); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		for _, happened := range w.log {
			fmt.Fprintf(&out, "> %s\n", happened)
		}
		w.log = nil
	}
	return out.String()
}

// split splits a line into words. A word may have a quoted part.
func split(line string) ([]string, error) {
	var words []string
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		end := strings.IndexAny(line, " \"")
		if end >= 0 && line[end] == '"' {
			quoted, err := strconv.QuotedPrefix(line[end:])
			if err != nil {
				return nil, fmt.Errorf("reading a quoted word: %w", err)
			}
			text, err := strconv.Unquote(quoted)
			if err != nil {
				return nil, fmt.Errorf("reading a quoted word: %w", err)
			}
			words, line = append(words, line[:end]+text), line[end+len(quoted):]
			continue
		}
		if end < 0 {
			end = len(line)
		}
		words, line = append(words, line[:end]), line[end:]
	}
	return words, nil
}

// options has the words of a line, by what is before the equals sign.
type options map[string]string

func optionsOf(words []string) options {
	o := options{}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		o[key] = value
	}
	return o
}

func (o options) has(key string) bool { _, ok := o[key]; return ok }

func (o options) duration(key string) time.Duration {
	d, err := time.ParseDuration(o[key])
	if err != nil {
		panic(err)
	}
	return d
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

// does carries out a line of a scenario.
func (w *roundsWorld) does(verb string, words []string) error {
	o := optionsOf(words)
	switch verb {
	case "class":
		w.classed(o)
	case "pool":
		w.pooled(o)
	case "machine":
		w.adds(words[0], words[1], o)
	case "reservation":
		w.reserves(words[0], words[1], o)
	case "pods":
		w.runs(number(words[0]), words[2], o)
	case "pdb":
		w.pdbs = append(w.pdbs, pdb(words[0], number(words[2])))
	case "unblock":
		w.pdbs = nil
	case "node":
		node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: words[0]}}
		node.Status.Allocatable = snapshottest.Amounts("cpu", "3", "memory", "8Gi", "pods", "10", "ephemeral-storage", "1Gi")
		w.cluster.Nodes = append(w.cluster.Nodes, node)
	case "delete":
		w.interrupt(words[0])
	case "drift":
		if len(words) > 0 {
			w.claim(words[0]).Annotations[karpv1.NodePoolHashAnnotationKey] = "another"
			break
		}
		w.drift()
	case "end":
		w.end(words[2], number(words[0]))
	case "come":
		for range number(words[0]) {
			w.pod()
		}
	case "sick":
		w.falls(words[0], corev1.NodeConditionType(words[1]), corev1.ConditionFalse)
	case "silent":
		w.falls(words[0], corev1.NodeReady, corev1.ConditionUnknown)
	case "well":
		w.recovers(words[0])
	case "protect":
		metav1.SetMetaDataAnnotation(&w.node(words[0]).ObjectMeta, karpv1.DoNotDisruptAnnotationKey, "true")
	case "unprotect":
		delete(w.node(words[0]).Annotations, karpv1.DoNotDisruptAnnotationKey)
	case "refuse", "allow":
		w.refuses = verb == "refuse"
	case "restart":
		w.memory = Memory{}
	case "others":
		w.others()
	case "round":
		if len(words) > 0 {
			w.cluster.Now = w.cluster.Now.Add(optionsOf([]string{"in=" + strings.TrimPrefix(words[0], "+")}).duration("in"))
		}
		w.round()
	case "run":
		w.run(optionsOf([]string{"for=" + words[0]}).duration("for"))
	default:
		return fmt.Errorf("unknown line %q", verb)
	}
	return nil
}

// run runs rounds for a time, and notes what happens when.
func (w *roundsWorld) run(lasts time.Duration) {
	began := w.cluster.Now
	var log []string
	for w.cluster.Now.Before(began.Add(lasts)) {
		w.cluster.Now = w.cluster.Now.Add(10 * time.Second)
		w.log = nil
		w.round()
		w.others()
		for _, line := range w.log {
			if plain := !strings.HasPrefix(line, string(Stay)) && !strings.HasPrefix(line, string(Blocked)); plain || strings.Contains(line, ":") {
				log = append(log, fmt.Sprintf("%s %s", w.cluster.Now.Sub(began), line))
			}
		}
	}
	w.log = append(log, "= "+w.state())
}

func (w *roundsWorld) classed(o options) {
	c := &w.cluster.GPUNodeClasses[0].Spec
	if o.has("idleAfter") {
		c.Consolidation.IdleAfter = o["idleAfter"]
	}
	if o.has("restartCost") {
		c.Consolidation.RestartCost = o["restartCost"]
	}
	if o.has("policy") {
		c.Consolidation.Policy = v1alpha1.ConsolidationPolicy(o["policy"])
	}
	if o.has("headroom") {
		c.Headroom = []v1alpha1.Headroom{{Replicas: int32(number(o["headroom"]))}}
	}
}

func (w *roundsWorld) pooled(o options) {
	pool := &w.cluster.NodePools[0]
	if o.has("schedule") {
		pool.Spec.Disruption.Budgets = append(pool.Spec.Disruption.Budgets, karpv1.Budget{
			Nodes: o["budget"], Schedule: new(o["schedule"]), Duration: &metav1.Duration{Duration: o.duration("duration")},
		})
		return
	}
	if o.has("budget") {
		pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: o["budget"]}}
	}
	for key, nodes := range o {
		if reason, ok := strings.CutPrefix(key, "budget-"); ok {
			pool.Spec.Disruption.Budgets = append(pool.Spec.Disruption.Budgets, karpv1.Budget{Nodes: nodes, Reasons: []karpv1.DisruptionReason{karpv1.DisruptionReason(reason)}})
		}
	}
	if o.has("capacity") {
		snapshottest.Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, strings.Split(o["capacity"], ",")...)(pool)
	}
	if o.has("grace") {
		pool.Spec.Template.Spec.TerminationGracePeriod = &metav1.Duration{Duration: o.duration("grace")}
	}
}

// reserves adds a reservation, which others count.
func (w *roundsWorld) reserves(id, kind string, o options) {
	r := catalog.Reservation{ID: id, InstanceType: kind, Total: int64(number(o["total"])), Read: w.cluster.Now}
	if o.has("leaves") {
		r.Leaves = w.cluster.Now.Add(o.duration("leaves"))
		r.End = r.Leaves.Add(40 * time.Minute)
	}
	snapshottest.Reserve(w.cluster, r)
	w.recount()
}

// adds adds a machine that has run for a while.
func (w *roundsWorld) adds(name, kind string, o options) {
	age := time.Hour
	if o.has("age") {
		age = o.duration("age")
	}
	instanceType := snapshottest.TypeNamed(kind)
	claim := snapshottest.Claim(name, &w.cluster.NodePools[0], instanceType, snapshottest.Initialized(w.cluster.Now.Add(-age)))
	claim.CreationTimestamp = metav1.NewTime(w.cluster.Now.Add(-age))
	if o.has("reservation") {
		snapshottest.Reserved(o["reservation"])(&claim)
	}
	if o.has("expireAfter") {
		claim.Spec.ExpireAfter = karpv1.NillableDuration{Duration: new(o.duration("expireAfter"))}
	}
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, karpv1.NodePoolHashAnnotationKey, w.cluster.NodePools[0].Hash())
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, karpv1.NodePoolHashVersionAnnotationKey, karpv1.NodePoolHashVersion)
	node := snapshottest.Node(&claim, instanceType, perXlarge*instanceType.GPU.Count)
	w.cluster.NodeClaims, w.cluster.Nodes = append(w.cluster.NodeClaims, claim), append(w.cluster.Nodes, node)
	w.recount()
	slices.SortFunc(w.cluster.NodeClaims, func(a, b karpv1.NodeClaim) int { return strings.Compare(a.Name, b.Name) })
}

// runs adds pods that have run on a machine for an hour.
func (w *roundsWorld) runs(n int, machine string, o options) {
	app := "web"
	if o.has("app") {
		app = o["app"]
	}
	for range n {
		w.made++
		w.cluster.Pods = append(w.cluster.Pods, snapshottest.Pod(fmt.Sprintf("%s-%03d", app, w.made), snapshottest.OwnedBy("apps/v1", "ReplicaSet", app), func(p *corev1.Pod) {
			if o.has("foreign") {
				snapshottest.Asking("cpu", "100m")(p)
			}
			if o.has("cpu") {
				snapshottest.Asking("cpu", o["cpu"], "memory", "1Gi", v1alpha1.ResourceGPUShared, "1")(p)
			}
			if o.has("do-not-disrupt") {
				metav1.SetMetaDataAnnotation(&p.ObjectMeta, karpv1.DoNotDisruptAnnotationKey, "true")
			}
			snapshottest.WithLabels("app", app)(p)
			snapshottest.Running(w.claim(machine).Status.NodeName)(p)
			p.Status.StartTime = &metav1.Time{Time: w.cluster.Now.Add(-time.Hour)}
		}))
	}
}

// pdb returns a PodDisruptionBudget that allows evictions of pods of an app.
func pdb(app string, allows int) policyv1.PodDisruptionBudget {
	return policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: metav1.NamespaceDefault},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, MaxUnavailable: new(intstr.FromInt32(int32(allows)))},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(allows)},
	}
}
