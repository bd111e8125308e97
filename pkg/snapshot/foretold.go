package snapshot

import (
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/snapshot/records"
)

// foretold returns the labels that others write on a machine of the pool with the share.
func (p *Pool) foretold(t *catalog.InstanceType, share *v1alpha1.Share, least int64) nodelabels.Labels {
	return nodelabels.Of(&nodelabels.Node{
		Type: t.Name, Nitro: records.IsNitro(t), GPU: t.GPU, Resource: share.Resource, Least: min(least, share.Least), Most: share.Most,
		MPS: p.Class.Spec.Sharing.MPSSettings() != nodecontract.MPS{}, MIG: share.MIG, Slots: !share.Slots.IsZero(),
	})
}
