package headroom_test

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// buffer returns a buffer of the given number of pods. As in users' templates, GPUs appear only in the limits.
func buffer(replicas int32, edits ...func(*corev1.Pod)) karpenter.Buffer {
	pod := Pod("", edits...)
	r := &pod.Spec.Containers[0].Resources
	if shared, ok := r.Requests[v1alpha1.ResourceGPUShared]; ok {
		r.Limits = corev1.ResourceList{v1alpha1.ResourceGPUShared: shared}
		delete(r.Requests, v1alpha1.ResourceGPUShared)
	}
	return karpenter.Buffer{Namespace: "default", Name: "burst", Replicas: replicas, Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec,
	}}
}

func TestCapacityBuffersAddHeadroomForTheirPods(t *testing.T) {
	t.Parallel()
	apart := func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"app": "web"}
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
		}}}}
	}
	for name, x := range map[string]struct {
		buffer         karpenter.Buffer
		edit           func(*facts.Cluster)
		wanted, coming int64
		launches       int
	}{
		"of small pods":                  {buffer: buffer(11), wanted: 11, coming: 11, launches: 2},
		"of large pods":                  {buffer: buffer(3, Asking("cpu", "1500m", v1alpha1.ResourceGPUShared, "1")), wanted: 3, coming: 3, launches: 1},
		"of pods with two replicas":      {buffer: buffer(6, Asking("cpu", "100m", v1alpha1.ResourceGPUShared, "2")), wanted: 12, coming: 12, launches: 2},
		"of pods with device memory":     {buffer: buffer(3, GPUMemory("9Gi")), wanted: 3, coming: 3, launches: 3},
		"of pods with a host port":       {buffer: buffer(3, HostPort(8080)), wanted: 3, coming: 3, launches: 3},
		"of pods with pod affinity":      {buffer: buffer(3, apart, Claiming("data")), wanted: 3, coming: 3, launches: 1},
		"of pods that no pool admits":    {buffer: buffer(3, Selecting("example.com/team", "a"))},
		"of pods without the toleration": {buffer: buffer(3, Tolerating())},
		"of pods without a GPU":          {buffer: buffer(3, Asking("cpu", "1"))},
		"that stock pools can serve": {buffer: buffer(3, Asking("cpu", "1", v1alpha1.ResourceGPU, "1")), edit: func(c *facts.Cluster) {
			c.NodePools = append(c.NodePools, KarpenterPool("stock", Tainted(v1alpha1.ResourceGPUShared)))
			c.GPUNodeClasses[0].Spec.Sharing.ResourceName = v1alpha1.ResourceGPU
		}},
		"beside the headroom of the class": {buffer: buffer(3), edit: func(c *facts.Cluster) {
			c.GPUNodeClasses[0].Spec.Headroom = []v1alpha1.Headroom{{Replicas: 5}}
		}, wanted: 8, coming: 8, launches: 1},
		"in the pool with the highest weight": {buffer: buffer(3), edit: func(c *facts.Cluster) {
			c.NodePools[0].Spec.Weight = new(int32(10))
			c.NodePools = append(c.NodePools, Pool("a-light-one", "gpu-shared", Tainted(v1alpha1.ResourceGPUShared)))
		}, wanted: 3, coming: 3, launches: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			c.Buffers = []karpenter.Buffer{x.buffer}
			if x.edit != nil {
				x.edit(c)
			}
			h := headroomOf(t, c)
			r, _ := h.Of("gpu-shared")
			if r.Wanted != x.wanted || r.Coming != x.coming || len(h.Plan.Launches) != x.launches {
				t.Errorf("%d wanted, %d coming on %d machines; want %d, %d, %d (%+v)", r.Wanted, r.Coming, len(h.Plan.Launches), x.wanted, x.coming, x.launches, r.Refused)
			}
		})
	}
}

func TestHugeCapacityBufferStaysWithinLimits(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts("nvidia.com/gpu", "2"))
	c.Buffers = []karpenter.Buffer{buffer(math.MaxInt32)}
	h := headroomOf(t, c)
	if r, _ := h.Of("gpu-shared"); r.Wanted != 10_000 || r.Coming != 20 || r.Refused == nil {
		t.Errorf("%+v", r)
	}
}
