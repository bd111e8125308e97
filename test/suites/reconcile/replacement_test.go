package reconcile

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/disruption"
	"karve.sh/karve/pkg/controllers/share"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// inUse creates a machine of the pool's current template, with pods of a ReplicaSet on it.
func (w *world) inUse(name string, pool *karpv1.NodePool, pods int) (*karpv1.NodeClaim, *corev1.Node) {
	w.t.Helper()
	claim := w.claim(name, pool, snapshottest.Initialized(w.clock.Now()), func(claim *karpv1.NodeClaim) {
		claim.Annotations[karpv1.NodePoolHashAnnotationKey] = pool.Hash()
		claim.Annotations[karpv1.NodePoolHashVersionAnnotationKey] = karpv1.NodePoolHashVersion
	})
	node := w.node(claim, 10)
	for i := range pods {
		w.on(node, fmt.Sprintf("%s-web-%d", name, i), web)
	}
	return claim, node
}

func web(p *corev1.Pod) {
	p.Labels = map[string]string{"app": "web"}
	snapshottest.OwnedBy("apps/v1", "ReplicaSet", "web")(p)
}

// drifts changes the pool's template and runs the controller until it has confirmed the drift.
func (w *world) drifts(pool *karpv1.NodePool, controller *disruption.Controller) {
	w.t.Helper()
	w.read(pool)
	snapshottest.Labeled(map[string]string{"generation": "2"})(pool)
	w.update(pool)
	w.reconciles(controller, "")
	w.clock.Step(settle)
	w.reconciles(controller, "")
}

// initializes initializes the claim's machine, with its Node and replicas.
func (w *world) initializes(claim *karpv1.NodeClaim) {
	w.t.Helper()
	snapshottest.Initialized(w.clock.Now())(claim)
	w.updateStatus(claim)
	w.node(claim, 10)
}

// replacement returns the only claim that is not one of the named ones.
func (w *world) replacement(others ...string) *karpv1.NodeClaim {
	w.t.Helper()
	known := map[string]bool{}
	for _, name := range others {
		known[name] = true
	}
	claims := w.wantClaims(len(others) + 1)
	for i := range claims {
		if !known[claims[i].Name] {
			return &claims[i]
		}
	}
	w.t.Fatalf("there is no other NodeClaim than %v", others)
	return nil
}

func (w *world) wantReplacing(claim *karpv1.NodeClaim, want string) {
	w.t.Helper()
	if w.read(claim); claim.Annotations[v1alpha1.ReplacingAnnotation] != want {
		w.t.Fatalf("%s is being replaced for %q, want %q", claim.Name, claim.Annotations[v1alpha1.ReplacingAnnotation], want)
	}
}

func TestDriftedMachineIsRemovedOncePodsFitElsewhere(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("swap")
	old, node := w.inUse("swap-old", pool, 3)
	controller := w.disruption()
	w.reconciles(controller, "")
	w.wantReplacing(old, "")
	w.reconciles(w.provisioning(), "")
	w.wantClaims(1)

	w.drifts(pool, controller)
	w.wantReplacing(old, "NodePoolDrifted")
	w.wantEvents(1, "Normal Replacing spec.template of NodePool swap has changed since it was launched; its pods get a new place first")
	w.reconciles(w.provisioning(), "")
	next := w.replacement("swap-old")
	if got := next.Annotations[v1alpha1.ReplacesAnnotation]; got != node.Name || next.Labels["generation"] != "2" {
		t.Errorf("the new machine replaces %q and has labels %v", got, next.Labels)
	}
	// Restarted controllers see the same state and launch nothing more. The pods keep running until their replacement machine is ready.
	for range 2 {
		w.restart()
		controller = w.disruption()
		w.reconciles(w.provisioning(), "")
		w.reconciles(controller, "")
		w.clock.Step(settle)
		w.reconciles(controller, "")
		w.wantClaims(2)
		w.wantMarks(node, false, false)
		w.wantReplacing(old, "NodePoolDrifted")
	}

	w.initializes(next)
	w.reconciles(controller, "")
	w.wantMarks(node, false, true)
	w.watched(controller, old)
	w.wantEvents(1, "Normal Replaced node swap-old is given back, with a new place for its 3 pods")

	// Karpenter evicts one pod after another. Each is replaced under another name and placed on the new machine.
	for i := range 3 {
		w.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("swap-old-web-%d", i)}}, noGrace)
		w.pods(fmt.Sprintf("moved-%d", i), 1, web)
		w.reconciles(w.provisioning(), "")
		w.wantClaims(2)
	}
	w.reconciles(controller, "")
	if w.read(next); going(next) || next.Annotations[v1alpha1.ReplacingAnnotation] != "" {
		t.Error("the new machine goes too")
	}
}

