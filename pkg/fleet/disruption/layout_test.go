package disruption

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// on adds a machine of the type that runs the given number of pods.
func (s *simulation) on(instanceType string, pods int) {
	s.made++
	kind := snapshottest.TypeNamed(instanceType)
	claim := snapshottest.Claim(fmt.Sprintf("machine-%04d", s.made), &s.cluster.NodePools[0], kind, snapshottest.Initialized(s.cluster.Now))
	node := snapshottest.Node(&claim, kind, perXlarge*kind.GPU.Count)
	s.cluster.NodeClaims, s.cluster.Nodes = append(s.cluster.NodeClaims, claim), append(s.cluster.Nodes, node)
	for range pods {
		s.again(snapshottest.Pod("", snapshottest.OwnedBy("apps/v1", "ReplicaSet", "web")))
		snapshottest.Running(node.Name)(&s.cluster.Pods[len(s.cluster.Pods)-1])
	}
}

func TestConsolidationReachesCheapestLayout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		types   []string
		pods    []int
		budget  int
		restart string
		want    planner.MicroUSD
	}{
		"two half-empty machines become one":                            {[]string{"xlarge", "xlarge"}, []int{5, 5}, 1, "", 526_000},
		"four half-empty machines become two, one by one":               {[]string{"xlarge", "xlarge", "xlarge", "xlarge"}, []int{5, 5, 5, 5}, 1, "", 1_052_000},
		"four half-empty machines become two at once within the budget": {[]string{"xlarge", "xlarge", "xlarge", "xlarge"}, []int{5, 5, 5, 5}, 4, "", 1_052_000},
		"an oversized machine is replaced":                              {[]string{"4xlarge"}, []int{3}, 1, "", 526_000},
		"one large machine becomes two small ones":                      {[]string{"12xlarge"}, []int{11}, 1, "", 1_052_000},
		"a large machine beside others is split":                        {[]string{"12xlarge", "xlarge"}, []int{30, 3}, 1, "", 4 * 526_000},
		"a step that saves its restarts within a day is taken":          {[]string{"2xlarge"}, []int{10}, 1, "0.5", 526_000},
		"a step that does not save its restarts in a day is not taken":  {[]string{"2xlarge"}, []int{10}, 1, "0.55", 752_000},
		"the fewest pods move if moves are free":                        {[]string{"xlarge", "xlarge"}, []int{2, 3}, 2, "0", 526_000},
		"a full machine stays":                                          {[]string{"xlarge"}, []int{10}, 1, "0", 526_000},
		"nothing moves with a zero budget":                              {[]string{"xlarge", "xlarge"}, []int{5, 5}, 0, "", 1_052_000},
		"an empty expensive machine goes without receiving pods":        {[]string{"12xlarge", "2xlarge"}, []int{0, 3}, 1, "", 526_000},
		"pods move to an empty cheaper machine":                         {[]string{"xlarge", "2xlarge"}, []int{0, 3}, 1, "", 526_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSimulation(t, 0, c.budget, true, true)
			if c.restart != "" {
				s.cluster.GPUNodeClasses[0].Spec.Consolidation.RestartCost = c.restart
			}
			for i, size := range c.types {
				s.on("g4dn."+size, c.pods[i])
			}
			s.cluster.Now = s.cluster.Now.Add(13 * time.Hour)
			n := len(s.cluster.Pods)
			if !s.settles() {
				t.Fatalf("the simulation does not settle:\n%s", s)
			}
			if got := s.price(); got != c.want || len(s.cluster.Pods) != n {
				t.Fatalf("ends at %d with %d pods, want %d with %d:\n%s", got, len(s.cluster.Pods), c.want, n, s)
			}
		})
	}
}

