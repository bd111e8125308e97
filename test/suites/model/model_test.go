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
	"karve.sh/karve/pkg/snapshot/facts"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	debug.SetGCPercent(800) // Otherwise garbage collection takes a fifth of the time, and the live heap is small.
	os.Exit(m.Run())
}

const (
	// steps is how many steps a run takes before all faults end.
	steps = 200
	// rounds bounds the turns after that, and longest bounds their simulated time: replacements of unhealthy machines back off for up to 12 hours.
	rounds  = 600
	longest = 72 * time.Hour
)

// KARVE_MODEL_RUNS is the number of runs, and KARVE_MODEL_SEED the first seed.
func TestNoObjectGetsStuck(t *testing.T) {
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

// parallel is how many runs are in flight at once.
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

// run returns what went wrong in a run, "" for nothing, and its trace.
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

// heal ends the faults of the cloud, the network, the CSI driver and the device plugin. Broken machines stay broken, and users' changes stay.
func (w *world) heal() {
	w.logf("all are well")
	w.repairAll()
	if pool := w.pool(); pool.Spec.Disruption.Budgets[0].Nodes == "0" {
		pool.Spec.Disruption.Budgets[0].Nodes = "10%"
		w.store.touch(pool)
	}
	w.healed = w.now()
	for _, g := range w.gangs {
		g.wanted = g.size
		w.putPodGroup(g)
	}
	if len(w.pool().Spec.Limits) > 0 && w.rng.IntN(2) == 0 {
		clear(w.desired) // Only groups wait for each other's room, and not those that start pod by pod: each may have a part of the other's.
		for _, g := range slices.Clone(w.gangs) {
			if !g.together() {
				w.groupGoes(g)
			}
		}
	} else {
		w.limit(0)
	}
}

// repairAll ends the faults that new machines and pods get.
func (w *world) repairAll() {
	w.refusing, w.csiBroken, w.pluginBroken, w.networkBroken, w.unready = false, false, false, false, false
}

// settles runs turns until nothing is left to do.
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
		if why := w.halfStarted(); why != "" {
			w.failf("half a group has started: %s", why)
			w.show()
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

// idleWrites bounds the writes of a turn in which nothing happens; kubelets report in it.
func (w *world) idleWrites() int { return 4 * len(w.nodes()) }

// turn runs every component once.
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
	w.finish()
	w.userActs()
}

// userActs does what the condition asks for: it deletes the claims of unhealthy machines if there are too many of them.
func (w *world) userActs() {
	if c := facts.Condition(w.pool().Status.Conditions, v1alpha1.ConditionNodesHealthy); !c.IsFalse() {
		return
	}
	for _, claim := range w.claims() {
		if h := w.hardware[claim.Name]; h != nil && (h.dead || !h.exposes) && claim.DeletionTimestamp.IsZero() && has(claim, karpv1.ConditionTypeInitialized) {
			w.logf("as the condition asks, somebody deletes %s", claim.Name)
			w.store.remove(claim)
		}
	}
}

// unsettled says what is left to do; "" if nothing is.
func (w *world) unsettled() string {
	for _, pod := range w.pods() {
		if pod.Spec.NodeName == "" && w.needed(pod) {
			return "pod " + pod.Name + " waits"
		}
		if h := w.hardware[pod.Spec.NodeName]; h != nil && h.dead && !w.keptByUser(pod.Spec.NodeName) {
			return "pod " + pod.Name + " is on the dead " + pod.Spec.NodeName
		}
	}
	for _, claim := range w.claims() {
		if why := w.undecided(claim); why != "" {
			return claim.Name + " " + why
		}
	}
	if c := facts.Condition(w.pool().Status.Conditions, v1alpha1.ConditionReplicasHealthy); !c.IsTrue() {
		return "the breaker is not closed"
	}
	return ""
}

// needed reports whether a pending pod must be placed. Pods without replicas need room on the stock node. If the pool has a limit, a group needs no more places than its minimum.
func (w *world) needed(pod *corev1.Pod) bool {
	if g := w.gangOf(pod); g != nil {
		need, _ := w.lacks(g)
		return w.fits(g) && (need > 0 || len(w.pool().Spec.Limits) == 0)
	}
	return pod.Labels["app"] != "squat" || w.admits(find[*corev1.Node](w.store, "", stock), pod)
}

// keptByUser reports whether a user has asked to keep a machine as it is.
func (w *world) keptByUser(node string) bool {
	n := find[*corev1.Node](w.store, "", node)
	return n != nil && n.Annotations[repair.DoNotRepair] == "true"
}

// undecided says what is left to do about a machine; "" if nothing is.
func (w *world) undecided(claim *karpv1.NodeClaim) string {
	node := w.node(claim)
	switch {
	case !claim.DeletionTimestamp.IsZero():
		// A pod that may not be evicted blocks the drain until its grace period is over.
		return "is being deleted"
	case w.keptByUser(claim.Name):
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

// budgetTaken reports whether a user keeps an initialized machine that is no longer ready. As in Karpenter, it counts against the disruption budget, and 10 %
// of a few machines is one.
func (w *world) budgetTaken() bool {
	return slices.ContainsFunc(w.claims(), func(c *karpv1.NodeClaim) bool {
		node := w.node(c)
		return node != nil && w.keptByUser(c.Name) && has(c, karpv1.ConditionTypeInitialized) && !isReady(node)
	})
}

// show adds the final state to the trace.
func (w *world) show() {
	for _, claim := range w.claims() {
		w.logf("%s: %+v, conditions %v, annotations %v, deleted %v", claim.Name, w.hardware[claim.Name], conditions(claim), claim.Annotations, claim.DeletionTimestamp)
		if node := w.node(claim); node != nil {
			w.logf("  node taints %v annotations %v ready %t", node.Spec.Taints, node.Annotations, isReady(node))
		}
	}
	for _, pod := range w.pods() {
		w.logf("pod %s on %q, deleted %v, annotations %v", pod.Name, pod.Spec.NodeName, pod.DeletionTimestamp, pod.Annotations)
	}
	for _, c := range w.pool().Status.Conditions {
		w.logf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	w.logf("desired %v budget %s", w.desired, w.pool().Spec.Disruption.Budgets[0].Nodes)
}

func conditions(claim *karpv1.NodeClaim) string {
	var all []string
	for _, c := range claim.Status.Conditions {
		all = append(all, c.Type)
	}
	return strings.Join(all, ",")
}
