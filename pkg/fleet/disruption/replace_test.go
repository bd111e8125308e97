package disruption

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/snapshot/records"
)

// replacingFor marks a machine as being replaced for this long.
func replacingFor(d time.Duration) func(*records.Machine) {
	return func(m *records.Machine) {
		m.Claim.Annotations[v1alpha1.ReplacingAnnotation] = drift.NodePool
		m.Claim.Annotations[v1alpha1.ReplacingSinceAnnotation] = ago(d)
	}
}

func onClaim(key, value string) func(*records.Machine) {
	return func(m *records.Machine) { m.Claim.Annotations[key] = value }
}

// expiringIn makes a machine a day old and lets it expire after d.
func expiringIn(d time.Duration) func(*records.Machine) {
	return func(m *records.Machine) {
		life := 24*time.Hour + d
		m.Claim.CreationTimestamp = metav1.NewTime(now.Add(-24 * time.Hour))
		m.Claim.Spec.ExpireAfter = karpv1.NillableDuration{Duration: &life}
	}
}

// allDrifted returns a pass in which all machines have drifted and their pods have places elsewhere.
func allDrifted(machines ...records.Machine) *pass {
	s := given(machines...)
	for _, pool := range []string{"gpu", "never"} {
		s.poolNamed(pool).Budgets = map[karpv1.DisruptionReason]int{karpv1.DisruptionReasonEmpty: 10, karpv1.DisruptionReasonDrifted: 10, karpv1.DisruptionReasonUnhealthy: 10}
	}
	for _, m := range s.machines {
		m.Drift, m.Steady = &drift.Drift{Reason: drift.NodePool, Message: "it is old"}, true
	}
	s.choose()
	somewhere := func([]string) string { return "" }
	s.fakeWhatIf().planned_, s.fakeWhatIf().place_ = somewhere, somewhere
	return s
}

