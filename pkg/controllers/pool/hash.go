package pool

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/snapshot/records"
)

// updateHashes writes the hash of the pool's template to NodeClaims that have a hash of another version. Hashes of two versions cannot be compared, so
// a machine of an older release would otherwise never drift. Like Karpenter for its own pools, Karve assumes that such a machine is up to date.
func (c *Controller) updateHashes(ctx context.Context, pool *karpv1.NodePool, machines []records.Machine) error {
	var errs []error
	for i := range machines {
		stored := machines[i].Claim
		if stored.Annotations[karpv1.NodePoolHashVersionAnnotationKey] == karpv1.NodePoolHashVersion || !stored.DeletionTimestamp.IsZero() {
			continue
		}
		claim := stored.DeepCopy()
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, karpv1.NodePoolHashAnnotationKey, pool.Hash())
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, karpv1.NodePoolHashVersionAnnotationKey, karpv1.NodePoolHashVersion)
		if err := c.Client.Patch(ctx, claim, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("writing the NodePool hash on NodeClaim %s: %w", claim.Name, err))
		}
	}
	return errors.Join(errs...)
}