func TestConsolidationPolicyDecidesWhetherPodsMove(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		disruption karpv1.Disruption
		want       planner.MicroUSD
	}{
		"defaults move pods":                  {karpv1.Disruption{ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized, ConsolidateAfter: karpv1.MustParseNillableDuration("0s")}, 526_000},
		"WhenEmpty keeps pods":                {karpv1.Disruption{ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmpty, ConsolidateAfter: karpv1.MustParseNillableDuration("0s")}, 1_052_000},
		"Never keeps pods":                    {karpv1.Disruption{ConsolidateAfter: karpv1.MustParseNillableDuration("Never")}, 1_052_000},
		"a long consolidateAfter keeps pods":  {karpv1.Disruption{ConsolidateAfter: karpv1.MustParseNillableDuration("720h")}, 1_052_000},
		"a short consolidateAfter moves pods": {karpv1.Disruption{ConsolidateAfter: karpv1.MustParseNillableDuration("30s")}, 526_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSimulation(t, 0, 2, true, true)
			budgets := s.cluster.NodePools[0].Spec.Disruption.Budgets
			s.cluster.NodePools[0].Spec.Disruption = c.disruption
			s.cluster.NodePools[0].Spec.Disruption.Budgets = budgets
			s.on("g4dn.xlarge", 5)
			s.on("g4dn.xlarge", 5)
			if !s.settles() {
				t.Fatalf("the simulation does not settle:\n%s", s)
			}
			if got := s.price(); got != c.want {
				t.Errorf("ends at %d, want %d:\n%s", got, c.want, s)
			}
		})
	}
}

// While a pool is probed, it may launch one machine.
func TestConsolidationOfProbedPoolLaunchesAtMostOneMachine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		types []string
		pods  []int
		want  planner.MicroUSD
	}{
		"two half-empty machines become one":             {[]string{"xlarge", "xlarge"}, []int{5, 5}, 526_000},
		"an oversized machine is replaced":               {[]string{"4xlarge"}, []int{3}, 526_000},
		"a machine that needs two replacements stays":    {[]string{"12xlarge"}, []int{11}, 3_912_000},
		"a machine is split if another takes the rest":   {[]string{"12xlarge", "xlarge"}, []int{11, 9}, 2 * 526_000},
		"two oversized machines are replaced one by one": {[]string{"4xlarge", "4xlarge"}, []int{10, 10}, 2 * 526_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSimulation(t, 0, 2, true, true)
			s.cluster.NodePools[0].StatusConditions().SetUnknownWithReason(v1alpha1.ConditionReplicasHealthy, "Probing", "")
			for i, size := range c.types {
				s.on("g4dn."+size, c.pods[i])
			}
			if !s.settles() {
				t.Fatalf("the simulation does not settle:\n%s", s)
			}
			if got := s.price(); got != c.want {
				t.Errorf("ends at %d, want %d:\n%s", got, c.want, s)
			}
		})
	}
}

// Otherwise the machine would be replaced again and again: the cloud may be out of the cheapest type and launch another one that the NodeClaim permits.
func TestConsolidationAllowsForPremiumOfFlexibleClaims(t *testing.T) {
	t.Parallel()
	for premium, want := range map[int32]planner.MicroUSD{42: 526_000, 43: 752_000} {
		s := newSimulation(t, 0, 1, true, true)
		s.cluster.GPUNodeClasses[0].Spec.Launch.MaxPremiumPercent = &premium
		s.on("g4dn.2xlarge", 3)
		if !s.settles() {
			t.Fatalf("the simulation does not settle:\n%s", s)
		}
		if got := s.price(); got != want {
			t.Errorf("where machines may be %d%% dearer it ends at %d, want %d:\n%s", premium, got, want, s)
		}
	}
}

func TestOnlyMachineIsNotSurplus(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, 0, 1, true, true)
	s.cluster.GPUNodeClasses[0].Spec.Consolidation.RestartCost = "1"
	s.on("g4dn.2xlarge", 6)
	s.cluster.Now = s.cluster.Now.Add(time.Hour)
	view := snapshot.Build(s.cluster)
	layout := layout.Build(&view, nil, func(*records.Machine) string { return "" })
	if out := propose(&layout, solve.Solver{}); len(out.Surplus) > 0 {
		t.Errorf("%v is surplus", out.Surplus)
	}
}