func TestDecideStepsOfReplacedMachine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		machine records.Machine
		change  func(*pass)
		want    string
		reason  string
	}{
		"a machine with pods is marked":                                    {machine("a", busy), nil, "Replace a", drift.NodePool},
		"an empty machine is marked despite idleAfter":                     {machine("a", of("never")), nil, "Replace a", ""},
		"a just changed machine is left alone":                             {machine("a", busy), unsteady, "", ""},
		"a machine that pending pods need is left alone":                   {machine("a", busy), wanted, "", ""},
		"an uninitialized machine is left alone":                           {machine("a", busy, notInitialized), nil, "", ""},
		"a machine without its replicas is left alone":                     {machine("a", busy, startupTainted), nil, "", ""},
		"a machine that others delete is left alone":                       {machine("a", busy, deleting), nil, "", ""},
		"a machine that Karpenter drains is left alone":                    {machine("a", busy, karpentersTaint), nil, "", ""},
		"an idle machine continues to leave":                               {machine("a", idle(time.Hour), tainting(settle), withTaint), nil, "Remove a", ""},
		"a machine whose pods fit nowhere stays":                           {machine("a", busy), unplanned, "Stay a", "no room"},
		"a machine of a closed pool stays":                                 {machine("a", busy), shut, "Stay a", "it is shut"},
		"an empty machine of a closed pool is marked":                      {machine("a"), shut, "Replace a", ""},
		"a do-not-disrupt machine stays":                                   {machine("a", busy, protected), nil, "Stay a", karpv1.DoNotDisruptAnnotationKey},
		"a machine with a pod that cannot be evicted stays":                {machine("a", busy), blocks, "Stay a", "pod x"},
		"a bounded drain overrides pods that cannot be evicted":            {machine("a", busy), with(blocks, forceful), "Replace a", ""},
		"a bounded drain does not override do-not-disrupt on the node":     {machine("a", busy, protected), forceful, "Stay a", karpv1.DoNotDisruptAnnotationKey},
		"a failed replacement rests":                                       {machine("a", busy, onClaim(v1alpha1.ReplaceAfterAnnotation, ago(-time.Second))), nil, "Stay a", v1alpha1.ReplaceAfterAnnotation},
		"a rested machine is marked again":                                 {machine("a", busy, onClaim(v1alpha1.ReplaceAfterAnnotation, ago(0))), nil, "Replace a", ""},
		"a rest beyond the limit is ignored":                               {machine("a", busy, onClaim(v1alpha1.ReplaceAfterAnnotation, ago(-time.Hour))), nil, "Replace a", ""},
		"a marked machine waits while its pods have no place":              {machine("a", busy, replacingFor(time.Minute)), nowhereNow, "", ""},
		"a marked machine is tainted once its pods have a place":           {machine("a", busy, replacingFor(time.Minute)), nil, "Taint a", ""},
		"an empty marked machine is tainted at once":                       {machine("a", replacingFor(0)), nil, "Taint a", ""},
		"a tainted machine settles":                                        {machine("a", busy, replacingFor(time.Minute), withTaint, tainting(settle-time.Second)), nil, "", ""},
		"a settled machine is removed":                                     {machine("a", busy, replacingFor(time.Minute), withTaint, tainting(settle)), nil, "Remove a", drift.NodePool},
		"a settled machine is held if its pods have no place":              {machine("a", busy, replacingFor(time.Minute), withTaint, tainting(settle)), nowhereNow, "Hold a", "no room"},
		"a settled machine is held if it becomes protected":                {machine("a", busy, replacingFor(time.Minute), withTaint, tainting(settle), protected), nil, "Hold a", karpv1.DoNotDisruptAnnotationKey},
		"a marked machine that becomes protected waits":                    {machine("a", busy, replacingFor(time.Minute), protected), nil, "Stay a", karpv1.DoNotDisruptAnnotationKey},
		"a marked protected machine is given up after a while":             {machine("a", busy, replacingFor(patience), protected), nil, "GiveUp a", karpv1.DoNotDisruptAnnotationKey},
		"a marked machine without a place for its pods is given up":        {machine("a", busy, replacingFor(patience)), nowhereNow, "GiveUp a", "no room"},
		"a tainted machine without a place for its pods is given up":       {machine("a", busy, replacingFor(patience), withTaint, tainting(settle)), nowhereNow, "GiveUp a", "no room"},
		"a machine whose pods get a place late is tainted":                 {machine("a", busy, replacingFor(patience)), nil, "Taint a", ""},
		"a mark without a timestamp is given up":                           {machine("a", busy, replacingFor(0), onClaim(v1alpha1.ReplacingSinceAnnotation, "")), nowhereNow, "GiveUp a", ""},
		"a mark from the future is given up":                               {machine("a", busy, replacingFor(-time.Hour)), nowhereNow, "GiveUp a", ""},
		"a mark slightly in the future counts as now":                      {machine("a", busy, replacingFor(-time.Minute)), nowhereNow, "", ""},
		"a machine that is no longer drifted stays":                        {machine("a", busy, replacingFor(time.Minute), withTaint, tainting(settle)), notAnyMore, "Stop a", ""},
		"a mark stays while drift is unknown":                              {machine("a", busy, replacingFor(time.Minute)), with(notAnyMore, unknown), "", ""},
		"a settled machine is held while drift is unknown":                 {machine("a", busy, replacingFor(time.Minute), withTaint, tainting(settle)), with(notAnyMore, unknown), "Hold a", ""},
		"an expiring machine is marked":                                    {machine("a", busy, expiringIn(reason.ExpiryLead)), notAnyMore, "Replace a", reason.Expiring},
		"an expiring machine is marked despite pods and budgets":           {machine("a", busy, protected, expiringIn(time.Minute)), with(notAnyMore, blocks, closed), "Replace a", reason.Expiring},
		"an empty expiring machine is left alone":                          {machine("a", of("never"), expiringIn(reason.ExpiryLead)), notAnyMore, "", ""},
		"a machine that expires later is left alone":                       {machine("a", busy, expiringIn(reason.ExpiryLead+time.Second)), notAnyMore, "", ""},
		"a marked expiring machine is left to Karpenter":                   {machine("a", busy, replacingFor(patience), expiringIn(time.Minute)), notAnyMore, "", ""},
		"a marked expiring machine is not given up":                        {machine("a", busy, replacingFor(patience), expiringIn(time.Minute)), nowhereNow, "", ""},
		"a drifted expiring machine is tainted once its pods have a place": {machine("a", busy, replacingFor(time.Minute), expiringIn(time.Minute)), nil, "Taint a", ""},
		"a marked machine without its Node is left to Karpenter":           {machine("a", replacingFor(time.Minute), func(m *records.Machine) { m.Node = nil }), nil, "", ""},
		"a closed budget stops a marked machine":                           {machine("a", busy, replacingFor(time.Minute)), closed, "Stay a", "allow 0"},
		"a closed budget holds a tainted machine":                          {machine("a", busy, replacingFor(time.Minute), withTaint, tainting(settle)), closed, "Hold a", "allow 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := allDrifted(c.machine)
			if c.change != nil {
				c.change(s)
			}
			actions, again := decide(s)
			if got := strings.Join(steps(actions), ", "); got != c.want {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			if c.reason != "" && !strings.Contains(actions[0].Reason, c.reason) {
				t.Errorf("the reason %q does not hold %q", actions[0].Reason, c.reason)
			}
			if again <= 0 || again > maxWait {
				t.Errorf("look again after %s", again)
			}
		})
	}
}

