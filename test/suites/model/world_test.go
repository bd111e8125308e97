// Package model checks that nothing gets stuck. It runs the real reconcilers on an in-memory API server with a simulated clock, between random moves of
// Karpenter, kubelets, the cloud, users and crashes. Then all faults end, time passes, and everything must settle. Mutants, each with one of Karve's past bugs,
// check that the model finds such bugs.
package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

const (
	poolName = "gpu"
	// csi is a startup taint of another component.
	csi = "ebs.csi.aws.com/agent-not-ready"
	// stock is a node without GPUs that has room for two pods without replicas.
	stock = "stock"
	// perGPU is the number of replicas per GPU. It is small so that few pods need several machines.
	perGPU = 2
	// most bounds how many pods a workload wants.
	most = 6
)

// world is a cluster and everything that acts in it.
type world struct {
	rng     *rand.Rand
	clock   *clocktesting.FakeClock
	store   *store
	catalog cloud.SameForAll
	karve   karve
	// acting is the reconciler that runs; "" if another component acts.
	acting  string
	failure string
	trace   []string
	made    int
	// desired is the number of pods of each workload.
	desired map[string]int
	// gangs are the groups of pods. last is what the last plan saw, and healed is when all faults ended.
	gangs  []*gang
	last   planned
	healed time.Time
	// hardware is the state of the machine of each claim.
	hardware map[string]*hardware
	// refusing, csiBroken, pluginBroken and networkBroken are the current faults. The last three break the machines that are launched meanwhile.
	refusing, csiBroken, pluginBroken, networkBroken bool
	// removal is the running reconcile of the disruption controller. idled are the claims of idle machines that it has deleted.
	removal removal
	idled   map[string]bool
	// habit is the weight of each move in this run. groups says that there are groups.
	habit  []int
	moves  []move
	groups bool
	// unready says that new pods do not become ready.
	unready bool
	// readAhead says that plans include pods which the scheduler has not tried yet, and pods are nominated. The scheduler tries some of them at a time.
	readAhead bool
	// watched tells Karve of a pod, before and after a change. A new pod was nil before.
	watched func(before, after *corev1.Pod)
}

// hardware is the state of a machine. Faults of a machine are permanent.
type hardware struct {
	// registers says that its Node registers, connects that its network comes up and it becomes ready, exposes that its replicas appear, and clears that the
	// other startup taint is removed.
	registers, connects, exposes, clears bool
	// dead says that its kubelet does not answer.
	dead bool
}

func newWorld(seed uint64) *world {
	clock := clocktesting.NewFakeClock(snapshottest.Now)
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 0)), clock: clock, store: newStore(clock), catalog: catalogOf(), desired: map[string]int{},
		hardware: map[string]*hardware{}, idled: map[string]bool{}, readAhead: seed%2 == 0, moves: moves, groups: seed/2%2 == 0,
	}
	w.store.created = func(o client.Object) {
		w.logf("%s creates %s for %s", w.acting, o.GetName(), o.GetAnnotations()[v1alpha1.PlannedPodsAnnotation])
	}
	w.store.evict, w.store.deleted = w.evict, w.deleted
	class := snapshottest.Class(poolName, perGPU)
	class.Spec.Consolidation.RestartCost = "0.001"
	w.store.put(&class)
	pool := snapshottest.Pool(poolName, poolName, snapshottest.Tainted(v1alpha1.ResourceGPUShared))
	pool.Spec.Template.Spec.StartupTaints = []corev1.Taint{{Key: csi, Effect: corev1.TaintEffectNoSchedule}}
	pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "10%"}}
	pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("0s")
	w.store.put(&pool)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: stock, UID: stock}}
	node.Status.Allocatable = snapshottest.Amounts("cpu", "3", "memory", "64Gi", "pods", "20", "ephemeral-storage", "10Gi")
	w.store.put(node)
	w.ready(node, corev1.ConditionTrue)
	w.begin()
	return w
}

func (w *world) now() time.Time { return w.clock.Now() }

func (w *world) logf(format string, args ...any) {
	w.trace = append(w.trace, w.now().Format("02 15:04:05 ")+fmt.Sprintf(format, args...))
}

func (w *world) claims() []*karpv1.NodeClaim { return all[*karpv1.NodeClaim](w.store) }
func (w *world) nodes() []*corev1.Node       { return all[*corev1.Node](w.store) }
func (w *world) pods() []*corev1.Pod         { return all[*corev1.Pod](w.store) }
func (w *world) pool() *karpv1.NodePool      { return find[*karpv1.NodePool](w.store, "", poolName) }

func (w *world) node(claim *karpv1.NodeClaim) *corev1.Node {
	if claim.Status.NodeName == "" {
		return nil
	}
	return find[*corev1.Node](w.store, "", claim.Status.NodeName)
}

