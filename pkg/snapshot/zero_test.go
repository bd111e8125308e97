package snapshot_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// TestRequestOfZeroIsNoRequest checks that a pod with a request of zero, anywhere, is like a pod without one. Charts write such requests when GPUs are off.
func TestRequestOfZeroIsNoRequest(t *testing.T) {
	t.Parallel()
	zero := func(list func(*corev1.Pod) *corev1.ResourceList) func(string) func(*corev1.Pod) {
		return func(name string) func(*corev1.Pod) {
			return func(pod *corev1.Pod) {
				of := list(pod)
				with := of.DeepCopy()
				if with == nil {
					with = corev1.ResourceList{}
				}
				with[corev1.ResourceName(name)] = Amounts(name, "0")[corev1.ResourceName(name)]
				*of = with
			}
		}
	}
	initContainer := func(restart *corev1.ContainerRestartPolicy) func(*corev1.Pod) *corev1.ResourceList {
		return func(pod *corev1.Pod) *corev1.ResourceList {
			pod.Spec.InitContainers = []corev1.Container{{Name: "first", RestartPolicy: restart}}
			return &pod.Spec.InitContainers[0].Resources.Requests
		}
	}
	places := map[string]func(string) func(*corev1.Pod){
		"requests":       zero(func(pod *corev1.Pod) *corev1.ResourceList { return &pod.Spec.Containers[0].Resources.Requests }),
		"limits":         zero(func(pod *corev1.Pod) *corev1.ResourceList { return &pod.Spec.Containers[0].Resources.Limits }),
		"init container": zero(initContainer(nil)),
		"sidecar":        zero(initContainer(new(corev1.ContainerRestartPolicyAlways))),
	}
	for _, resource := range []string{v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPU, "nvidia.com/mig-1g.5gb", "nvidia.com/gpu-2gb"} {
		for place, mention := range places {
			t.Run(resource+" in "+place, func(t *testing.T) {
				t.Parallel()
				c := Shared()
				c.NodeClaims = []karpv1.NodeClaim{Claim("m", &c.NodePools[0], TypeNamed("g4dn.xlarge"), Initialized(Now))}
				c.Nodes = []corev1.Node{Node(&c.NodeClaims[0], TypeNamed("g4dn.xlarge"), 10)}
				running := Pod("cpu-only", Asking("cpu", "1"), mention(resource), Running(c.Nodes[0].Name), OwnedBy("apps/v1", "ReplicaSet", "r"))
				waiting := Pod("waits", Asking("cpu", "1"), mention(resource))
				c.Pods = []corev1.Pod{running, waiting}
				m := &records.Machines(c)[0]
				if !facts.IsForeign(&running) || !m.NoReplicasHeld() || len(m.Moving()) != 0 || len(m.ForeignPods()) != 1 {
					t.Errorf("foreign %t, no replicas held %t, %d pods move, %d are foreign", facts.IsForeign(&running), m.NoReplicasHeld(), len(m.Moving()), len(m.ForeignPods()))
				}
				if ask := facts.GPURequestOf(&running); ask != (facts.GPURequest{}) || facts.Waits(&waiting) {
					t.Errorf("it requests %+v, and waits: %t", ask, facts.Waits(&waiting))
				}
				if v := snapshot.Build(c); len(v.Classes) != 0 {
					t.Errorf("it is planned: %+v", v.Classes)
				}
			})
		}
	}
}