func karpentersTaint(m *records.Machine) {
	m.Node.Spec.Taints = append(m.Node.Spec.Taints, karpv1.DisruptedNoScheduleTaint)
}

func protected(m *records.Machine) { m.Node.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true" }

func nowhere([]string) string { return "no room" }

func unplanned(s *pass) { s.fakeWhatIf().planned_ = nowhere }

func wanted(s *pass) { s.named("a").Wanted = true }

func unsteady(s *pass) {
	for _, m := range s.machines {
		m.Steady = false
	}
}

func blocks(s *pass) {
	s.fakePods().blocker = func([]*corev1.Pod) string { return "pod x may not be evicted" }
}

func forceful(s *pass) { s.pools["gpu"].DrainBounded = true }

func shut(s *pass) { s.pools["gpu"].Closed = "it is shut" }

func unknown(s *pass) { s.pools["gpu"].Unready = true }

func closed(s *pass) { s.pools["gpu"].Budgets[karpv1.DisruptionReasonDrifted] = 0 }

func notAnyMore(s *pass) {
	for _, m := range s.machines {
		m.Drift, m.Candidate = nil, nil
	}
}

func with(changes ...func(*pass)) func(*pass) {
	return func(s *pass) {
		for _, change := range changes {
			change(s)
		}
	}
}

func TestReplacementPrefersEmptyThenOldestMachines(t *testing.T) {
	t.Parallel()
	old := func(d time.Duration) func(*records.Machine) {
		return func(m *records.Machine) { m.Claim.CreationTimestamp = metav1.NewTime(now.Add(-d)) }
	}
	broken := func(m *records.Machine) {
		m.Node.Status.Conditions = append(m.Node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown})
	}
	for name, c := range map[string]struct {
		budget   int
		machines []records.Machine
		want     []string
	}{
		"the oldest machine first":                      {1, list(machine("a", busy, old(time.Hour)), machine("b", busy, old(2*time.Hour))), []string{"Stay a", "Replace b"}},
		"an empty machine first":                        {1, list(machine("a", busy, old(time.Hour)), machine("b", of("gpu"))), []string{"Stay a", "Replace b"}},
		"marked machines count":                         {1, list(machine("a", busy), machine("b", busy, replacingFor(0))), []string{"Stay a", "Taint b"}},
		"machines that others delete count":             {1, list(machine("a", busy), machine("b", deleting)), []string{"Stay a"}},
		"machines that are not ready count":             {1, list(machine("a", busy), machine("b", busy, broken)), []string{"Stay a", "Stay b"}},
		"as many as the budget allows":                  {2, list(machine("a", busy), machine("b", busy), machine("c", busy)), []string{"Replace a", "Replace b", "Stay c"}},
		"a reduced budget delays marked machines":       {1, list(machine("a", busy, replacingFor(0)), machine("b", busy, replacingFor(0))), []string{"Taint a", "Stay b"}},
		"draining machines continue first":              {1, list(machine("a", busy, replacingFor(0)), machine("b", busy, replacingFor(0), withTaint, tainting(settle))), []string{"Stay a", "Remove b"}},
		"a reduced budget holds draining machines":      {1, list(machine("a", busy, replacingFor(0), withTaint, tainting(0)), machine("b", busy, replacingFor(0), withTaint, tainting(0))), []string{"Hold a"}},
		"a machine that is given up frees its budget":   {1, list(machine("a", busy, replacingFor(patience), protected), machine("b", busy)), []string{"GiveUp a", "Replace b"}},
		"leaving idle machines count":                   {1, list(machine("a", idle(time.Hour), withTaint, tainting(0)), machine("b", busy)), []string{"Stay b"}},
		"each pool has its own budget":                  {1, list(machine("a", busy), machine("b", busy, of("never"))), []string{"Replace a", "Replace b"}},
		"expiring machines ignore the budget but count": {1, list(machine("a", busy, expiringIn(time.Minute)), machine("b", busy, expiringIn(time.Minute)), machine("c", busy)), []string{"Replace a", "Replace b", "Stay c"}},
		"nothing goes with a zero budget":               {0, list(machine("a", busy), machine("b")), []string{"Stay a", "MarkIdle b"}},
		"idle machines use the budget for empty nodes":  {0, list(machine("a", idle(time.Hour))), []string{"Taint a"}},
		"a drifted machine does not wait for idleAfter": {1, list(machine("a", idle(time.Second))), []string{"Replace a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := allDrifted(c.machines...)
			s.pools["gpu"].Budgets[karpv1.DisruptionReasonDrifted] = c.budget
			wantSteps(t, s, c.want...)
		})
	}
}

