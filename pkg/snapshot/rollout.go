package snapshot

import (
	"karve.sh/karve/pkg/apis/v1alpha1"
)

// Hold has machines stay that run an image which ran well before, while the rollout of their EC2NodeClass is paused: no machine is replaced for its image then.
func (c *Cluster) Hold(rollouts []v1alpha1.GPUImageRollout) {
	for i := range rollouts {
		r := &rollouts[i]
		state, ok := c.NodeClasses[r.Spec.NodeClassRef]
		if r.Spec.Promotion != v1alpha1.PromotionPaused || !ok || len(state.Images) == 0 {
			continue
		}
		for j := range r.Status.Good {
			for _, id := range r.Status.Good[j].IDs() {
				state.Images = append(state.Images, Image{ID: id})
			}
		}
		c.NodeClasses[r.Spec.NodeClassRef] = state
	}
}