func TestFreeCapacityAvoidsReplacement(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("room", budget("1"))
	old, _ := w.inUse("room-1", pool, 3)
	other, _ := w.inUse("room-2", pool, 3)
	controller := w.disruption()
	w.drifts(pool, controller)
	w.wantReplacing(old, "NodePoolDrifted")
	w.wantReplacing(other, "")
	w.wantEvents(1, "the disruption budgets of NodePool room allow 1")
	w.reconciles(w.provisioning(), "")
	w.reconciles(controller, "")
	w.clock.Step(settle)
	w.reconciles(controller, "")
	w.wantClaims(2)
	w.wantGoing(old, true)
	w.wantReplacing(other, "")
}

func TestFailedReplacementKeepsMachine(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("never-comes")
	old, node := w.inUse("never-comes-1", pool, 3)
	controller := w.disruption()
	w.drifts(pool, controller)
	w.events()
	w.clock.Step(30 * time.Minute)
	w.reconciles(controller, "")
	w.wantEvents(1, "Warning ReplacementFailed stays, since its pods got no new place within 30m0s")
	w.wantReplacing(old, "")
	w.wantMarks(node, false, false)
	if n := old.Annotations[v1alpha1.ReplacementFailuresAnnotation]; n != "1" {
		t.Errorf("%q failures are noted, want 1", n)
	}
	w.reconciles(controller, "")
	w.reconciles(controller, "")
	w.wantEvents(1, "DriftedButKept")
	w.wantReplacing(old, "")
	w.clock.Step(10 * time.Minute)
	w.reconciles(controller, "")
	w.wantReplacing(old, "NodePoolDrifted")
}

func TestPoolAtLimitKeepsDriftedMachine(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("full", func(np *karpv1.NodePool) { np.Spec.Limits = karpv1.Limits(snapshottest.Amounts("nodes", "1")) })
	old, _ := w.inUse("full-1", pool, 3)
	controller := w.disruption()
	w.drifts(pool, controller)
	w.wantReplacing(old, "")
	w.wantEvents(1, "Normal DriftedButKept")
	w.reconciles(w.provisioning(), "")
	w.wantClaims(1)
}