func TestShortLivedMachineIsReplacedInLastQuarterOfItsLife(t *testing.T) {
	t.Parallel()
	m := machine("a", busy, func(m *records.Machine) {
		life := 20 * time.Minute
		m.Claim.CreationTimestamp = metav1.NewTime(now.Add(-14 * time.Minute))
		m.Claim.Spec.ExpireAfter = karpv1.NillableDuration{Duration: &life}
	})
	s := given(m)
	if reason.Expires(s.machines[0], s.now) {
		t.Error("six minutes of twenty are left, and it is replaced")
	}
	s.now = now.Add(time.Minute)
	if !reason.Expires(s.machines[0], s.now) {
		t.Error("five minutes of twenty are left, and it is not replaced")
	}
}

func TestRefusedReplacementIsReconsideredOnceAMinute(t *testing.T) {
	t.Parallel()
	s := given(machine("a"), machine("before"))
	memory := Memory{}.at(s.seen)
	asked, answer := 0, "no room"
	ask := func(at time.Duration, claims ...string) string {
		s.now = now.Add(at)
		s.fakeWhatIf().planned_ = func([]string) string { asked++; return answer }
		return remembering{simulator: s.whatIf, fleet: &s.fleet, memory: memory}.planned(claims)
	}
	for at, want := range map[time.Duration]string{0: "no room", time.Second: "no room", maxWait - 1: "no room"} {
		if got := ask(at, "before", "a"); got != want {
			t.Errorf("after %s: %q, want %q", at, got, want)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times within a minute", asked)
	}
	answer = ""
	if got := ask(2*maxWait, "a"); got != "" {
		t.Errorf("after a minute: %q", got)
	}
	if before := asked; ask(2*maxWait, "a") != "" || asked != before+1 {
		t.Error("that there is a place is remembered, and may not be so any more")
	}
}

func TestEachReasonHasItsOwnBudgetAndForce(t *testing.T) {
	t.Parallel()
	old := reason.Candidate{Reason: karpv1.DisruptionReasonDrifted, Word: drift.NodePool, Eventual: true}
	unhealthy := reason.Candidate{Reason: reason.Unhealthy, Word: reason.Unhealthy}
	cheaper := reason.Candidate{Reason: karpv1.DisruptionReasonUnderutilized, Word: string(karpv1.DisruptionReasonUnderutilized)}
	for name, c := range map[string]struct {
		cause  reason.Candidate
		change func(*pass)
		want   string
	}{
		"drift uses the budget for drift":                       {old, closed, "Stay a"},
		"consolidation ignores the budget for drift":            {cheaper, with(closed, allowing(1)), "Replace a"},
		"consolidation uses the budget for underutilized nodes": {cheaper, allowing(0), "Stay a"},
		"repair ignores the other budgets":                      {unhealthy, with(closed, allowing(0)), "Replace a"},
		"repair uses the budget for unhealthy nodes":            {unhealthy, repairing(0), "Stay a"},
		"drift is forced if the pool bounds the drain":          {old, with(blocks, forceful), "Replace a"},
		"consolidation is never forced":                         {cheaper, with(allowing(1), blocks, forceful), "Stay a"},
		"repair is not forced by default":                       {unhealthy, with(blocks, forceful), "Stay a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := allDrifted(machine("a", busy))
			s.named("a").Candidate = &c.cause
			c.change(s)
			actions, _ := decide(s)
			if got := strings.Join(steps(actions), ", "); got != c.want {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			if actions[0].Step == Replace && actions[0].Reason != c.cause.Word {
				t.Errorf("marked for %q, want %q", actions[0].Reason, c.cause.Word)
			}
		})
	}
}

func repairing(allowed int) func(*pass) {
	return func(s *pass) { s.pools["gpu"].Budgets[karpv1.DisruptionReasonUnhealthy] = allowed }
}

func allowing(allowed int) func(*pass) {
	return func(s *pass) { s.pools["gpu"].Budgets[karpv1.DisruptionReasonUnderutilized] = allowed }
}