// Otherwise Karve would launch a machine for the headroom and then remove it as surplus.
func TestConsolidationKeepsHeadroom(t *testing.T) {
	t.Parallel()
	for replicas, want := range map[int32]planner.MicroUSD{1: 1_578_000, 10: 1_578_000, 11: 2_104_000, 0: 1_052_000} {
		s := newSimulation(t, 0, 4, true, true)
		if replicas > 0 {
			s.cluster.GPUNodeClasses[0].Spec.Headroom = []v1alpha1.Headroom{{Replicas: replicas}}
		}
		for range 4 {
			s.on("g4dn.xlarge", 5)
		}
		if !s.settles() {
			t.Fatalf("the simulation does not settle:\n%s", s)
		}
		if got := s.price(); got != want {
			t.Errorf("with %d replicas to be kept free the machines cost %d, want %d:\n%s", replicas, got, want, s)
		}
	}
}

// alive returns the number of pods that are not terminating. A pod that was handed over may still terminate after its machine was kept after all.
func (s *simulation) alive() int {
	return len(slices.DeleteFunc(slices.Clone(s.cluster.Pods), func(p corev1.Pod) bool { return !p.DeletionTimestamp.IsZero() }))
}

// TestConsolidationNeverRaisesCost checks that, whichever pods leave, all remaining pods run in the end, the machines cost no more than before, and no step
// remains that would save money.
func TestConsolidationNeverRaisesCost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newSimulation(t, rapid.IntRange(0, 40).Draw(t, "pods"), rapid.IntRange(1, 4).Draw(t, "budget"), rapid.Bool().Draw(t, "mixed"), true)
		if !s.settles() {
			t.Fatalf("the pods do not start:\n%s", s)
		}
		s.leave(rapid.IntRange(1, 9).Draw(t, "tenths"))
		before, pods := s.price(), s.alive()
		if !s.settles() {
			t.Fatalf("the simulation does not settle:\n%s", s)
		}
		if after := s.price(); after > before || s.alive() != pods {
			t.Fatalf("%d for %d pods becomes %d for %d:\n%s", before, pods, after, s.alive(), s)
		}
		view := snapshot.Build(s.cluster)
		layout := layout.Build(&view, nil, func(*records.Machine) string { return "" })
		for _, p := range propose(&layout, solve.Solver{Effort: simulatedEffort}).Proposals {
			if len(p.Claims) > s.budget {
				continue
			}
			if saving, why := newWhatIf(&view, retention.NewOtherNodes(s.cluster), nil, always).saves(nil, p); why == "" {
				t.Fatalf("removing the machines would still save %s: %s\n%s", usd(saving), p, s)
			}
		}
	})
}

func TestSurplusTaint(t *testing.T) {
	t.Parallel()
	leaving := func(m *records.Machine) {
		replacingFor(time.Minute)(m)
		m.Claim.Annotations[v1alpha1.ReplacingAnnotation] = "Underutilized"
	}
	full := func(m *records.Machine) {
		busy(m)
		m.Node.Status.Allocatable[v1alpha1.ResourceGPUShared] = resource.MustParse("1")
	}
	for name, c := range map[string]struct {
		machines []records.Machine
		surplus  string
		want     string
	}{
		"a surplus machine gets the taint":                           {list(machine("a", busy), machine("b", busy)), "a", "a"},
		"a machine that is no longer surplus loses the taint":        {list(machine("a", busy, steeredFrom), machine("b", busy)), "", "a"},
		"a machine marked by consolidation gets the taint":           {list(machine("a", busy, leaving), machine("b", busy)), "", "a"},
		"other machines get the taint while pods move":               {list(machine("a", busy, leaving, steeredFrom, withTaint), machine("b", busy), machine("wanted", busy), machine("full", full)), "", "b"},
		"the taint is removed once pods have moved":                  {list(machine("b", busy, steeredFrom), machine("wanted", busy)), "", "b"},
		"a drifted machine gets no taint":                            {list(machine("a", busy, replacingFor(0)), machine("b", busy)), "", ""},
		"other machines get the taint once a drifted machine drains": {list(machine("a", busy, replacingFor(0), withTaint), machine("b", busy), machine("wanted", busy)), "", "b"},
		"a deleted machine changes nothing":                          {list(machine("a", busy, leaving, withTaint, deleting), machine("b", busy, steeredFrom)), "", ""},
		"a foreign taint on an empty machine is removed":             {list(machine("a", steeredFrom)), "", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := given(c.machines...)
			for _, m := range s.machines {
				m.Surplus, m.Wanted = m.Claim.Name == c.surplus, m.Claim.Name == "wanted"
			}
			if got := strings.Join(s.toSteer(), " "); got != c.want {
				t.Errorf("the taint changes on %q, want %q", got, c.want)
			}
		})
	}
}

