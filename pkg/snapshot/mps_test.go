package snapshot_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// withMPS returns a cluster whose T4s, of 15072 MiB, are shared among ten with MPS.
func withMPS() *facts.Cluster {
	c := Shared()
	c.GPUNodeClasses[0].Spec.Sharing.Strategy = v1alpha1.StrategyMPS
	return c
}

func stating(name, memory string) corev1.Pod {
	pod := Pod(name)
	pod.Annotations = map[string]string{v1alpha1.GPUMemoryAnnotation: memory}
	return pod
}

func TestReplicaWithMPSHasItsShareOfMemory(t *testing.T) {
	t.Parallel()
	c := withMPS()
	c.Pods = []corev1.Pod{stating("a", "1507Mi")}
	if view := snapshot.Build(c); view.Classes[0].Blocked != nil || len(view.Classes[0].Offerings) == 0 {
		t.Errorf("a pod that states the share of a replica is blocked: %+v", view.Classes[0].Blocked)
	}
	c.Pods = []corev1.Pod{stating("a", "3Gi")}
	c.NodeClasses[NodeClassRef] = only(c.NodeClasses[NodeClassRef], "g4dn.xlarge")
	wantBlocked(t, c, planner.ReasonTooLarge, "states 3Gi of device memory", "a replica of GPUNodeClass gpu-shared has at most 1507Mi with MPS", "memoryOvercommitPercent")
	c.GPUNodeClasses[0].Spec.Sharing.MPS = &v1alpha1.MPSSharing{MemoryOvercommitPercent: new(int32(300))}
	if view := snapshot.Build(c); view.Classes[0].Blocked != nil {
		t.Errorf("it is blocked although replicas may have three times their share: %+v", view.Classes[0].Blocked)
	}
	c = Shared()
	c.Pods = []corev1.Pod{stating("a", "3Gi")}
	if view := snapshot.Build(c); view.Classes[0].Blocked != nil {
		t.Errorf("it is blocked with time-slicing: %+v", view.Classes[0].Blocked)
	}
}

// A node keeps the limits that it was launched with.
func TestNodeWithMPSTakesPodsThatFitIntoItsReplicas(t *testing.T) {
	t.Parallel()
	for memory, want := range map[string]bool{"1507Mi": true, "1508Mi": false} {
		c := withMPS()
		machine := Claim("one", &c.NodePools[0], TypeNamed("g4dn.xlarge"), Initialized(Now))
		machine.Annotations[nodecontract.MPSAnnotation] = nodecontract.DefaultMPS.String()
		c.NodeClaims, c.Nodes = []karpv1.NodeClaim{machine}, []corev1.Node{Node(&machine, TypeNamed("g4dn.xlarge"), 10)}
		c.Pods = []corev1.Pod{stating("a", memory)}
		c.GPUNodeClasses[0].Spec.Sharing.MPS = &v1alpha1.MPSSharing{MemoryOvercommitPercent: new(int32(400))}
		plan := solve.Plan(snapshot.Build(c).Snapshot)
		if placed := len(plan.Placements) == 1; placed != want || len(plan.Unplaced) > 0 {
			t.Errorf("a pod that states %s: placed %t on the node, want %t; %+v", memory, placed, want, plan)
		}
	}
}

func TestPodWithSeveralReplicasIsBlockedWithMPS(t *testing.T) {
	t.Parallel()
	c := withMPS()
	c.Pods = []corev1.Pod{Pod("a", Asking("nvidia.com/gpu.shared", "2"))}
	wantBlocked(t, c, planner.ReasonRequestsAboveOne, "asks for 2 replicas in one container, and GPUNodeClass gpu-shared shares GPUs with MPS, where a container has one")
}

func TestGPUsThatMPSCannotShareAreNotOffered(t *testing.T) {
	t.Parallel()
	for _, strategy := range []v1alpha1.Strategy{v1alpha1.StrategyTimeSlicing, v1alpha1.StrategyMPS} {
		c := withMPS()
		c.GPUNodeClasses[0].Spec.Sharing.Strategy = strategy
		state := only(c.NodeClasses[NodeClassRef], "g4dn.xlarge")
		state.InstanceTypes[0].GPU.Name = "m60"
		c.NodeClasses[NodeClassRef] = state
		if n := len(snapshot.Pools(c)[0].Offerings); (n > 0) != (strategy == v1alpha1.StrategyTimeSlicing) {
			t.Errorf("%s: %d offerings of M60s", strategy, n)
		}
	}
}

