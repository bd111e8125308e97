package model

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	debug.SetGCPercent(800) // A fifth of the time is collecting garbage otherwise, and little is kept.
	os.Exit(m.Run())
}

const (
	// steps is how many things happen in a run before everybody is well.
	steps = 200
	// rounds bounds how often everybody has a turn afterwards, and longest how long that may take: machines that stand for sick ones rest for up to 12 hours.
	rounds  = 600
	longest = 72 * time.Hour
)

// KARVE_MODEL_RUNS says how many runs there are, KARVE_MODEL_SEED which is the first.
func TestNothingGetsStuck(t *testing.T) {
	t.Parallel()
	first, n := setting(t, "KARVE_MODEL_SEED", 1), setting(t, "KARVE_MODEL_RUNS", 100)
	for part := range uint64(parallel) {
		t.Run(fmt.Sprintf("part %d", part), func(t *testing.T) {
			t.Parallel()
			for seed := first + part; seed < first+n; seed += parallel {
				if why, trace := run(seed, steps); why != "" {
					t.Errorf("seed %d: %s\n%s", seed, why, strings.Join(trace, "\n"))
					return
				}
			}
		})
	}
}

// parallel is how many runs go on at a time.
const parallel = 2

func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// run is one run: what went wrong, "" for nothing, and what happened.
func run(seed uint64, steps int) (why string, trace []string) {
	w := newWorld(seed)
	w.begins()
	for range steps {
		if w.step(); w.failure != "" {
			return w.failure, w.trace
		}
	}
	w.heal()
	w.settles()
	return w.failure, w.trace
}

// heal has the cloud, the network, the CSI driver and the device plugin be well from now on. Machines that are broken stay broken, and what users have done stays.
func (w *world) heal() {
	w.tell("all are well")
	w.mend()
	if pool := w.pool(); pool.Spec.Disruption.Budgets[0].Nodes == "0" {
		pool.Spec.Disruption.Budgets[0].Nodes = "10%"
		w.store.touch(pool)
	}
}

// mend ends the faults that new machines and pods have.
func (w *world) mend() {
	w.refusing, w.csiBroken, w.pluginBroken, w.networkBroken, w.unready = false, false, false, false, false
}

// settles gives everybody a turn until nothing is left to do.
func (w *world) settles() {
	end, pause := w.now().Add(longest), 10*time.Second
	for range rounds {
		version := w.store.version
		w.turn()
		if w.failure != "" {
			return
		}
		if w.unsettled() == "" {
			return
		}
		if w.now().After(end) {
			break
		}
		if pause = min(2*pause, 5*time.Minute); w.store.version-version > w.idleWrites() {
			pause = 10 * time.Second
		}
		w.clock.Step(pause)
	}
	w.failf("stuck: %s", w.unsettled())
	w.show()
}

// idleWrites is about how many writes a turn takes in which nothing happens: kubelets report.
func (w *world) idleWrites() int { return 4 * len(w.nodes()) }

// turn gives everybody a turn.
func (w *world) turn() {
	for _, part := range parts {
		w.runs(part)
	}
	for _, claim := range w.claims() {
		w.karpenter(claim)
	}
	w.kubelets()
	w.replicate()
	w.schedule()
	w.people()
}

// people do what a condition asks of them: they delete the claims of machines that are sick when too many are.
func (w *world) people() {
	if c := snapshot.Condition(w.pool().Status.Conditions, v1alpha1.ConditionNodesHealthy); !c.IsFalse() {
		return
	}
	for _, claim := range w.claims() {
		if h := w.hardware[claim.Name]; h != nil && (h.dead || !h.exposes) && claim.DeletionTimestamp.IsZero() && has(claim, karpv1.ConditionTypeInitialized) {
			w.tell("as the condition asks, somebody deletes %s", claim.Name)
			w.store.remove(claim)
		}
	}
}

// unsettled says what is still to be done; "" when nothing is.
func (w *world) unsettled() string {
	for _, pod := range w.pods() {
		if pod.Spec.NodeName == "" && w.needed(pod) {
			return "pod " + pod.Name + " waits"
		}
		if h := w.hardware[pod.Spec.NodeName]; h != nil && h.dead && !w.keptByPeople(pod.Spec.NodeName) {
			return "pod " + pod.Name + " is on the dead " + pod.Spec.NodeName
		}
	}
	for _, claim := range w.claims() {
		if why := w.undecided(claim); why != "" {
			return claim.Name + " " + why
		}
	}
	if c := snapshot.Condition(w.pool().Status.Conditions, v1alpha1.ConditionReplicasHealthy); !c.IsTrue() {
		return "the breaker is not closed"
	}
	return ""
}

// needed says whether a pod that waits has a place somewhere: others have to do with the room of the stock node.
func (w *world) needed(pod *corev1.Pod) bool {
	return pod.Labels["app"] != "squat" || w.admits(find[*corev1.Node](w.store, "", stock), pod)
}

// keptByPeople says that somebody wants a machine to stay as it is.
func (w *world) keptByPeople(node string) bool {
	n := find[*corev1.Node](w.store, "", node)
	return n != nil && n.Annotations[repair.DoNotRepair] == "true"
}

// undecided says what is still to be decided about a machine.
func (w *world) undecided(claim *karpv1.NodeClaim) string {
	node := w.node(claim)
	switch {
	case !claim.DeletionTimestamp.IsZero():
		// A pod that may not be evicted keeps it until its time is over.
		return "is being deleted"
	case w.keptByPeople(claim.Name):
		return ""
	case node == nil:
		return "has no Node"
	case !has(claim, karpv1.ConditionTypeInitialized):
		return "has not started"
	case claim.Annotations[v1alpha1.ReplacingAnnotation] != "":
		return "is marked"
	case tainted(node, v1alpha1.DisruptingTaintKey):
		return "is tainted"
	case len(slices.DeleteFunc(w.on(node.Name), karpenter.IsDaemon)) == 0 && !w.budgetTaken():
		return "holds no pod and stays"
	}
	return ""
}

// budgetTaken says that somebody keeps a machine that had started and is not ready any more: it counts in the disruption budget, as in Karpenter, and 10 % of few
// machines are one.
func (w *world) budgetTaken() bool {
	return slices.ContainsFunc(w.claims(), func(c *karpv1.NodeClaim) bool {
		node := w.node(c)
		return node != nil && w.keptByPeople(c.Name) && has(c, karpv1.ConditionTypeInitialized) && !isReady(node)
	})
}

// show adds to the trace what there is at the end.
func (w *world) show() {
	for _, claim := range w.claims() {
		w.tell("%s: %+v, conditions %v, annotations %v, deleted %v", claim.Name, w.hardware[claim.Name], conditions(claim), claim.Annotations, claim.DeletionTimestamp)
		if node := w.node(claim); node != nil {
			w.tell("  node taints %v annotations %v ready %t", node.Spec.Taints, node.Annotations, isReady(node))
		}
	}
	for _, pod := range w.pods() {
		w.tell("pod %s on %q, deleted %v, annotations %v", pod.Name, pod.Spec.NodeName, pod.DeletionTimestamp, pod.Annotations)
	}
	for _, c := range w.pool().Status.Conditions {
		w.tell("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	w.tell("desired %v budget %s", w.desired, w.pool().Spec.Disruption.Budgets[0].Nodes)
}

func conditions(claim *karpv1.NodeClaim) string {
	var all []string
	for _, c := range claim.Status.Conditions {
		all = append(all, c.Type)
	}
	return strings.Join(all, ",")
}
