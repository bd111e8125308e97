package capacity_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/fleet/capacity"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

const gib = 1 << 30

var xlarge = TypeNamed("g4dn.xlarge")

// running returns a cluster whose node class has an image, with a started g4dn.xlarge of that image. The catalog promises 4 CPUs less 100m, and 16 GiB less
// one.
func running(edits ...func(*karpv1.NodeClaim, *corev1.Node)) *facts.Cluster {
	c := Shared()
	state := c.NodeClasses[NodeClassRef]
	state.Hash, state.HashVersion, state.Images = "17", "v4", []facts.Image{{ID: "ami-new"}}
	c.NodeClasses[NodeClassRef] = state
	claim := Claim("m", &c.NodePools[0], xlarge, Initialized(Now))
	claim.Status.ImageID, claim.Labels[corev1.LabelInstanceTypeStable] = "ami-new", xlarge.Name
	claim.Annotations["karpenter.k8s.aws/ec2nodeclass-hash"], claim.Annotations["karpenter.k8s.aws/ec2nodeclass-hash-version"] = "17", "v4"
	node := Node(&claim, xlarge, 10)
	for _, edit := range edits {
		edit(&claim, &node)
	}
	c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, node)
	return c
}

// has sets the node's memory capacity and allocatable memory in bytes.
func has(capacity, allocatable int64) func(*karpv1.NodeClaim, *corev1.Node) {
	return func(_ *karpv1.NodeClaim, node *corev1.Node) {
		node.Status.Capacity[corev1.ResourceMemory] = *resource.NewQuantity(capacity, resource.BinarySI)
		node.Status.Allocatable[corev1.ResourceMemory] = *resource.NewQuantity(allocatable, resource.BinarySI)
	}
}

// unregisteredNode makes a Node one that Karpenter has not registered yet.
func unregisteredNode(_ *karpv1.NodeClaim, node *corev1.Node) {
	delete(node.Labels, karpv1.NodeInitializedLabelKey)
	delete(node.Labels, karpv1.NodeRegisteredLabelKey)
}

func allocates(name corev1.ResourceName, amount string) func(*karpv1.NodeClaim, *corev1.Node) {
	return func(_ *karpv1.NodeClaim, node *corev1.Node) {
		node.Status.Allocatable[name] = resource.MustParse(amount)
	}
}

func promised(c *facts.Cluster) catalog.InstanceType {
	for _, t := range c.NodeClasses[NodeClassRef].InstanceTypes {
		if t.Name == "g4dn.xlarge" {
			return t
		}
	}
	return catalog.InstanceType{}
}

