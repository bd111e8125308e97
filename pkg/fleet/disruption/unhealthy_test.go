package disruption

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/records"
)

func replacingAs(reason string) func(*records.Machine) {
	return func(m *records.Machine) {
		replacingFor(time.Minute)(m)
		m.Claim.Annotations[v1alpha1.ReplacingAnnotation] = reason
	}
}

// setDiagnosis sets a diagnosis and then chooses the candidates.
func setDiagnosis(s *pass, d repair.Diagnosis) {
	for _, m := range s.machines {
		if found, ok := d.Cases[m.Claim.Name]; ok {
			m.Health = &found
		}
	}
	s.choose()
}

func hurriedAt(at string) func(*records.Machine) {
	return onClaim(karpv1.NodeClaimTerminationTimestampAnnotationKey, at)
}

func TestDecideStepsOfUnhealthyMachine(t *testing.T) {
	t.Parallel()
	gentle := repair.Case{Fault: repair.Fault{Reason: "AcceleratedHardwareReady", Message: "a GPU is lost"}}
	forced := repair.Case{Fault: repair.Fault{Reason: "Ready", Message: "nobody hears of it", Forceful: true}}
	tolerated := func(c repair.Case) repair.Case { c.Wait = 20 * time.Second; return c }
	kept := func(c repair.Case) repair.Case { c.Kept = "too many are"; return c }
	for name, c := range map[string]struct {
		machine   records.Machine
		unhealthy repair.Case
		change    func(*pass)
		want      string
		reason    string
	}{
		"an unhealthy machine is marked":                         {machine("a", busy), gentle, nil, "Replace a", reason.Unhealthy},
		"an unhealthy machine that pending pods need is marked":  {machine("a", busy), gentle, wanted, "Replace a", reason.Unhealthy},
		"the budget for drift does not matter":                   {machine("a", busy), gentle, closed, "Replace a", reason.Unhealthy},
		"a machine within its toleration is left alone":          {machine("a", busy), tolerated(gentle), nil, "", ""},
		"a machine that just became unhealthy is checked again":  {machine("a", busy), gentle, unsteady, "", ""},
		"a kept machine reports why":                             {machine("a", busy), kept(gentle), nil, "Stay a", "too many are"},
		"do-not-disrupt keeps a machine":                         {machine("a", busy, protected), gentle, nil, "Stay a", karpv1.DoNotDisruptAnnotationKey},
		"a pod keeps a machine":                                  {machine("a", busy), gentle, blocks, "Stay a", "pod x"},
		"a bounded drain overrides the pod":                      {machine("a", busy), gentle, with(blocks, forceful), "Replace a", ""},
		"a machine whose pods fit nowhere stays":                 {machine("a", busy), gentle, unplanned, "Stay a", "no room"},
		"a marked machine is tainted once its pods have a place": {machine("a", busy, replacingAs(reason.Unhealthy)), gentle, nil, "Taint a", ""},
		"a settled machine is held if too many are unhealthy":    {machine("a", busy, replacingAs(reason.Unhealthy), withTaint, tainting(settle)), kept(gentle), nil, "Hold a", "too many are"},
		"a recovered machine stays":                              {machine("a", busy, replacingAs(reason.Unhealthy), withTaint, tainting(settle)), tolerated(gentle), unknown, "Stop a", "well"},

		"an unreachable machine is deleted at once":                   {machine("a", busy), forced, nil, "Force a", "nobody hears of it"},
		"a machine that is not ready does not use the budget":         {machine("a", busy, silent), gentle, repairing(1), "Replace a", ""},
		"nor does it once it is marked":                               {machine("a", busy, silent, replacingAs(reason.Unhealthy)), gentle, repairing(1), "Taint a", ""},
		"a budget of 0 keeps an unreachable machine":                  {machine("a", busy), forced, repairing(0), "Stay a", "allow 0"},
		"a budget of 0 does not keep one that is being deleted":       {machine("a", busy, deleting), forced, repairing(0), "Force a", ""},
		"an unreachable machine whose NodePool is gone is deleted":    {machine("a", busy), forced, func(s *pass) { s.pools["gpu"].Budgets = nil }, "Force a", ""},
		"a budget of 0 keeps an unhealthy machine":                    {machine("a", busy), gentle, repairing(0), "Stay a", "allow 0"},
		"protections do not keep an unreachable machine":              {machine("a", busy, protected), forced, with(blocks, closed, shut), "Force a", ""},
		"an unreachable machine marked for another reason is deleted": {machine("a", busy, replacingAs("NodePoolDrifted"), withTaint, tainting(settle)), forced, nil, "Force a", ""},
		"an unreachable machine within its toleration stays":          {machine("a", busy, protected), tolerated(forced), nil, "", ""},
		"an unreachable machine stays if too many are unhealthy":      {machine("a", busy), kept(forced), nil, "Stay a", "too many are"},
		"a draining unreachable machine is forced":                    {machine("a", busy, deleting), forced, nil, "Force a", ""},
		"a draining machine with a later deadline is forced":          {machine("a", busy, deleting, hurriedAt(ago(-time.Hour))), forced, nil, "Force a", ""},
		"a machine past its drain deadline is left to Karpenter":      {machine("a", busy, deleting, hurriedAt(ago(time.Second))), forced, nil, "", ""},
		"a machine with a deadline that is not deleted is forced":     {machine("a", busy, hurriedAt(ago(time.Second))), forced, nil, "Force a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := allDrifted(c.machine)
			notAnyMore(s)
			if c.change != nil {
				c.change(s)
			}
			setDiagnosis(s, repair.Diagnosis{Cases: map[string]repair.Case{"a": c.unhealthy}})
			actions, again := decide(s)
			if got := strings.Join(steps(actions), ", "); got != c.want {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			if c.reason != "" && !strings.Contains(actions[0].Reason, c.reason) {
				t.Errorf("the reason %q does not hold %q", actions[0].Reason, c.reason)
			}
			if c.unhealthy.Wait > 0 && again != c.unhealthy.Wait {
				t.Errorf("look again after %s, want %s", again, c.unhealthy.Wait)
			}
		})
	}
}