func (w *world) on(node string) []*corev1.Pod {
	return slices.DeleteFunc(w.pods(), func(p *corev1.Pod) bool { return p.Spec.NodeName != node || node == "" })
}

// ready sets the Ready condition of a Node. A Node that is not ready gets the not-ready taint.
func (w *world) ready(node *corev1.Node, s corev1.ConditionStatus) {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady})
		i = len(node.Status.Conditions) - 1
	}
	c := &node.Status.Conditions[i]
	if s == corev1.ConditionTrue {
		c.LastHeartbeatTime = metav1.NewTime(w.now())
	}
	if c.Status != s {
		c.Status, c.LastTransitionTime = s, metav1.NewTime(w.now())
		w.untaint(node, corev1.TaintNodeNotReady)
		if s != corev1.ConditionTrue {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
		}
	}
	w.store.touch(node)
}

func (w *world) untaint(node *corev1.Node, key string) {
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
	w.store.touch(node)
}

func tainted(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// has reports whether a condition of a claim is True.
func has(claim *karpv1.NodeClaim, conditionType string) bool {
	return slices.ContainsFunc(claim.Status.Conditions, func(c status.Condition) bool {
		return c.Type == conditionType && c.Status == metav1.ConditionTrue
	})
}

func (w *world) setCondition(claim *karpv1.NodeClaim, conditionType string) {
	claim.Status.Conditions = append(claim.Status.Conditions, status.Condition{
		Type: conditionType, Status: metav1.ConditionTrue, Reason: conditionType, LastTransitionTime: metav1.NewTime(w.now().Truncate(time.Second)),
	})
	w.store.touch(claim)
}

// The pods of web request replicas, those of large replicas and much CPU, and those of squat little CPU and no replica. squat tolerates the pool's taint.
var workloads = map[string]func(*corev1.Pod){
	"web":   snapshottest.Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1"),
	"large": snapshottest.Asking("cpu", "3", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1"),
	"squat": snapshottest.Asking("cpu", "1200m", "memory", "1Gi"),
}

var workloadNames = []string{"web", "large", "squat"}

// replicate is the ReplicaSet controller.
func (w *world) replicate() {
	for _, name := range workloadNames {
		var alive []*corev1.Pod
		for _, pod := range w.pods() {
			if pod.Labels["app"] == name && pod.DeletionTimestamp.IsZero() {
				alive = append(alive, pod)
			}
		}
		for i := len(alive); i > w.desired[name]; i-- {
			w.store.remove(alive[i-1])
		}
		for i := len(alive); i < w.desired[name]; i++ {
			w.made++
			pod := snapshottest.Pod(fmt.Sprintf("%s-%d", name, w.made), workloads[name], snapshottest.WithLabels("app", name), snapshottest.OwnedBy("apps/v1", "ReplicaSet", name))
			pod.OwnerReferences[0].UID = types.UID(name)
			pod.CreationTimestamp = metav1.NewTime(w.now())
			if w.readAhead {
				pod.Status.Conditions = nil
			}
			w.store.put(&pod)
			w.watched(nil, &pod)
		}
	}
	for _, g := range w.gangs {
		for i := len(w.membersOf(g)); i < g.wanted; i++ {
			w.made++
			pod := g.pod(fmt.Sprintf("%s-%d", g.name, w.made))
			pod.CreationTimestamp = metav1.NewTime(w.now())
			if w.readAhead || g.together() {
				pod.Status.Conditions = nil
			}
			w.store.put(&pod)
			w.watched(nil, &pod)
		}
	}
	w.budgets()
}

// budgets is the PodDisruptionBudget controller.
func (w *world) budgets() {
	for _, pdb := range all[*policyv1.PodDisruptionBudget](w.store) {
		healthy := 0
		for _, pod := range w.pods() {
			if w.covers(pdb, pod) && pod.DeletionTimestamp.IsZero() && pod.Status.Phase == corev1.PodRunning && podReady(pod) {
				healthy++
			}
		}
		allowed := int32(max(0, healthy-w.desired[pdb.Name]+pdb.Spec.MaxUnavailable.IntValue()))
		if pdb.Status.DisruptionsAllowed != allowed {
			pdb.Status.DisruptionsAllowed = allowed
			w.store.touch(pdb)
		}
	}
}

func (w *world) covers(pdb *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	return pod.Labels["app"] != "" && pod.Labels["app"] == pdb.Spec.Selector.MatchLabels["app"]
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// evict is the API server's eviction.
func (w *world) evict(pod *corev1.Pod) error {
	if !pod.DeletionTimestamp.IsZero() {
		return nil
	}
	w.budgets()
	for _, pdb := range all[*policyv1.PodDisruptionBudget](w.store) {
		if !w.covers(pdb, pod) {
			continue
		}
		if pdb.Status.DisruptionsAllowed < 1 {
			return errBudget
		}
		pdb.Status.DisruptionsAllowed--
	}
	w.store.remove(pod)
	return nil
}

// schedule is the scheduler. It says of pods without a node that they have none. It binds pending pods in the order of their names to the nominated node or to another node with room. It uses nodes with the
// surplus taint last.
func (w *world) schedule() {
	w.scheduleGangs()
	for _, pod := range w.pods() {
		if g := w.gangOf(pod); g != nil && g.together() {
			continue
		}
		if pod.Spec.NodeName != "" || !pod.DeletionTimestamp.IsZero() || w.readAhead && w.rng.IntN(2) == 0 {
			continue
		}
		before := pod.DeepCopy()
		node := w.choose(pod)
		if node == nil {
			if len(pod.Status.Conditions) == 0 {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
				w.store.touch(pod)
				w.watched(before, pod)
			}
			continue
		}
		pod.Spec.NodeName = node.Name
		w.started(pod)
		w.watched(before, pod)
	}
}

// started makes a bound pod run.
func (w *world) started(pod *corev1.Pod) {
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: w.now()}}
	w.store.touch(pod)
}

// choose returns a node for a pending pod; nil if none has room.
func (w *world) choose(pod *corev1.Pod) *corev1.Node {
	var fits []*corev1.Node
	for _, node := range w.nodes() {
		if w.admits(node, pod) {
			fits = append(fits, node)
		}
	}
	if len(fits) == 0 {
		return nil
	}
	node := fits[w.rng.IntN(len(fits))]
	for _, n := range fits {
		if tainted(node, v1alpha1.SurplusTaintKey) && !tainted(n, v1alpha1.SurplusTaintKey) || n.Name == pod.Status.NominatedNodeName {
			node = n
		}
	}
	return node
}

// admits reports whether the scheduler would bind the pod to the node.
func (w *world) admits(node *corev1.Node, pod *corev1.Pod) bool {
	if node.Spec.Unschedulable || !isReady(node) || !node.DeletionTimestamp.IsZero() {
		return false
	}
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !slices.ContainsFunc(pod.Spec.Tolerations, func(o corev1.Toleration) bool { return o.Key == t.Key || o.Key == "" }) {
			return false
		}
	}
	return w.holds(node, w.on(node.Name), pod)
}