func TestLearnCorrectsAllocatableFromRunningNodes(t *testing.T) {
	t.Parallel()
	whole := catalog.Resources{MilliCPU: 3900, MemoryBytes: 15 * gib, EphemeralBytes: 90 * gib, Pods: 29}
	with := func(edit func(*catalog.Resources)) catalog.Resources {
		r := whole
		edit(&r)
		return r
	}
	foreign := func(claim *karpv1.NodeClaim, _ *corev1.Node) {
		claim.Annotations = map[string]string{"karpenter.k8s.aws/ec2nodeclass-hash": "17", "karpenter.k8s.aws/ec2nodeclass-hash-version": "v4"}
	}
	for name, tc := range map[string]struct {
		edits    []func(*karpv1.NodeClaim, *corev1.Node)
		capacity int64
		want     catalog.Resources
	}{
		"as expected":                               {nil, 16 * gib, whole},
		"less memory":                               {[]func(*karpv1.NodeClaim, *corev1.Node){has(15*gib, 14*gib)}, 15 * gib, with(func(r *catalog.Resources) { r.MemoryBytes = 14 * gib })},
		"more memory, as Karpenter does":            {[]func(*karpv1.NodeClaim, *corev1.Node){has(17*gib, 16*gib)}, 17 * gib, with(func(r *catalog.Resources) { r.MemoryBytes = 16 * gib })},
		"more memory capacity but less allocatable": {[]func(*karpv1.NodeClaim, *corev1.Node){has(17*gib, 14*gib)}, 17 * gib, with(func(r *catalog.Resources) { r.MemoryBytes = 14 * gib })},
		"less CPU":                                  {[]func(*karpv1.NodeClaim, *corev1.Node){allocates("cpu", "3500m")}, 16 * gib, with(func(r *catalog.Resources) { r.MilliCPU = 3500 })},
		"more CPU, which is ignored":                {[]func(*karpv1.NodeClaim, *corev1.Node){allocates("cpu", "4")}, 16 * gib, whole},
		"fewer pods":                                {[]func(*karpv1.NodeClaim, *corev1.Node){allocates("pods", "20")}, 16 * gib, with(func(r *catalog.Resources) { r.Pods = 20 })},
		"less disk":                                 {[]func(*karpv1.NodeClaim, *corev1.Node){allocates("ephemeral-storage", "60Gi")}, 16 * gib, with(func(r *catalog.Resources) { r.EphemeralBytes = 60 * gib })},
		"a machine of a stock pool": {
			[]func(*karpv1.NodeClaim, *corev1.Node){foreign, has(15*gib, 14*gib)}, 15 * gib, with(func(r *catalog.Resources) { r.MemoryBytes = 14 * gib }),
		},
		"a machine with another image": {[]func(*karpv1.NodeClaim, *corev1.Node){has(15*gib, 14*gib), func(claim *karpv1.NodeClaim, _ *corev1.Node) { claim.Status.ImageID = "ami-old" }}, 16 * gib, whole},
		"a machine with another spec": {[]func(*karpv1.NodeClaim, *corev1.Node){has(15*gib, 14*gib), func(claim *karpv1.NodeClaim, _ *corev1.Node) {
			claim.Annotations["karpenter.k8s.aws/ec2nodeclass-hash"] = "16"
		}}, 16 * gib, whole},
		"less memory before registration": {[]func(*karpv1.NodeClaim, *corev1.Node){has(15*gib, 14*gib), unregisteredNode}, 15 * gib, with(func(r *catalog.Resources) { r.MemoryBytes = 14 * gib })},
		"more memory before registration": {[]func(*karpv1.NodeClaim, *corev1.Node){has(17*gib, 16*gib), unregisteredNode}, 16 * gib, whole},
		"a Node that its claim does not know yet": {[]func(*karpv1.NodeClaim, *corev1.Node){has(15*gib, 14*gib), func(claim *karpv1.NodeClaim, node *corev1.Node) {
			claim.Status.ProviderID, node.Spec.ProviderID = "", ""
		}}, 16 * gib, whole},
		"implausibly little memory": {[]func(*karpv1.NodeClaim, *corev1.Node){has(8*gib, 7*gib)}, 16 * gib, whole},
		"no capacity in the status": {[]func(*karpv1.NodeClaim, *corev1.Node){func(_ *karpv1.NodeClaim, node *corev1.Node) { node.Status.Capacity, node.Status.Allocatable = nil, nil }}, 16 * gib, whole},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := running(tc.edits...)
			capacity.Learn(c, nil).Correct(c)
			got := promised(c)
			if diff := cmp.Diff(tc.want, got.Allocatable); diff != "" || got.Capacity.MemoryBytes != tc.capacity {
				t.Errorf("memory %d, allocatable (-want +got):\n%s", got.Capacity.MemoryBytes, diff)
			}
			for _, other := range c.NodeClasses[NodeClassRef].InstanceTypes {
				if other.Name != "g4dn.xlarge" && other.Allocatable != *typeOf(other.Name) {
					t.Errorf("%s is corrected too", other.Name)
				}
			}
		})
	}
}

func typeOf(name string) *catalog.Resources {
	for _, t := range Types() {
		if t.Name == name {
			return &t.Allocatable
		}
	}
	return nil
}