func TestProtectedPodsKeepDriftedMachine(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("guarded")
	old, node := w.inUse("guarded-1", pool, 2)
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}
	w.create(pdb)
	second := pdb.DeepCopy()
	second.Name = "web-too"
	w.create(second)
	controller := w.disruption()
	w.drifts(pool, controller)
	w.wantEvents(1, "PodDisruptionBudget default/web and default/web-too")
	w.wantReplacing(old, "")

	w.delete(second)
	w.reconciles(controller, "")
	w.wantEvents(1, "may not be evicted: PodDisruptionBudget default/web")
	pdb.Status.DisruptionsAllowed = 1
	w.updateStatus(pdb)
	careful := w.on(node, "careful", func(p *corev1.Pod) { p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"} })
	w.reconciles(controller, "")
	w.wantEvents(1, "pod default/careful carries karpenter.sh/do-not-disrupt")
	w.wantReplacing(old, "")
	w.delete(careful, noGrace)
	w.reconciles(controller, "")
	w.wantReplacing(old, "NodePoolDrifted")

	// The new machine is ready, but the PodDisruptionBudget allows no eviction: the old machine keeps its pods and its mark.
	w.reconciles(w.provisioning(), "")
	w.initializes(w.replacement("guarded-1"))
	pdb.Status.DisruptionsAllowed = 0
	w.updateStatus(pdb)
	w.reconciles(controller, "")
	w.wantMarks(node, false, false)
	w.wantReplacing(old, "NodePoolDrifted")
	pdb.Status.DisruptionsAllowed = 1
	w.updateStatus(pdb)
	w.reconciles(controller, "")
	w.wantMarks(node, false, true)
}

func TestPodSeenOnlyByLastReadStopsReplacement(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("late")
	old, node := w.inUse("late-1", pool, 1)
	controller := w.disruption()
	w.drifts(pool, controller)
	w.reconciles(w.provisioning(), "")
	w.initializes(w.replacement("late-1"))
	w.reconciles(controller, "")
	w.wantMarks(node, false, true)
	w.clock.Step(settle)
	w.gatherer.Cached = cacheLag{w.WithWatch, "tolerant"}
	w.on(node, "tolerant", web)
	w.reconciles(controller, "")
	w.wantGoing(old, false)
	w.wantMarks(node, false, false)
	w.wantReplacing(old, "NodePoolDrifted")
	w.gatherer.Cached = w.WithWatch
	w.reconciles(controller, "")
	w.clock.Step(settle)
	w.reconciles(controller, "")
	w.wantGoing(old, true)
}

func TestRevertedDriftStopsReplacement(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("back")
	old, _ := w.inUse("back-1", pool, 1)
	controller := w.disruption()
	w.drifts(pool, controller)
	w.wantReplacing(old, "NodePoolDrifted")
	delete(pool.Spec.Template.Labels, "generation")
	w.update(pool)
	w.reconciles(controller, "")
	w.wantReplacing(old, "")
	if n := w.counted("karve_nodes_replacements_total"); n != 2 {
		t.Errorf("%v steps of replacements were counted, want one begun and one stopped", n)
	}
}

// The cloud reclaims the machine in two minutes, so its pods are planned for while they still run.
func TestDeletedMachineIsReplacedBeforeItsPodsArePending(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("taken")
	old, _ := w.inUse("taken-1", pool, 1)
	w.delete(old)
	provisioning := w.provisioning()
	w.reconciles(provisioning, "")
	w.wantEvents(0, "Nominated")
	next := w.replacement("taken-1")
	w.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "taken-1-web-0"}}, noGrace)
	w.pods("came", 1, web)
	w.reconciles(provisioning, "")
	w.wantEvents(1, "Nominated waits for "+next.Name)
	w.wantClaims(2)
	w.reconciles(w.disruption(), "")
	w.wantClaims(2)
}

func TestExpiringMachineIsReplacedBeforeExpiry(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("expires")
	life := 24 * time.Hour
	claim := w.claim("expires-1", pool, snapshottest.Initialized(w.clock.Now()), func(claim *karpv1.NodeClaim) {
		claim.Spec.ExpireAfter = karpv1.NillableDuration{Duration: &life}
	})
	node := w.node(claim, 10)
	w.on(node, "web", web)
	controller := w.disruption()
	w.clock.SetTime(claim.CreationTimestamp.Add(life - 16*time.Minute))
	w.reconciles(controller, "")
	w.wantReplacing(claim, "")
	w.clock.Step(time.Minute)
	w.reconciles(controller, "")
	w.wantReplacing(claim, "Expiring")
	w.reconciles(w.provisioning(), "")
	w.initializes(w.replacement("expires-1"))
	w.reconciles(controller, "")
	w.wantMarks(node, false, false) // Karpenter does the rest.
}

