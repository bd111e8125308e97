package gather

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
)

// replicasAsked returns how many replicas a pod requests for decisions.
func replicasAsked(pod *corev1.Pod) (sum int64) {
	for i := range pod.Spec.Containers {
		sum += pod.Spec.Containers[i].Resources.Requests.Name(v1alpha1.ResourceGPUShared, "").Value()
	}
	return sum
}

// A pod that has its replica by a claim holds it like any other. Its node would otherwise look idle, and the pod would be evicted.
func TestPodsWithClaimsHoldReplicas(t *testing.T) {
	t.Parallel()
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.karve.sh"}, Spec: resourcev1.DeviceClassSpec{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: "device.driver == '" + nodecontract.DRADriver + "'"}}},
	}}
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "gpu"}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class.Name}}},
	}}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "holds"},
		Spec:       corev1.PodSpec{NodeName: "a", ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim.Name}}, Containers: []corev1.Container{{Name: "main"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, followed := range []bool{true, false} {
		b := newTestbed()
		b.DRA = true
		if followed {
			b.follow(t)
		}
		b.cached.set(draNode("a"), sliceOf("a", 1, 10), pod.DeepCopy())
		expect := func(what string, want int64) {
			t.Helper()
			if got := replicasAsked(b.look(t).Indexed().Pod("team/holds")); got != want {
				t.Errorf("%s (followed: %v): it has %d replicas, want %d", what, followed, got, want)
			}
		}
		expect("the claim is not known", 0)
		b.cached.set(class, claim.DeepCopy())
		expect("the claim has come", 1)
		b.live.set(pod.DeepCopy())
		pods, err := b.PodsOn(t.Context(), "a")
		if err != nil || len(pods) != 1 || replicasAsked(&pods[0]) != 1 {
			t.Errorf("before a node is removed, its pods are %+v (%v)", pods, err)
		}
		b.cached.remove(claim)
		expect("the claim is gone", 0)
	}
}
