package snapshot

import (
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
)

// stockPool is the name of a NodePool of stock Karpenter that could serve the pod as well; "" when there is none. Karpenter counts whole
// GPUs, and what NodeOverlays add.
func (c *Cluster) stockPool(pod *corev1.Pod, gpu corev1.ResourceName) string {
	for i := range c.NodePools {
		if np := &c.NodePools[i]; !IsOurs(np) && c.stockServes(np, pod, gpu) {
			return np.Name
		}
	}
	return ""
}

func (c *Cluster) stockServes(np *karpv1.NodePool, pod *corev1.Pod, gpu corev1.ResourceName) bool {
	if np.Spec.Replicas != nil || !np.DeletionTimestamp.IsZero() || launchesNothing(np, gpu) ||
		scheduling.Taints(np.Spec.Template.Spec.Taints).Tolerates(pod.Spec.Tolerations) != nil {
		return false
	}
	pool := scheduling.NewNodeSelectorRequirementsWithMinValues(np.Spec.Template.Spec.Requirements...)
	pool.Add(scheduling.NewLabelRequirements(np.Spec.Template.Labels).Values()...)
	pool.Add(scheduling.NewRequirement(karpv1.NodePoolLabelKey, corev1.NodeSelectorOpIn, np.Name))
	for i := range c.InstanceTypes {
		t := &c.InstanceTypes[i]
		for _, o := range t.Offerings {
			labels := scheduling.NewLabelRequirements(t.Labels)
			labels.Add(scheduling.NewLabelRequirements(o.Labels).Values()...)
			if !c.admits(labels, pool) {
				continue
			}
			labels.Add(pool.Values()...)
			if c.stockCapacity(t, labels, gpu) < requests(pod, gpu).Replicas {
				continue
			}
			if fits(pod, nil, labels) == nil {
				return true
			}
		}
	}
	return false
}

// launchesNothing says that a limit of zero switches the pool off.
func launchesNothing(np *karpv1.NodePool, gpu corev1.ResourceName) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, limitNodes, gpu, v1alpha1.ResourceGPU} {
		if limit, ok := np.Spec.Limits[name]; ok && limit.IsZero() {
			return true
		}
	}
	return false
}

// stockCapacity is what stock Karpenter takes a machine to have of a GPU resource.
func (c *Cluster) stockCapacity(t *catalog.InstanceType, labels scheduling.Requirements, gpu corev1.ResourceName) int64 {
	var capacity int64
	if gpu == v1alpha1.ResourceGPU {
		capacity = t.GPU.Count
	}
	for i := range c.NodeOverlays {
		overlay := &c.NodeOverlays[i]
		wanted := scheduling.NewRequirements()
		for _, req := range overlay.Spec.Requirements {
			wanted.Add(scheduling.NewRequirement(req.Key, req.Operator, req.Values...))
		}
		if labels.Compatible(wanted) == nil {
			capacity = max(capacity, valueOf(overlay.Spec.Capacity, gpu))
		}
	}
	return capacity
}