func TestChangedReplicasAreWrittenToNode(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("shares")
	claim, node := w.inUse("shares-1", pool, 1)
	starting := w.claim("shares-2", pool, snapshottest.Registered(w.clock.Now()))
	w.node(starting, 0)
	controller := w.disruption()
	w.reconciles(controller, "")
	w.events()
	class := &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "shares"}}
	w.read(class)
	class.Spec.Sharing.Replicas = new(int32(20))
	w.update(class)
	for range 2 {
		w.reconciles(controller, "")
	}
	w.read(claim)
	w.read(node)
	w.read(starting)
	for what, o := range map[string]metav1.Object{"NodeClaim": claim, "Node": node} {
		if got := o.GetAnnotations()[nodecontract.ReplicasPerGPUAnnotation]; got != "20" {
			t.Errorf("the %s says %s replicas, want 20", what, got)
		}
	}
	if got := starting.Annotations[nodecontract.ReplicasPerGPUAnnotation]; got != "10" {
		t.Errorf("a machine that has not started is to have %s replicas, want the 10 that it was promised with", got)
	}
	w.wantEvents(1, "Normal ReplicasChanged each GPU is to have 20 nvidia.com/gpu.shared instead of 10")
	w.wantReplacing(claim, "")
	// A controller that died between the two writes completes them after a restart.
	node.Annotations[nodecontract.ReplicasPerGPUAnnotation] = "10"
	w.update(node)
	w.reconciles(w.disruption(), "")
	if w.read(node); node.Annotations[nodecontract.ReplicasPerGPUAnnotation] != "20" {
		t.Error("the Node still promises what the NodeClaim does not")
	}
}

func TestChangeSeenByTwoControllersIsReportedOnce(t *testing.T) {
	w := newWorld(t)
	class := w.class("shares")
	claim, node := w.machine("shares-1", w.pool("shares"))
	class.Spec.Sharing.Replicas = new(int32(8))
	w.update(class)
	cluster, err := w.gatherer.Cluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	view := snapshot.Build(cluster)
	for range 2 {
		for _, change := range share.Changes(&view, nil) {
			if err := share.Write(t.Context(), w.WithWatch, w.recorder, change, w.clock.Now()); err != nil {
				t.Error(err)
			}
		}
	}
	w.wantEvents(1, "ReplicasChanged each GPU is to have 8 nvidia.com/gpu.shared instead of 10")
	w.read(claim)
	w.read(node)
	for what, o := range map[string]metav1.Object{"NodeClaim": claim, "Node": node} {
		if got := o.GetAnnotations()[nodecontract.ReplicasPerGPUAnnotation]; got != "8" {
			t.Errorf("the %s says %s replicas, want 8", what, got)
		}
	}
}

func TestReplicasWithinRangeFollowPods(t *testing.T) {
	w := newWorld(t)
	w.class("range", func(c *v1alpha1.GPUNodeClass) { c.Spec.Sharing.MaxReplicas = new(int32(20)) })
	claim, node := w.machine("range-1", w.pool("range"))
	small := func(p *corev1.Pod) {
		snapshottest.Asking("cpu", "10m", "memory", "16Mi", v1alpha1.ResourceGPUShared, "1")(p)
		snapshottest.GPUMemory("500Mi")(p)
	}
	for i := range 10 {
		w.on(node, fmt.Sprintf("runs-%d", i), small)
	}
	says := func(want string) {
		t.Helper()
		w.read(claim)
		w.read(node)
		for what, o := range map[string]metav1.Object{"NodeClaim": claim, "Node": node} {
			if got := o.GetAnnotations()[nodecontract.ReplicasPerGPUAnnotation]; got != want {
				t.Errorf("the %s says %s replicas, want %s", what, got, want)
			}
		}
	}
	w.pods("waits", 3, small)
	w.reconciles(w.provisioning(), "")
	says("13")
	w.wantEvents(1, "Normal ReplicasChanged each GPU is to have 13 nvidia.com/gpu.shared instead of 10, since waiting pods fit by the device memory that they state")
	// Runs both controllers again: nothing is launched and nothing is removed while the agent follows.
	w.reconciles(w.provisioning(), "")
	w.reconciles(w.disruption(), "")
	says("13")
	w.wantClaims(1)

	w.pods("silent", 1, snapshottest.Asking("cpu", "10m", "memory", "16Mi", v1alpha1.ResourceGPUShared, "1"))
	w.reconciles(w.disruption(), "")
	says("10")
}
