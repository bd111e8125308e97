package reconcile

import (
	"context"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/readiness"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/test/harness/nvidiadra"
)

func (w *world) readiness(edits ...func(*readiness.Config)) *readiness.Controller {
	config := readiness.Config{
		Client: w.WithWatch, Gatherer: w.gatherer, Metrics: w.metrics, Recorder: w.recorder, Clock: w.clock, Nominations: true, Timeout: replicasTimeout,
	}
	for _, edit := range edits {
		edit(&config)
	}
	return readiness.New(config)
}

// lagging returns a client whose cache holds the current versions of the objects, even after they change.
func (w *world) lagging(node *corev1.Node, claim *karpv1.NodeClaim) client.Client {
	oldNode, oldClaim := node.DeepCopy(), claim.DeepCopy()
	return interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			switch got := o.(type) {
			case *corev1.Node:
				oldNode.DeepCopyInto(got)
				return nil
			case *karpv1.NodeClaim:
				oldClaim.DeepCopyInto(got)
				return nil
			}
			return c.Get(ctx, key, o, options...)
		},
	})
}

// registered creates a claim with a registered Node that has the given number of replicas and the startup taint.
func (w *world) registered(name string, pool *karpv1.NodePool, replicas int64) (*karpv1.NodeClaim, *corev1.Node) {
	w.t.Helper()
	claim := w.claim(name, pool, snapshottest.Registered(w.clock.Now()))
	return claim, w.node(claim, replicas)
}

func (w *world) exposes(node *corev1.Node, replicas int64) {
	w.t.Helper()
	w.read(node)
	node.Status.Allocatable[v1alpha1.ResourceGPUShared] = *resource.NewQuantity(replicas, resource.DecimalSI)
	w.updateStatus(node)
}

func TestStartupTaintIsRemovedOncePromisedReplicasExist(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("ready")
	_, node := w.registered("ready-1", pool, 0)
	controller := w.readiness()
	if again := w.reconciles(controller, "ready-1").RequeueAfter; again != replicasTimeout {
		t.Errorf("look again after %s, want %s", again, replicasTimeout)
	}
	w.exposes(node, 9)
	w.reconciles(controller, "ready-1")
	if w.read(node); !tainted(node, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Fatal("the startup taint went with nine of ten replicas")
	}
	w.exposes(node, 10)
	w.reconciles(controller, "ready-1")
	if w.read(node); tainted(node, v1alpha1.ReplicasNotReadyTaintKey) || !tainted(node, v1alpha1.ResourceGPUShared) {
		t.Errorf("taints are %v, want that of the pool alone", node.Spec.Taints)
	}
	w.wantEvents(1, "Normal ReplicasReady exposes 10 nvidia.com/gpu.shared")
	w.reconciles(controller, "ready-1")
	w.wantEvents(0, "")
}

// With backend DRA the Node never has the resource: what the agent publishes counts.
func TestStartupTaintIsRemovedOncePromisedReplicasArePublished(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("published")
	claim, node := w.registered("published-1", pool, 0)
	node.Annotations = claim.Annotations
	node.Annotations[nodecontract.BackendAnnotation] = nodecontract.BackendDRA
	w.update(node)
	w.gatherer.DRA = true
	controller := w.readiness()
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "gpu.karve.sh-" + node.Name}, Spec: resourcev1.ResourceSliceSpec{
		Driver: nodecontract.DRADriver, NodeName: &node.Name, Pool: resourcev1.ResourcePool{Name: node.Name, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{
			Name: "gpu-a", AllowMultipleAllocations: new(true), Taints: []resourcev1.DeviceTaint{{Key: nodecontract.DRACordonedTaint, Effect: resourcev1.DeviceTaintEffectNoSchedule}},
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{nodecontract.DRAReplicas: {Value: resource.MustParse("10")}},
		}},
	}}
	w.create(slice)
	t.Cleanup(func() { _ = w.Delete(context.Background(), slice) }) //nolint:usetesting // The test's context has ended.
	w.reconciles(controller, "published-1")
	if w.read(node); !tainted(node, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Fatal("the startup taint went while the only device takes no pods")
	}
	slice.Spec.Devices[0].Taints, slice.Spec.Pool.Generation = nil, 2
	w.update(slice)
	w.reconciles(controller, "published-1")
	if w.read(node); tainted(node, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Errorf("taints are %v", node.Spec.Taints)
	}
	if q := node.Status.Allocatable[v1alpha1.ResourceGPUShared]; !q.IsZero() {
		t.Errorf("the Node has %s of the resource, which the scheduler would take for a device plugin's", q.String())
	}
	w.wantEvents(1, "Normal ReplicasReady exposes 10 nvidia.com/gpu.shared")
}

