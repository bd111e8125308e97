package reconcile

import (
	"testing"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

func TestOutdatedNodePoolHashIsUpdated(t *testing.T) {
	w := newWorld(t)
	np := w.shared("hash")
	annotate := func(hash, version string) func(*karpv1.NodeClaim) {
		return func(c *karpv1.NodeClaim) {
			c.Annotations[karpv1.NodePoolHashAnnotationKey], c.Annotations[karpv1.NodePoolHashVersionAnnotationKey] = hash, version
		}
	}
	old := w.claim("hash-old", np, annotate("1", "v1"))
	drifted := w.claim("hash-drifted", np, annotate("2", karpv1.NodePoolHashVersion))
	w.reconciles(w.poolController(), "")
	w.read(old)
	w.read(drifted)
	if got := old.Annotations; got[karpv1.NodePoolHashAnnotationKey] != np.Hash() || got[karpv1.NodePoolHashVersionAnnotationKey] != karpv1.NodePoolHashVersion {
		t.Errorf("the hash of an older version stays: %v", got)
	}
	if got := drifted.Annotations[karpv1.NodePoolHashAnnotationKey]; got != "2" {
		t.Errorf("the hash of a machine that has drifted was overwritten with %s", got)
	}
}
