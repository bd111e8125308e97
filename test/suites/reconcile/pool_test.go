package reconcile

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/pool"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

func (w *world) poolController() *pool.Controller { return w.poolControllerWith(w.WithWatch) }

func (w *world) poolControllerWith(c client.Client) *pool.Controller {
	return &pool.Controller{Config: pool.Config{
		Client: c, Gatherer: w.gatherer, Planner: w.planner, Metrics: w.metrics, Recorder: w.recorder, Clock: w.clock, Tolerations: tolerations,
	}}
}

// reconcilesPools lets the controller's interval pass and runs it.
func (w *world) reconcilesPools(controller *pool.Controller) {
	w.t.Helper()
	w.clock.Step(time.Second)
	w.reconciles(controller, "")
}

func (w *world) wantCondition(np *karpv1.NodePool, conditionType, want, reason string) status.Condition {
	w.t.Helper()
	w.read(np)
	c := poolCondition(np, conditionType)
	if string(c.Status) != want || reason != "" && c.Reason != reason {
		w.t.Errorf("%s of %s is %s %s (%s), want %s %s", conditionType, np.Name, c.Status, c.Reason, c.Message, want, reason)
	}
	return c
}

func TestPoolReportsResourcesAndReadiness(t *testing.T) {
	w := newWorld(t)
	np := w.shared("status")
	_, node := w.machine("status-1", np)
	w.claim("status-2", np)
	w.on(node, "web")
	controller := w.poolController()
	w.reconciles(controller, "")
	for _, conditionType := range []string{
		karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady, v1alpha1.ConditionReplicasHealthy, v1alpha1.ConditionLaunchHealthy, v1alpha1.ConditionNodesHealthy, status.ConditionReady,
	} {
		if c := w.wantCondition(np, conditionType, "True", ""); c.ObservedGeneration != np.Generation {
			t.Errorf("%s was observed at %d, want %d", conditionType, c.ObservedGeneration, np.Generation)
		}
	}
	for name, want := range map[string]string{"cpu": "8", "memory": "32Gi", "nodes": "2", "nvidia.com/gpu": "2", "nvidia.com/gpu.shared": "20"} {
		if got := np.Status.Resources[corev1.ResourceName(name)]; got.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%s is %s, want %s", name, got.String(), want)
		}
	}
	if np.Status.Nodes == nil || *np.Status.Nodes != 2 {
		t.Errorf("nodes is %v, want 2", np.Status.Nodes)
	}
	class := &v1alpha1.GPUNodeClass{}
	class.Name = "status"
	w.read(class)
	if s := class.Status; s.Nodes != 2 || s.GPUs != 2 || s.Replicas != 20 || s.ReplicasInUse != 1 || s.USDPerHour != "1.052" {
		t.Errorf("the class says %+v", s)
	}
	if n := w.counted("karve_pool_price_usd_per_hour"); n != 1.052 {
		t.Errorf("the price is %v", n)
	}
	// The node that has registered holds one pod of ten.
	for name, want := range map[string]float64{"karve_node_usd_per_hour": 0.526, "karve_node_idle_usd_per_hour": 0.4734, "karve_pod_usd_per_hour": 0.0526} {
		if got := w.counted(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	w.wantEvents(0, "")

	// Nothing has changed, so nothing is written.
	before, classBefore := np.ResourceVersion, class.ResourceVersion
	w.reconcilesPools(controller)
	w.read(np)
	w.read(class)
	if np.ResourceVersion != before || class.ResourceVersion != classBefore {
		t.Error("a status was written although nothing had changed")
	}
}

func TestPoolReportsMissingClasses(t *testing.T) {
	w := newWorld(t)
	missing := w.pool("missing")
	w.class("no-inner", func(c *v1alpha1.GPUNodeClass) { c.Spec.NodeClassRef.Name = "none" })
	noInner := w.pool("no-inner")
	w.class("no-kind", func(c *v1alpha1.GPUNodeClass) {
		c.Spec.NodeClassRef = v1alpha1.NodeClassReference{Group: "example.com", Kind: "NodeClass", Name: "gpu"}
	})
	noKind := w.pool("no-kind")
	inner := w.inner("changed", nil)
	w.create(inner)
	inner.Object["status"] = map[string]any{"conditions": []any{condition("True", inner.GetGeneration()+1)}}
	w.updateStatus(inner)
	w.class("changed", func(c *v1alpha1.GPUNodeClass) { c.Spec.NodeClassRef.Name = "changed" })
	changed := w.pool("changed")

	controller := w.poolController()
	w.reconciles(controller, "")
	for np, reason := range map[*karpv1.NodePool]string{
		missing: "GPUNodeClassNotFound", noInner: "NodeClassNotFound", noKind: "NodeClassKindUnknown", changed: "NodeClassNotObserved",
	} {
		w.wantCondition(np, karpv1.ConditionTypeNodeClassReady, "False", reason)
		w.wantCondition(np, status.ConditionReady, "False", "")
	}
	w.wantCondition(missing, karpv1.ConditionTypeValidationSucceeded, "Unknown", "GPUNodeClassNotFound")
	w.wantEvents(4, "Warning")
	w.reconcilesPools(controller)
	w.wantEvents(0, "")

	// Once the class exists, the pool becomes ready.
	w.class("missing")
	w.reconcilesPools(controller)
	w.wantCondition(missing, status.ConditionReady, "True", "")
}

func TestPoolWithoutTaintIsRefused(t *testing.T) {
	w := newWorld(t)
	np := w.shared("squat")
	np.Spec.Template.Spec.Taints = nil
	w.update(np)
	w.pods("web", 1)
	w.reconciles(w.poolController(), "")
	w.wantCondition(np, karpv1.ConditionTypeValidationSucceeded, "False", "NoTaint")
	w.wantEvents(1, "Warning NoTaint")
	w.reconciles(w.provisioning(), "")
	w.wantClaims(0)
}

func TestPoolReportsRefusedLaunchesUntilRetry(t *testing.T) {
	w := newWorld(t)
	np := w.shared("told")
	w.refuse("told", "g4dn.xlarge", "us-east-1a")
	controller := w.poolController()
	w.reconciles(controller, "")
	if c := w.wantCondition(np, v1alpha1.ConditionLaunchHealthy, "False", "LaunchRefused"); !strings.Contains(c.Message, "no capacity") {
		t.Errorf("the message is %q", c.Message)
	}
	w.wantCondition(np, status.ConditionReady, "True", "")
	if all := w.refusals("told"); len(all) != 1 || all[0].InstanceType != "g4dn.xlarge" || all[0].Zone != "us-east-1a" || all[0].Failures != 1 {
		t.Errorf("the status holds %+v", all)
	}
	w.clock.Step(4 * time.Minute)
	w.reconciles(controller, "")
	w.wantCondition(np, v1alpha1.ConditionLaunchHealthy, "True", "")
	w.clock.Step(time.Hour)
	w.reconciles(controller, "")
	if all := w.refusals("told"); len(all) != 0 {
		t.Errorf("the status still holds %v", all)
	}
}

// The whole life of a pool with a broken device plugin: its launches stop, the broken machine is removed, a probe with one machine fails, another probe
// succeeds, and the pool recovers.
func TestBrokenPluginClosesPoolUntilProbeSucceeds(t *testing.T) {
	w := newWorld(t)
	np := w.shared("plugin", snapshottest.Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge"))
	w.pods("web", 25)
	controller, provisioning, readiness := w.poolController(), w.provisioning(), w.readiness()
	w.reconciles(controller, "")
	w.reconciles(provisioning, "")
	for _, claim := range w.wantClaims(3) {
		w.starts(&claim, 0)
	}
	w.clock.Step(replicasTimeout)
	w.reconciles(controller, "")
	w.wantCondition(np, v1alpha1.ConditionReplicasHealthy, "False", "ReplicasMissing")
	w.wantEvents(1, "Warning ReplicasMissing")
	for _, claim := range w.wantClaims(3) {
		w.reconciles(readiness, claim.Name)
		w.wantDeleted(&claim)
	}
	w.reconciles(provisioning, "")
	w.wantClaims(0)

	// The pool is probed with exactly one machine, which is broken too.
	w.clock.Step(10 * time.Minute)
	w.reconciles(controller, "")
	w.wantCondition(np, v1alpha1.ConditionReplicasHealthy, "Unknown", "Probing")
	for range 2 {
		w.reconciles(provisioning, "")
		w.wantClaims(1)
	}
	bad := w.claims()[0]
	w.starts(&bad, 4)
	w.reconciles(provisioning, "")
	w.wantClaims(1)
	w.clock.Step(replicasTimeout + time.Second)
	w.reconciles(controller, "")
	w.wantCondition(np, v1alpha1.ConditionReplicasHealthy, "False", "ReplicasMissing")
	w.reconciles(readiness, bad.Name)
	w.wantDeleted(&bad)
	w.reconciles(provisioning, "")
	w.wantClaims(0)

	// The next probe works. The API server sets the creation time of its claim by its own clock, which does not follow the test's clock. So the test sets the
	// beginning of the probe to that time.
	w.clock.Step(10 * time.Minute)
	w.reconciles(controller, "")
	w.reconciles(provisioning, "")
	good := w.wantClaims(1)[0]
	w.read(np)
	for i := range np.Status.Conditions {
		if c := &np.Status.Conditions[i]; c.Type == v1alpha1.ConditionReplicasHealthy {
			c.LastTransitionTime = good.CreationTimestamp
		}
	}
	w.updateStatus(np)
	node := w.starts(&good, 10)
	w.reconciles(readiness, good.Name)
	if w.read(node); tainted(node, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Fatal("the node was not admitted")
	}
	w.reconcilesPools(controller)
	w.wantCondition(np, v1alpha1.ConditionReplicasHealthy, "Unknown", "Probing")
	w.initialized(&good, node)
	w.reconcilesPools(controller)
	w.wantCondition(np, v1alpha1.ConditionReplicasHealthy, "True", "ReplicasHealthy")
	w.reconciles(provisioning, "")
	w.wantClaims(3)
}

// initialized marks the claim and its Node as initialized, as Karpenter does.
func (w *world) initialized(claim *karpv1.NodeClaim, node *corev1.Node) {
	w.t.Helper()
	w.setClaimCondition(claim, status.Condition{Type: karpv1.ConditionTypeInitialized, Status: "True", Reason: "Initialized"})
	w.read(node)
	node.Labels[karpv1.NodeInitializedLabelKey] = "true"
	w.update(node)
}

// starts registers the claim's machine now.
func (w *world) starts(claim *karpv1.NodeClaim, replicas int64) *corev1.Node {
	w.t.Helper()
	snapshottest.Registered(w.clock.Now())(claim)
	w.updateStatus(claim)
	return w.node(claim, replicas)
}

// wantDeleted checks that the claim is deleted, and removes its Node as Karpenter does.
func (w *world) wantDeleted(claim *karpv1.NodeClaim) {
	w.t.Helper()
	if w.read(claim) {
		w.t.Fatalf("NodeClaim %s was not deleted", claim.Name)
	}
	node := snapshottest.Node(claim, snapshottest.TypeNamed("g4dn.xlarge"), 0)
	w.delete(&node, noGrace)
}

// stalePools is a cache with outdated NodePools.
type stalePools struct {
	client.Reader
	items []karpv1.NodePool
}

func (r stalePools) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if pools, ok := list.(*karpv1.NodePoolList); ok {
		pools.Items = r.items
		return nil
	}
	return r.Reader.List(ctx, list, options...)
}

func TestStatusConflictDoesNotBlockOtherPools(t *testing.T) {
	w := newWorld(t)
	theirs, other := w.shared("a-theirs"), w.shared("b-other")
	gone := w.shared("c-gone")
	items := []karpv1.NodePool{*theirs.DeepCopy(), *other.DeepCopy(), *gone.DeepCopy()}
	theirs.Status.NodeClassObservedGeneration = 7 // Karpenter writes to the status too.
	w.updateStatus(theirs)
	w.delete(gone)
	w.gatherer.Cached = stalePools{w.WithWatch, items}
	controller := w.poolController()
	if again := w.reconciles(controller, "").RequeueAfter; again <= 0 || again > time.Second {
		t.Errorf("look again after %s, want soon", again)
	}
	w.wantCondition(other, status.ConditionReady, "True", "")
	if w.read(theirs); theirs.Status.NodeClassObservedGeneration != 7 || len(theirs.Status.Conditions) != 0 {
		t.Errorf("what somebody else wrote was overwritten: %+v", theirs.Status)
	}
	w.gatherer.Cached = w.WithWatch
	w.reconcilesPools(controller)
	w.wantCondition(theirs, status.ConditionReady, "True", "")
	if theirs.Status.NodeClassObservedGeneration != 7 {
		t.Errorf("what somebody else wrote was lost: %+v", theirs.Status)
	}
}

func TestPoolChangesAreBatched(t *testing.T) {
	w := newWorld(t)
	controller := w.poolController()
	w.reconciles(controller, "")
	np := w.shared("late")
	again := w.reconciles(controller, "").RequeueAfter
	if again <= 0 || again > time.Second {
		t.Errorf("look again after %s, want in a moment", again)
	}
	w.clock.Step(again)
	w.reconciles(controller, "")
	w.wantCondition(np, status.ConditionReady, "True", "")
	w.delete(np)
	w.reconcilesPools(controller)
	if n := w.counted("karve_pool_nodes"); n != 0 {
		t.Errorf("a pool that is gone has %v nodes", n)
	}
}
