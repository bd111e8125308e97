package drift

import (
	"slices"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
)

// AcceptGoodImages adds the images in status.good of paused rollouts to their node classes, so that no machine is replaced because it runs one of them.
func AcceptGoodImages(c *facts.Cluster, rollouts []v1alpha1.GPUImageRollout) {
	for i := range rollouts {
		r := &rollouts[i]
		state, ok := c.NodeClasses[r.Spec.NodeClassRef]
		if r.Spec.Promotion != v1alpha1.PromotionPaused || !ok || len(state.Images) == 0 {
			continue
		}
		for j := range r.Status.Good {
			for _, id := range r.Status.Good[j].IDs() {
				state.Images = append(slices.Clip(state.Images), facts.Image{ID: id})
			}
		}
		c.NodeClasses[r.Spec.NodeClassRef] = state
	}
}
