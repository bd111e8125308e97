package provisioning

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/snapshot"
)

// recordMismatches writes the nodes whose labels differ from the plan to the status of their GPUNodeClasses, so that they count after the nodes are gone.
func (c *Controller) recordMismatches(ctx context.Context, view *snapshot.View, classes []v1alpha1.GPUNodeClass) error {
	var errs []error
	for i := range classes {
		stored := &classes[i]
		found := view.NodeMismatches(stored)
		if equality.Semantic.DeepEqual(stored.Status.NodeMismatches, found) {
			continue
		}
		class := stored.DeepCopy()
		class.Status.NodeMismatches = found
		if err := c.Client.Status().Patch(ctx, class, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("writing the node mismatches of GPUNodeClass %s: %w", class.Name, err))
			continue
		}
		for _, m := range found {
			if m.Since.Time.Equal(view.Now().UTC()) {
				reason, differs := "NodeLabelsDiffer", fmt.Sprintf("the label %s of its node is %q instead of %q", m.Label, m.Actual, m.Expected)
				if m.Taint != "" {
					reason, differs = "NodeTainted", fmt.Sprintf("its node has the taint %s, which the NodePool does not have", m.Taint)
				}
				message := fmt.Sprintf("NodeClaim %s of NodePool %s: %s, so it does not admit the pods for which it was launched", m.NodeClaim, m.NodePool, differs)
				c.Recorder.Eventf(class, nil, corev1.EventTypeWarning, reason, "Check", "%s", plain.Shorten(message, plain.MaxNote))
				log.FromContext(ctx).Info("Node differs from the plan", "nodeClaim", klog.KRef("", m.NodeClaim), "nodePool", m.NodePool, "label", m.Label, "actual", m.Actual, "expected", m.Expected, "taint", m.Taint)
			}
		}
	}
	return errors.Join(errs...)
}
