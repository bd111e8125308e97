package snapshot_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// limitedTo returns a cluster with machines of the given types, which were created one after the other, and a discount of half up to a limit.
func limitedTo(upTo prices.UpTo, types ...string) *facts.Cluster {
	c := Shared()
	c.UsePrices(prices.NewBook(nil, []prices.Rule{{
		Name: "plan", PriceAdjustment: "-50%", UpTo: &upTo,
		Requirements: []karpv1alpha1.NodeSelectorRequirement{{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"on-demand"}}},
	}}))
	c.NodePools[0].Spec.Template.Spec.Requirements = append(c.NodePools[0].Spec.Template.Spec.Requirements,
		Require(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge", "g4dn.2xlarge"),
		Require(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "on-demand"))
	for i, name := range types {
		// The first machine by name is the youngest.
		claim := Claim(string(rune('a'+i)), &c.NodePools[0], TypeNamed(name))
		claim.CreationTimestamp.Time = Now.Add(-time.Duration(i) * time.Minute)
		c.NodeClaims = append(c.NodeClaims, claim)
	}
	return c
}

func TestRunningMachinesUseUpLimitsOfPrices(t *testing.T) {
	t.Parallel()
	n := func(n int64) prices.UpTo { return prices.UpTo{Machines: &n} }
	usd := func(usd string) prices.UpTo { return prices.UpTo{USDPerHour: usd} }
	for name, tc := range map[string]struct {
		cluster *facts.Cluster
		left    int64
		prices  []int64
	}{
		"none runs":                    {limitedTo(n(3)), 3, nil},
		"one of three":                 {limitedTo(n(3), "g4dn.xlarge"), 2, []int64{263_000}},
		"the oldest first":             {limitedTo(n(1), "g4dn.xlarge", "g4dn.2xlarge"), 0, []int64{526_000, 376_000}},
		"dollars":                      {limitedTo(usd("1"), "g4dn.xlarge", "g4dn.2xlarge"), 361_000, []int64{263_000, 376_000}},
		"a machine too large for it":   {limitedTo(usd("0.3"), "g4dn.xlarge", "g4dn.2xlarge"), 37_000, []int64{263_000, 752_000}},
		"a limit lower than what runs": {limitedTo(usd("0.000001"), "g4dn.xlarge"), 1, []int64{526_000}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			view := snapshot.Build(tc.cluster)
			if want := []planner.Stock{{Name: "plan", Left: tc.left}}; !slices.Equal(view.Stocks, want) {
				t.Errorf("the stocks are %v, want %v", view.Stocks, want)
			}
			var got []int64
			for _, m := range records.Machines(tc.cluster) {
				got = append(got, m.MicroUSDPerHour())
			}
			if !slices.Equal(got, tc.prices) {
				t.Errorf("the machines cost %v, want %v", got, tc.prices)
			}
		})
	}
}

func TestPlanBuysWithinLimitsOfPrices(t *testing.T) {
	t.Parallel()
	two := int64(2)
	c := limitedTo(prices.UpTo{Machines: &two}, "g4dn.xlarge")
	c.Pods = Pods("web", 30, Asking("cpu", "1", v1alpha1.ResourceGPUShared, "1"))
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil {
		t.Fatal(err)
	}
	limited := 0
	for _, l := range plan.Launches {
		limited += len(view.Snapshot.Offerings[l.Offering].Draws)
	}
	if limited != 1 || len(plan.Unplaced) > 0 || len(plan.Launches) < 2 {
		t.Errorf("%d of %d machines are launched within the limit, want 1: %v", limited, len(plan.Launches), plan)
	}
}

// Otherwise a plan in progress would use up a limit again that its machines have used up already.
func TestEarlierLaunchKeepsItsPrice(t *testing.T) {
	t.Parallel()
	one := int64(1)
	c := limitedTo(prices.UpTo{Machines: &one})
	c.Pods = Pods("web", 30, Asking("cpu", "1", v1alpha1.ResourceGPUShared, "1"))
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	launches, _ := view.PlannedLaunches(plan)
	later := snapshot.Build(c)
	earlier := later.Earlier(launches)
	var before, after []int
	for _, l := range plan.Launches {
		before = append(before, l.Offering)
	}
	for _, l := range earlier.Launches {
		after = append(after, l.Offering)
	}
	slices.Sort(before)
	slices.Sort(after)
	if !slices.Equal(before, after) {
		t.Errorf("the plan launches %v, and later %v", before, after)
	}
}
