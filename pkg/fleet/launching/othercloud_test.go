package launching

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/clouds"
)

// TestRefusalsOfAnotherCloudAreUnderstood registers a cloud and changes nothing else. It is not parallel, because others read the list of clouds.
func TestRefusalsOfAnotherCloudAreUnderstood(t *testing.T) {
	all := clouds.All
	t.Cleanup(func() { clouds.All = all })
	const soldOut = "creating server: ErrSoldOut: no server of this kind is free"
	if got := Attribute(flexible, soldOut, aCloud); len(got) != 1 || got[0].Reason != v1alpha1.RefusalInsufficientCapacity {
		t.Fatalf("before it is registered: %+v", got)
	}
	clouds.All = slices.Concat(all, []*cloud.Provider{{
		NodeClass: schema.GroupKind{Group: "karpenter.tiny.example", Kind: "TinyNodeClass"},
		Errors:    []cloud.Error{{Text: "ErrSoldOut:", Reason: v1alpha1.RefusalNoAddresses}},
		Causes:    map[string]cloud.Cause{"ContractEnded": {Scope: cloud.AboutAccount, First: time.Hour, Most: 2 * time.Hour}},
	}})
	if got := Attribute(flexible, soldOut, aCloud); len(got) == 0 || got[0].Reason != v1alpha1.RefusalNoAddresses || len(got[0].Zones) != 2 {
		t.Errorf("an error of the cloud: %+v", got)
	}
	r := RefusalFor(flexible, "ContractEnded", "", aCloud)
	if r.Reason != "ContractEnded" || !pauses(r) {
		t.Errorf("a reason of the cloud: %+v", r)
	}
	if d := backoff(v1alpha1.RefusedOffering{Reason: r.Reason, Failures: 1}); d < time.Hour || d > 66*time.Minute {
		t.Errorf("it is avoided for %s", d)
	}
}