// holds reports whether a node has room for a pod beside the pods there. As in the scheduler, only the resources that the pod requests count.
func (w *world) holds(node *corev1.Node, there []*corev1.Pod, pod *corev1.Pod) bool {
	for name, asks := range pod.Spec.Containers[0].Resources.Requests {
		q := node.Status.Allocatable[name]
		left := q.MilliValue() - asks.MilliValue()
		for _, other := range there {
			taken := other.Spec.Containers[0].Resources.Requests[name]
			left -= taken.MilliValue()
		}
		if left < 0 {
			return false
		}
	}
	return true
}

// kubelets runs the kubelets of all machines: they report, terminate pods and start pods. It also runs the device plugin and the CSI driver.
func (w *world) kubelets() {
	for _, node := range w.nodes() {
		h := w.hardware[node.Name]
		if h == nil {
			h = &hardware{}
		}
		if h.dead {
			w.ready(node, corev1.ConditionUnknown)
			w.timeOut(node)
			continue
		}
		if node.Name != stock && !h.connects {
			w.ready(node, corev1.ConditionFalse)
			continue
		}
		w.ready(node, corev1.ConditionTrue)
		for _, pod := range w.on(node.Name) {
			switch {
			case !pod.DeletionTimestamp.IsZero():
				w.store.drop(pod)
			case !podReady(pod) && !w.unready:
				pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
				w.store.touch(pod)
			}
		}
		if node.Name == stock {
			continue
		}
		if h.exposes {
			node.Status.Allocatable[v1alpha1.ResourceGPUShared] = *resource.NewQuantity(perGPU, resource.DecimalSI)
		}
		if h.clears {
			w.untaint(node, csi)
		}
		w.store.touch(node)
	}
	for _, pod := range w.pods() {
		if pod.Spec.NodeName != "" && find[*corev1.Node](w.store, "", pod.Spec.NodeName) == nil || pod.Spec.NodeName == "" && !pod.DeletionTimestamp.IsZero() {
			w.store.drop(pod)
		}
	}
}

// timeOut deletes the pods of a Node that has not been ready for five minutes.
func (w *world) timeOut(node *corev1.Node) {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && w.now().Sub(c.LastTransitionTime.Time) >= 5*time.Minute {
			for _, pod := range w.on(node.Name) {
				w.store.remove(pod)
			}
		}
	}
}