// With backend NVIDIADRA, what NVIDIA's driver publishes counts, and nothing that it publishes otherwise than promised.
func TestStartupTaintIsRemovedOnceNVIDIAsDriverPublishes(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("nvidia")
	claim, node := w.registered("nvidia-1", pool, 0)
	node.Annotations = claim.Annotations
	node.Annotations[nodecontract.BackendAnnotation], node.Annotations[nodecontract.ResourceAnnotation] = nodecontract.BackendNVIDIADRA, v1alpha1.ResourceGPU
	w.update(node)
	claim.Annotations[nodecontract.BackendAnnotation], claim.Annotations[nodecontract.ResourceAnnotation] = nodecontract.BackendNVIDIADRA, v1alpha1.ResourceGPU
	w.update(claim)
	w.gatherer.DRA = true
	controller := w.readiness()
	t4 := gpu.Device{UUID: "GPU-a", Product: "Tesla T4", MemoryMiB: 15360, ComputeMajor: 7, ComputeMinor: 5}
	for _, c := range []struct {
		shares string
		ready  bool
	}{{"disabled", false}, {"memory", false}, {"10", true}} {
		slice := nvidiadra.Slice(node.Name, c.shares, t4)
		w.create(slice)
		w.reconciles(controller, "nvidia-1")
		if w.read(node); tainted(node, v1alpha1.ReplicasNotReadyTaintKey) == c.ready {
			t.Errorf("with consumableShares %s, taints are %v", c.shares, node.Spec.Taints)
		}
		if err := w.Delete(t.Context(), slice); err != nil {
			t.Fatal(err)
		}
	}
	w.wantEvents(1, "Normal ReplicasReady exposes 10 nvidia.com/gpu")
}

func TestForeignNodesAreLeftAlone(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("others")
	claim, node := w.registered("others-1", pool, 10)
	claim.Annotations = nil
	w.update(claim)
	w.reconciles(w.readiness(), "others-1")
	w.reconciles(w.readiness(), "there-is-none")
	if w.read(node); !tainted(node, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Error("the taint of a node that is not ours was taken off")
	}
	w.release(claim)
	w.delete(claim)
	w.reconciles(w.readiness(), "others-1")
	w.wantEvents(0, "")
}

func TestBrokenNodeIsRemovedOncePoolIsClosed(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("broken")
	claim, _ := w.registered("broken-1", pool, 3)
	controller := w.readiness()
	w.clock.Step(replicasTimeout)
	if again := w.reconciles(controller, "broken-1").RequeueAfter; again <= 0 || again > time.Second {
		t.Errorf("look again after %s, want soon", again)
	}
	if w.read(claim); !claim.DeletionTimestamp.IsZero() {
		t.Fatal("the node was given back before its pool knew: the next broken one would be launched at once")
	}
	w.setPool(pool, status.Condition{Type: v1alpha1.ConditionReplicasHealthy, Status: "False", Reason: "ReplicasMissing"})
	w.reconciles(controller, "broken-1")
	if w.read(claim); claim.DeletionTimestamp.IsZero() {
		t.Fatal("the broken node was not removed")
	}
	w.reconciles(controller, "broken-1")
	w.wantEvents(1, "Warning ReplicasMissing node broken-1 exposes 3 of 10")
	if n := w.counted("karve_nodeclaims_deleted_total"); n != 1 {
		t.Errorf("%v deletions were counted, want 1", n)
	}
}

func TestUsedBrokenNodeIsKeptForAnotherTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*world, *karpv1.NodeClaim, *corev1.Node)
		kept bool
	}{
		"with a pod": {nil, false},
		"with the do-not-repair annotation": {func(w *world, _ *karpv1.NodeClaim, n *corev1.Node) {
			n.Annotations[repair.DoNotRepair] = "true"
			w.update(n)
		}, true},
		"with do-not-disrupt": {func(w *world, _ *karpv1.NodeClaim, n *corev1.Node) {
			n.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true"
			w.update(n)
		}, false},
		"whose pool's condition is True": {func(w *world, c *karpv1.NodeClaim, _ *corev1.Node) { w.healthy("used", "True") }, false},
		"whose pool is being probed":     {func(w *world, c *karpv1.NodeClaim, _ *corev1.Node) { w.healthy("used", "Unknown") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			pool := w.shared("used")
			claim, node := w.registered("used-1", pool, 0)
			pod := snapshottest.Pod("squatter", snapshottest.Asking("cpu", "1"), snapshottest.Running(node.Name))
			w.pod(&pod)
			w.clock.Step(replicasTimeout)
			w.healthy("used", "False")
			if c.edit != nil {
				c.edit(w, claim, node)
			}
			controller := w.readiness()
			for range 2 {
				if again := w.reconciles(controller, "used-1").RequeueAfter; again != replicasTimeout {
					t.Errorf("look again after %s, want %s", again, replicasTimeout)
				}
			}
			w.wantEvents(1, "Warning BrokenButKept")
			if w.read(claim); !claim.DeletionTimestamp.IsZero() {
				t.Fatal("a node was given back with a pod on it")
			}
			w.clock.Step(replicasTimeout)
			w.reconciles(controller, "used-1")
			if w.read(claim); claim.DeletionTimestamp.IsZero() != c.kept {
				t.Errorf("kept: %t", !c.kept)
			}
		})
	}
}

