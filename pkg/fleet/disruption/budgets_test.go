package disruption

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// The current time in these tests is a Sunday at 12:00 UTC.
func TestBudgetsApplyByReasonAndSchedule(t *testing.T) {
	t.Parallel()
	const most = 1<<31 - 1
	hour := &metav1.Duration{Duration: time.Hour}
	only := func(reasons ...karpv1.DisruptionReason) []karpv1.DisruptionReason { return reasons }
	for name, c := range map[string]struct {
		budgets                                  []karpv1.Budget
		empty, drifted, underutilized, unhealthy int
	}{
		"none":                                 {nil, most, most, most, most},
		"a number":                             {[]karpv1.Budget{{Nodes: "3"}}, 3, 3, 3, 3},
		"a percentage, rounded up":             {[]karpv1.Budget{{Nodes: "25%"}}, 2, 2, 2, 2},
		"the least of several":                 {[]karpv1.Budget{{Nodes: "3"}, {Nodes: "1"}}, 1, 1, 1, 1},
		"for idle nodes":                       {[]karpv1.Budget{{Nodes: "0", Reasons: only(karpv1.DisruptionReasonEmpty)}}, 0, most, most, most},
		"for drifted nodes":                    {[]karpv1.Budget{{Nodes: "0", Reasons: only(karpv1.DisruptionReasonDrifted)}}, most, 0, most, most},
		"for underutilized nodes":              {[]karpv1.Budget{{Nodes: "0", Reasons: only(karpv1.DisruptionReasonUnderutilized)}}, most, most, 0, most},
		"for unhealthy nodes":                  {[]karpv1.Budget{{Nodes: "0", Reasons: only(karpv1.DisruptionReasonUnhealthy)}}, most, most, most, 0},
		"while a schedule holds":               {[]karpv1.Budget{{Nodes: "0", Schedule: new("30 11 * * sun"), Duration: hour}}, 0, 0, 0, 0},
		"not before a schedule begins":         {[]karpv1.Budget{{Nodes: "0", Schedule: new("1 12 * * *"), Duration: hour}}, most, most, most, most},
		"not after the duration of a schedule": {[]karpv1.Budget{{Nodes: "0", Schedule: new("59 10 * * *"), Duration: hour}}, most, most, most, most},
		"an invalid schedule":                  {[]karpv1.Budget{{Nodes: "5", Schedule: new("0 25 * * *"), Duration: hour}}, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := snapshottest.Shared()
			pool, kind := &cluster.NodePools[0], snapshottest.TypeNamed("g4dn.xlarge")
			pool.Spec.Disruption.Budgets = c.budgets
			for _, name := range []string{"a", "b", "c", "d", "e"} {
				claim := snapshottest.Claim(name, pool, kind, snapshottest.Initialized(now.Add(-time.Hour)))
				cluster.NodeClaims, cluster.Nodes = append(cluster.NodeClaims, claim), append(cluster.Nodes, snapshottest.Node(&claim, kind, 10))
			}
			s := passOf(cluster)
			want := map[karpv1.DisruptionReason]int{
				karpv1.DisruptionReasonEmpty: c.empty, karpv1.DisruptionReasonDrifted: c.drifted, karpv1.DisruptionReasonUnderutilized: c.underutilized,
				karpv1.DisruptionReasonUnhealthy: c.unhealthy,
			}
			if diff := cmp.Diff(want, s.pools[pool.Name].Budgets); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
