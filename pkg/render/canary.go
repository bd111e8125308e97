package render

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot"
)

// canaryGrace is how long a canary node may drain. It runs no workloads.
const canaryGrace = time.Minute

// CheckRequests returns the CPU and memory that the pod requests which checks the GPU of a canary node. It also requests one replica.
func CheckRequests() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi")}
}

// Canary returns the NodeClaim of a machine that tests an image. It is like any other machine of the pool, so that the test result also holds for them,
// except for its node class, a taint that keeps pods off, and its lifetime, after which Karpenter deletes it even if Karve does not run.
func Canary(pool *snapshot.Pool, o *snapshot.Offering, rollout *v1alpha1.GPUImageRollout, name string, lifetime time.Duration) *karpv1.NodeClaim {
	template := pool.NodePool.Spec.Template.DeepCopy()
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      labels(pool.NodePool, pool.Class.Name, o),
			Annotations: annotations(pool, o, o.Type.GPU.Count, o.Share.Least, o.CanarySlots(), nil),
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef:  &karpv1.NodeClassReference{Group: pool.Class.Spec.NodeClassRef.Group, Kind: pool.Class.Spec.NodeClassRef.Kind, Name: name},
			Requirements:  requirements(pool, o, nil),
			Taints:        append(template.Spec.Taints, corev1.Taint{Key: v1alpha1.CanaryTaintKey, Effect: corev1.TaintEffectNoSchedule}),
			StartupTaints: template.Spec.StartupTaints,
			Resources:     karpv1.ResourceRequirements{Requests: canaryRequests(o)},
			ExpireAfter:   karpv1.NillableDuration{Duration: &lifetime},

			TerminationGracePeriod: &metav1.Duration{Duration: canaryGrace},
		},
	}
	claim.Labels[v1alpha1.CanaryLabel] = rollout.Name
	return claim
}

func canaryRequests(o *snapshot.Offering) corev1.ResourceList {
	check := CheckRequests()
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(amount.Add(o.Daemons.MilliCPU, amount.Milli(*check.Cpu())), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(amount.Add(o.Daemons.MemoryBytes, amount.Value(*check.Memory())), resource.BinarySI),
	}
}
