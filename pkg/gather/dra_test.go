package gather

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
)

func sliceOf(node string, generation, replicas int64) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu.karve.sh-" + node},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: nodecontract.DRADriver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: generation, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "gpu", Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
				nodecontract.DRAReplicas: {Value: *resource.NewQuantity(replicas, resource.DecimalSI)},
			}}},
		},
	}
}

func draNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
		nodecontract.BackendAnnotation: nodecontract.BackendDRA, nodecontract.ResourceAnnotation: v1alpha1.ResourceGPUShared,
	}}}
}

// replicas returns what a node has of the resource for decisions.
func replicas(t *testing.T, c *facts.Cluster, name string) int64 {
	t.Helper()
	for node := range c.Indexed().AllNodes() {
		if node.Name == name {
			return node.Status.Allocatable.Name(v1alpha1.ResourceGPUShared, resource.DecimalSI).Value()
		}
	}
	t.Fatalf("there is no node %s", name)
	return 0
}

func TestPublishedReplicasFollowTheirSlices(t *testing.T) {
	t.Parallel()
	for _, followed := range []bool{true, false} {
		b := newTestbed()
		b.DRA = true
		if followed {
			b.follow(t)
		}
		b.cached.set(draNode("a"), draNode("b"))
		expect := func(what string, a, other int64) {
			t.Helper()
			c := b.look(t)
			if gotA, gotB := replicas(t, c, "a"), replicas(t, c, "b"); gotA != a || gotB != other {
				t.Errorf("%s (followed: %v): %d and %d replicas, want %d and %d", what, followed, gotA, gotB, a, other)
			}
		}
		expect("without slices", 0, 0)
		b.cached.set(sliceOf("a", 1, 10))
		expect("one is published", 10, 0)
		generation := b.look(t).Generation
		b.cached.set(sliceOf("a", 2, 20), sliceOf("b", 1, 5))
		expect("both are published", 20, 5)
		if followed && b.look(t).Generation == generation {
			t.Error("decisions cannot tell that replicas were published")
		}
		b.cached.set(draNode("a")) // A Node that changes keeps its replicas.
		expect("a node has changed", 20, 5)
		b.cached.remove(sliceOf("a", 2, 20))
		expect("one is gone", 0, 5)
	}
}

func TestWithoutDRANoSliceIsRead(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.follow(t)
	b.cached.set(draNode("a"), sliceOf("a", 1, 10))
	if got := replicas(t, b.look(t), "a"); got != 0 {
		t.Errorf("%d replicas", got)
	}
}
