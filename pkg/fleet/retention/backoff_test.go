package retention_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/snapshot/records"
)

func TestBackoffDoublesUpToLimit(t *testing.T) {
	t.Parallel()
	var got []string
	for n := range 8 {
		got = append(got, retention.Backoff(n+1).String())
	}
	want := []string{"10m0s", "20m0s", "40m0s", "1h20m0s", "2h40m0s", "5h20m0s", "6h0m0s", "6h0m0s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for value, want := range map[string]int{"": 0, "x": 0, "-1": 0, "3": 3} {
		claim := &karpv1.NodeClaim{}
		claim.Annotations = map[string]string{v1alpha1.ReplacementFailuresAnnotation: value}
		if n := retention.Failures(&records.Machine{Claim: claim}); n != want {
			t.Errorf("%q is %d failures, want %d", value, n, want)
		}
	}
}