func TestBudgetForUnhealthyMachinesCountsRepairs(t *testing.T) {
	t.Parallel()
	gentle := repair.Case{Fault: repair.Fault{Message: "it is sick"}}
	s := allDrifted(machine("a", busy, silent), machine("b", busy, silent), machine("c", busy, silent))
	notAnyMore(s)
	repairing(2)(s)
	setDiagnosis(s, repair.Diagnosis{Cases: map[string]repair.Case{"a": gentle, "b": gentle, "c": gentle}})
	wantSteps(t, s, "Replace a", "Replace b", "Stay c")
}

func TestUnhealthyMachinesAreReplacedFirst(t *testing.T) {
	t.Parallel()
	s := allDrifted(machine("a", busy), machine("b", busy), machine("c", busy))
	s.pools["gpu"].Budgets[karpv1.DisruptionReasonDrifted] = 1
	setDiagnosis(s, repair.Diagnosis{Cases: map[string]repair.Case{
		"b": {Fault: repair.Fault{Message: "it is sick"}},
		"a": {Fault: repair.Fault{Message: "it is sick"}, Kept: "people keep it"},
	}})
	actions := wantSteps(t, s, "Stay a", "Replace b", "Stay c")
	if got := actions[0].Reason; !strings.Contains(got, "budgets") {
		t.Errorf("one that is kept and has drifted stays because %q, want the budget for drift", got)
	}
}

// The pods of a machine that is deleted by force become demand only after the deletion. Until then, other machines would count on the same places.
func TestForcedDeletionIsTheOnlyStepOfItsPass(t *testing.T) {
	t.Parallel()
	s := allDrifted(machine("a", busy), machine("b", busy, replacingFor(time.Minute), withTaint, tainting(settle)))
	setDiagnosis(s, repair.Diagnosis{Cases: map[string]repair.Case{"a": {Fault: repair.Fault{Forceful: true}}}})
	actions, again := decide(s)
	if diff := cmp.Diff([]string{"Force a"}, steps(actions)); diff != "" || again != soon {
		t.Errorf("look again after %s; %s", again, diff)
	}
}

// The machine's GPUs may be out of service only briefly, so its pods stay. Other machines are not drained onto it.
func TestUnhealthyMachineReceivesNoMovedPods(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, 0, 1, true, false)
	s.on("g4dn.xlarge", 5)
	s.on("g4dn.xlarge", 0)
	from, to := s.cluster.NodeClaims[0].Name, s.cluster.NodeClaims[1].Name
	s.claim(from).Annotations[v1alpha1.ReplacingAnnotation] = drift.NodePool
	why := func() string {
		state := passOf(s.cluster, tolerations)
		return state.whatIf.place([]string{from})
	}
	if why() != "" {
		t.Errorf("a healthy machine is not accepted as a place: %s", why())
	}
	s.falls(to, "AcceleratedHardwareReady", corev1.ConditionFalse)
	if why() == "" {
		t.Error("an unhealthy machine is accepted as a place")
	}
}
