package gather

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot/facts"
)

// TestKindsAreThoseThatAreServedAndWanted serves two versions of PodGroups, CapacityBuffers, and DeviceTaintRules in a version that is not read.
func TestKindsAreThoseThatAreServedAndWanted(t *testing.T) {
	t.Parallel()
	groups := schema.GroupVersion{Group: string(facts.KubernetesGroups), Version: "v1beta1"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{groups, {Group: groups.Group, Version: "v1alpha3"}, {Group: karpenter.CapacityBufferKind.Group, Version: "v1beta1"}})
	taintRule := draKind("DeviceTaintRule").GroupKind()
	for _, kind := range []schema.GroupVersionKind{
		{Group: groups.Group, Version: "v1alpha3", Kind: "PodGroup"},
		groups.WithKind("PodGroup"),
		karpenter.CapacityBufferKind.WithVersion("v1beta1"),
		draKind("ResourceSlice"),
		taintRule.WithVersion("v1alpha3"),
	} {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	kinds, missing, err := KindsOf(mapper, published.DefaultSettings().Reads)
	if err != nil || !kinds.CapacityBuffers || kinds.ProvisioningRequests || kinds.NodeOverlays || !kinds.DRA || kinds.NoDRA || kinds.DeviceTaintRules ||
		!slices.Equal(kinds.PodGroups, []schema.GroupVersionKind{groups.WithKind("PodGroup")}) {
		t.Errorf("they are %+v, %v", kinds, err)
	}
	for _, want := range []schema.GroupVersionKind{provreq.Kind, draKind("DeviceTaintRule"), facts.VolcanoGroups.PodGroupKind().WithVersion("")} {
		if !slices.Contains(missing, want) {
			t.Errorf("%s is not among the missing kinds %v", want, missing)
		}
	}
	kinds, missing, err = KindsOf(mapper, published.Reads{})
	if err != nil || kinds.CapacityBuffers || kinds.DRA || !kinds.NoDRA || slices.Contains(missing, provreq.Kind) {
		t.Errorf("a controller that reads none of them: %+v, it misses %v, %v", kinds, missing, err)
	}
}