func TestFullMachinesAreNotSurplus(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, 0, 1, true, true)
	for range 10 {
		s.on("g4dn.xlarge", 10)
	}
	s.cluster.Now = s.cluster.Now.Add(time.Hour)
	view := snapshot.Build(s.cluster)
	layout := layout.Build(&view, nil, func(*records.Machine) string { return "" })
	if out := propose(&layout, solve.Solver{}); len(out.Surplus) > 0 || len(out.Proposals) > 0 {
		t.Errorf("%d full machines are surplus, and steps are %v", len(out.Surplus), out.Proposals)
	}
}

// A pod that is ending needs no place, so the machine would go at no cost. But its GPUNodeClass says how long it may be unused.
func TestMachineWhosePodsEndIsInNoStep(t *testing.T) {
	t.Parallel()
	for _, idleAfter := range []string{"1h", v1alpha1.IdleNever} {
		s := newSimulation(t, 0, 1, true, true)
		s.cluster.GPUNodeClasses[0].Spec.Consolidation.IdleAfter = idleAfter
		s.on("g4dn.xlarge", 10)
		s.on("g4dn.xlarge", 10)
		s.cluster.Now = s.cluster.Now.Add(13 * time.Hour)
		for i := range s.cluster.Pods[:10] {
			s.cluster.Pods[i].DeletionTimestamp = &metav1.Time{Time: s.cluster.Now}
		}
		view := snapshot.Build(s.cluster)
		layout := layout.Build(&view, nil, func(*records.Machine) string { return "" })
		if out := propose(&layout, solve.Solver{}); len(out.Proposals) > 0 {
			t.Errorf("with idleAfter %s, steps are %v", idleAfter, out.Proposals)
		}
	}
}

// allMarked returns a pass over the given number of machines with half of their replicas in use. All of them are marked, because the others would cost less
// without them.
func allMarked(t *testing.T, machines int) *pass {
	t.Helper()
	s := newSimulation(t, 0, 1, true, true)
	for range machines {
		s.on("g4dn.xlarge", 2)
	}
	for i := range s.cluster.NodeClaims {
		s.cluster.NodeClaims[i].Annotations[v1alpha1.ReplacingAnnotation] = "Underutilized"
	}
	return passOf(s.cluster)
}

func TestVerdictsOnMarksNeedFewPlans(t *testing.T) {
	t.Parallel()
	s := allMarked(t, 10)
	known := s.whatIf.(*whatIf).known
	found := s.standing(verdicts{}, func() bool { return false })
	fell := 10 - len(found.stand)
	// Each rejected mark causes the remaining ones to be checked again.
	if plans := len(known); plans > 11*(fell+1) || len(found.stand) == 0 {
		t.Errorf("%d plans for 10 marks, %d of which are rejected", plans, fell)
	}
}

func TestMarksLeftForLackOfTimeAreCheckedInLaterPasses(t *testing.T) {
	t.Parallel()
	s := allMarked(t, 10)
	want := s.standing(verdicts{}, func() bool { return false })
	found, judged := verdicts{}, map[string]bool{}
	for range 10 * 10 { // There are ten marks, and each may cause all others to be checked again.
		found = s.standing(found, func() bool { return true })
		for name, cause := range found.stand {
			judged[name] = judged[name] || *cause != *reason.Cheaper(0, 1)
		}
	}
	for name := range found.stand {
		if !judged[name] {
			t.Errorf("%s was never judged", name)
		}
	}
	if len(found.stand) < len(want.stand) || len(found.stand) == 0 {
		t.Errorf("%d marks stand, %d where all are judged at once", len(found.stand), len(want.stand))
	}
}