func TestMachinesWithMPSHoldReplicasTimesGPUs(t *testing.T) {
	t.Parallel()
	c := withMPS()
	for i := range 40 {
		c.Pods = append(c.Pods, stating(fmt.Sprintf("pod-%02d", i), "1Gi"))
	}
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	replicas := int64(0)
	for _, l := range plan.Launches {
		gpus, perGPU := view.Promised(l)
		replicas += gpus * perGPU
	}
	if len(plan.Unplaced) > 0 || replicas != 40 {
		t.Errorf("%d replicas for 40 pods, %d unplaced", replicas, len(plan.Unplaced))
	}
}

// only returns the node class with a copy of one of its instance types.
func only(state facts.NodeClassState, name string) facts.NodeClassState {
	for _, t := range state.InstanceTypes {
		if t.Name == name {
			state.InstanceTypes = append(state.InstanceTypes[:0:0], t)
		}
	}
	return state
}

// Pools with different strategies may serve the same resource. The cheapest plan uses the pool whose machines hold the pods at the lowest price.
func TestPoolsWithDifferentStrategiesAreChosenByPrice(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sliced, mps int32
		memory      string
		want        string
		machines    int
	}{
		"more replicas with MPS":                      {10, 16, "900Mi", "mps", 1},
		"more replicas with time-slicing":             {16, 10, "900Mi", "gpu-shared", 1},
		"pods that need more than a replica with MPS": {2, 16, "6Gi", "gpu-shared", 8},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			c.GPUNodeClasses[0].Spec.Sharing.Replicas = &tc.sliced
			class := *c.GPUNodeClasses[0].DeepCopy()
			class.Name, class.UID = "mps", "mps"
			class.Spec.Sharing.Strategy, class.Spec.Sharing.Replicas = v1alpha1.StrategyMPS, &tc.mps
			c.GPUNodeClasses = append(c.GPUNodeClasses, class)
			pool := *c.NodePools[0].DeepCopy()
			pool.Name, pool.UID, pool.Spec.Template.Spec.NodeClassRef.Name = "mps", "mps", "mps"
			c.NodePools = append(c.NodePools, pool)
			c.NodeClasses[NodeClassRef] = only(c.NodeClasses[NodeClassRef], "g4dn.xlarge")
			for i := range 16 {
				pod := stating(fmt.Sprintf("pod-%02d", i), tc.memory)
				Asking("cpu", "100m", "memory", "500Mi", v1alpha1.ResourceGPUShared, "1")(&pod)
				c.Pods = append(c.Pods, pod)
			}
			view := snapshot.Build(c)
			plan := solve.Plan(view.Snapshot)
			if len(plan.Launches) != tc.machines || len(plan.Unplaced) > 0 || plan.Bound != plan.Price {
				t.Errorf("%d machines, %d unplaced, for %d, at least %d", len(plan.Launches), len(plan.Unplaced), plan.Price, plan.Bound)
			}
			for _, l := range plan.Launches {
				if got := view.Snapshot.Pools[view.Snapshot.Offerings[l.Offering].Pool].Name; got != tc.want {
					t.Errorf("a machine of NodePool %s is launched, want %s", got, tc.want)
				}
			}
		})
	}
}

func TestInvalidThreadsBlockPod(t *testing.T) {
	t.Parallel()
	c := withMPS()
	pod := Pod("a")
	pod.Annotations = map[string]string{nodecontract.GPUThreadsAnnotation: "half"}
	c.Pods = []corev1.Pod{pod}
	wantBlocked(t, c, planner.ReasonUnsupported, "annotation karve.sh/gpu-threads is \"half\"", "a percentage from 1 to 100")
	pod.Annotations[nodecontract.GPUThreadsAnnotation] = "50"
	if view := snapshot.Build(c); view.Classes[0].Blocked != nil {
		t.Errorf("it is blocked: %+v", view.Classes[0].Blocked)
	}
}