func TestBrokenNodeIsRemovedOnceItsPodIsGone(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("used")
	claim, node := w.registered("used-1", pool, 0)
	w.setPool(pool, status.Condition{Type: v1alpha1.ConditionReplicasHealthy, Status: "False", Reason: "ReplicasMissing"})
	pod := snapshottest.Pod("squatter", snapshottest.Asking("cpu", "1"), snapshottest.Running(node.Name))
	w.pod(&pod)
	w.clock.Step(replicasTimeout)
	controller := w.readiness()
	w.reconciles(controller, "used-1")
	w.delete(&pod, noGrace)
	w.reconciles(controller, "used-1")
	if w.read(claim); claim.DeletionTimestamp.IsZero() {
		t.Error("the empty node was kept")
	}
}

// The EBS CSI driver's pod does not start on the node, so the driver's startup taint stays.
func TestUninitializedNodeIsRemoved(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("never")
	claim, node := w.registered("never-1", pool, 10)
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "ebs.csi.aws.com/agent-not-ready", Effect: corev1.TaintEffectNoExecute})
	w.update(node)
	claim.Spec.StartupTaints = append(claim.Spec.StartupTaints, corev1.Taint{Key: "ebs.csi.aws.com/agent-not-ready", Effect: corev1.TaintEffectNoExecute})
	w.clock.Step(replicasTimeout / 2)
	controller := w.readiness()
	w.reconciles(controller, "never-1")
	if w.read(node); tainted(node, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Fatal("our startup taint stays")
	}
	if again := w.reconciles(controller, "never-1").RequeueAfter; again != replicasTimeout {
		t.Errorf("look again after %s, want %s", again, replicasTimeout)
	}
	w.clock.Step(replicasTimeout)
	w.healthy("never", "False")
	w.reconciles(controller, "never-1")
	if w.read(claim); claim.DeletionTimestamp.IsZero() {
		t.Fatal("it is kept")
	}
	w.wantEvents(1, "Warning NotInitialized")
}

func TestClaimOfDeletedNodeIsDeleted(t *testing.T) {
	w := newWorld(t)
	w.shared("gone")
	pool := w.pool("gone-too", func(np *karpv1.NodePool) { np.Spec.Template.Spec.NodeClassRef.Name = "gone" })
	claim, node := w.machine("gone-1", pool)
	w.delete(pool)
	w.delete(node)
	controller := w.readiness()
	if again := w.reconciles(controller, "gone-1").RequeueAfter; again != replicasTimeout {
		t.Errorf("look again after %s, want %s", again, replicasTimeout)
	}
	w.clock.Step(replicasTimeout)
	w.reconciles(controller, "gone-1")
	if w.read(claim); claim.DeletionTimestamp.IsZero() {
		t.Error("the claim is kept")
	}
}

// healthy sets the ReplicasHealthy condition of a pool.
func (w *world) healthy(pool string, is metav1.ConditionStatus) {
	w.t.Helper()
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: pool}}
	w.setPool(np, status.Condition{Type: v1alpha1.ConditionReplicasHealthy, Status: is, Reason: "Said"})
}

func TestForeignTaintsSurviveConflict(t *testing.T) {
	w := newWorld(t)
	claim, node := w.registered("meanwhile-1", w.shared("meanwhile"), 10)
	lagging := w.lagging(node, claim)
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "theirs", Effect: corev1.TaintEffectNoSchedule})
	w.update(node)
	w.reconciles(w.readiness(func(c *readiness.Config) { c.Client = lagging }), "meanwhile-1")
	if w.read(node); !tainted(node, "theirs") || tainted(node, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Errorf("taints are %v, want theirs without ours", node.Spec.Taints)
	}
}

func TestBrokenNodeIsReadFromAPIServerBeforeRemoval(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*world, *karpv1.NodeClaim, *corev1.Node){
		"its replicas appeared":  func(w *world, _ *karpv1.NodeClaim, node *corev1.Node) { w.exposes(node, 10) },
		"it was deleted already": func(w *world, claim *karpv1.NodeClaim, _ *corev1.Node) { w.delete(claim) },
		"a pod was bound":        func(w *world, _ *karpv1.NodeClaim, node *corev1.Node) { w.on(node, "late") },
		"its Node is gone":       func(w *world, _ *karpv1.NodeClaim, node *corev1.Node) { w.delete(node) },
		"its claim changed":      func(w *world, claim *karpv1.NodeClaim, _ *corev1.Node) { w.launched(claim) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			pool := w.shared("look")
			claim, node := w.registered("look-1", pool, 0)
			w.setPool(pool, status.Condition{Type: v1alpha1.ConditionReplicasHealthy, Status: "False", Reason: "ReplicasMissing"})
			w.clock.Step(replicasTimeout)
			lagging := w.lagging(node, claim)
			change(w, claim, node)
			w.reconciles(w.readiness(func(c *readiness.Config) { c.Client = lagging }), "look-1")
			if n := w.counted("karve_nodeclaims_deleted_total"); n != 0 {
				t.Error("the node was given back")
			}
			w.wantEvents(0, "ReplicasMissing")
		})
	}
}

func (w *world) setPool(pool *karpv1.NodePool, c status.Condition) {
	w.t.Helper()
	w.read(pool)
	pool.StatusConditions(status.WithClock(w.clock)).Set(c)
	w.updateStatus(pool)
}