// A machine with less memory is removed if no pod fits it. If that were forgotten, the next one would be launched for the same pods.
func TestLearnRemembersOnlyLowerMemoryOfRemovedMachines(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ capacity, allocatable, after int64 }{
		"less": {15 * gib, 14 * gib, 14 * gib}, "more": {17 * gib, 16 * gib, 15 * gib},
	} {
		learned := capacity.Learn(running(has(tc.capacity, tc.allocatable)), nil)
		gone := running()
		gone.NodeClaims, gone.Nodes = nil, nil
		learned = capacity.Learn(gone, capacity.Learn(gone, learned))
		learned.Correct(gone)
		if got := promised(gone).Allocatable.MemoryBytes; got != tc.after {
			t.Errorf("%s: %d bytes are promised after it has gone, want %d", name, got, tc.after)
		}
	}
}

func TestLearnForgetsCapacityOfFormerImage(t *testing.T) {
	t.Parallel()
	learned := capacity.Learn(running(has(15*gib, 14*gib)), nil)
	next := Shared()
	away := next.NodeClasses[NodeClassRef]
	away.Ready = false
	next.NodeClasses[NodeClassRef] = away
	if learned = capacity.Learn(next, learned); len(learned) != 1 {
		t.Errorf("a class that is not Ready for a moment forgets: %v", learned)
	}
	away.Ready, away.Images = true, []facts.Image{{ID: "ami-newer"}}
	next.NodeClasses[NodeClassRef] = away
	if learned = capacity.Learn(next, learned); len(learned) != 0 {
		t.Errorf("%v is remembered", learned)
	}
}

// TestLearnedCapacityDependsOnlyOnMachines checks that the result depends neither on the order in which machines are read nor on restarts of the controller,
// and never promises more CPU, pods or disk.
func TestLearnedCapacityDependsOnlyOnMachines(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := running()
		for i := range rapid.IntRange(1, 5).Draw(t, "machines") {
			memory := rapid.Int64Range(12*gib, 20*gib).Draw(t, "memory")
			more := running(has(memory, memory-rapid.Int64Range(gib/2, 2*gib).Draw(t, "kept")),
				allocates("cpu", fmt.Sprintf("%dm", rapid.IntRange(3000, 4000).Draw(t, "cpu"))), allocates("pods", fmt.Sprint(rapid.IntRange(20, 40).Draw(t, "pods"))))
			more.NodeClaims[0].Name, more.Nodes[0].Name = fmt.Sprint("m", i), fmt.Sprint("m", i)
			more.NodeClaims[0].Status.ProviderID, more.Nodes[0].Spec.ProviderID = fmt.Sprint("aws:///", i), fmt.Sprint("aws:///", i)
			c.NodeClaims, c.Nodes = append(c.NodeClaims, more.NodeClaims[0]), append(c.Nodes, more.Nodes[0])
		}
		want := capacity.Learn(c, nil)
		shuffled := *c
		shuffled.NodeClaims, shuffled.Nodes = rapid.Permutation(c.NodeClaims).Draw(t, "claims"), rapid.Permutation(c.Nodes).Draw(t, "nodes")
		if got := capacity.Learn(&shuffled, want); !maps.Equal(got, want) {
			t.Fatalf("a second look shows more: %v, before %v", got, want)
		}
		if got := capacity.Learn(&shuffled, nil); !maps.Equal(got, want) {
			t.Fatalf("in another order: %v, want %v", got, want)
		}
		before := promised(c)
		want.Correct(c)
		once := promised(c)
		if now := once.Allocatable; now.MilliCPU > before.Allocatable.MilliCPU || now.Pods > before.Allocatable.Pods || now.EphemeralBytes > before.Allocatable.EphemeralBytes {
			t.Fatalf("more is promised: %+v, before %+v", now, before.Allocatable)
		}
		for i := range c.Nodes {
			if once.Allocatable.MemoryBytes > c.Nodes[i].Status.Allocatable.Memory().Value() {
				t.Fatalf("%d bytes are promised, and %s has %s", once.Allocatable.MemoryBytes, c.Nodes[i].Name, c.Nodes[i].Status.Allocatable.Memory())
			}
		}
		want.Correct(c)
		if diff := cmp.Diff(once, promised(c)); diff != "" {
			t.Fatalf("Correct is not idempotent (-once +twice):\n%s", diff)
		}
	})
}
