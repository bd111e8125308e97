package disruption

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

func TestIdleMachineStaysIfNodePoolNeverConsolidates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		machine records.Machine
		want    []string
	}{
		{machine("a"), []string{"MarkIdle a"}},
		{machine("a", idle(idleAfter-time.Second)), nil},
		{machine("a", idle(idleAfter)), []string{"Blocked a"}},
		{machine("a", idle(idleAfter), tainting(settle), withTaint), []string{"Keep a"}},
	} {
		s := given(c.machine)
		s.pools["gpu"].KeepsIdle = "consolidateAfter is Never"
		for _, a := range wantSteps(t, s, c.want...) {
			if (a.Step == Blocked || a.Step == Keep) && a.Reason != "consolidateAfter is Never" {
				t.Errorf("%s for %q", a.Step, a.Reason)
			}
		}
		live := c.machine
		if why := s.blockedLive(s.machines[0], &live, nil); Tainted(live.Node) && why != "consolidateAfter is Never" {
			t.Errorf("a last look says %q", why)
		}
	}
}

func TestDecideStepsOfIdleMachine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		machine records.Machine
		want    []string
		again   time.Duration
	}{
		"a machine without pods is marked idle":              {machine("a"), []string{"MarkIdle a"}, maxWait},
		"an invalid idle mark is rewritten":                  {machine("a", annotated(v1alpha1.IdleSinceAnnotation, "yesterday")), []string{"MarkIdle a"}, maxWait},
		"an idle mark from the future is rewritten":          {machine("a", idle(-time.Hour)), []string{"MarkIdle a"}, maxWait},
		"a timestamp slightly in the future counts as now":   {machine("a", idle(-settle)), nil, maxWait},
		"a taint from the future settles again":              {machine("a", idle(idleAfter), tainting(-time.Hour), withTaint), []string{"Taint a"}, settle},
		"an idle machine waits for idleAfter":                {machine("a", idle(idleAfter-20*time.Second)), nil, 20 * time.Second},
		"an idle machine is tainted after idleAfter":         {machine("a", idle(idleAfter)), []string{"Taint a"}, settle},
		"a tainted machine settles":                          {machine("a", idle(idleAfter), tainting(settle-3*time.Second), withTaint), nil, 3 * time.Second},
		"a settled machine is removed":                       {machine("a", idle(idleAfter), tainting(settle), withTaint), []string{"Remove a"}, maxWait},
		"a DaemonSet pod does not keep a machine":            {machine("a", idle(idleAfter), tainting(settle), withTaint, withDaemon), []string{"Remove a"}, maxWait},
		"a taint without a timestamp settles from now on":    {machine("a", idle(idleAfter), withTaint), []string{"Taint a"}, settle},
		"a timestamp without the taint is tainted again":     {machine("a", idle(idleAfter), tainting(time.Hour)), []string{"Taint a"}, settle},
		"a taint without an idle mark is not enough":         {machine("a", tainting(time.Hour), withTaint), []string{"MarkIdle a"}, maxWait},
		"a machine with a pod is left alone":                 {machine("a", busy), nil, maxWait},
		"a pod removes the idle mark":                        {machine("a", busy, idle(time.Minute)), []string{"Keep a"}, maxWait},
		"a pod removes the taint":                            {machine("a", busy, idle(time.Hour), tainting(time.Hour), withTaint), []string{"Keep a"}, maxWait},
		"a pod removes a taint left by a crashed controller": {machine("a", busy, withTaint), []string{"Keep a"}, maxWait},
		"a deleted machine is left alone":                    {machine("a", idle(time.Hour), tainting(time.Hour), withTaint, deleting), nil, maxWait},
		"a machine without its Node is left alone":           {machine("a", func(m *records.Machine) { m.Node = nil }), nil, maxWait},
		"a machine without its replicas is left alone":       {machine("a", startupTainted), nil, maxWait},
		"an uninitialized machine is left alone":             {machine("a", notInitialized), nil, maxWait},
		"an uninitialized machine loses the taint":           {machine("a", notInitialized, withTaint), []string{"Keep a"}, maxWait},
		"a pool with idleAfter Never keeps idle machines":    {machine("a", of("never"), idle(time.Hour)), []string{"Keep a"}, maxWait},
		"a pool with idleAfter Never marks no machine":       {machine("a", of("never")), nil, maxWait},
		"a machine without its pool is kept":                 {machine("a", of("missing"), idle(time.Hour), tainting(time.Hour), withTaint), []string{"Keep a"}, maxWait},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			actions, again := decide(given(c.machine))
			if diff := cmp.Diff(c.want, steps(actions)); diff != "" || again != c.again {
				t.Errorf("look again in %s, want %s; steps (-want +got):\n%s", again, c.again, diff)
			}
		})
	}
}

func startupTainted(m *records.Machine) {
	m.Node.Spec.Taints = append(m.Node.Spec.Taints, corev1.Taint{Key: v1alpha1.ReplicasNotReadyTaintKey, Effect: corev1.TaintEffectNoSchedule})
}

func notInitialized(m *records.Machine) {
	m.Claim.Status.Conditions = m.Claim.Status.Conditions[:len(m.Claim.Status.Conditions)-1]
}

func TestMachineThatPendingPodsNeedIsKept(t *testing.T) {
	t.Parallel()
	s := given(machine("a", idle(time.Hour), tainting(time.Hour), withTaint), machine("b"), machine("c", idle(time.Hour)))
	s.named("a").Wanted, s.named("b").Wanted = true, true
	wantSteps(t, s, "Keep a", "Taint c")
}

func TestBlockersOfIdleMachine(t *testing.T) {
	t.Parallel()
	protected := annotated(karpv1.DoNotDisruptAnnotationKey, "true")
	for name, c := range map[string]struct {
		machine records.Machine
		blocker string
		want    string
		reason  string
	}{
		"do-not-disrupt on the node":                     {machine("a", idle(time.Hour), protected), "", "Blocked a", karpv1.DoNotDisruptAnnotationKey},
		"do-not-disrupt on the node after the taint":     {machine("a", idle(time.Hour), tainting(time.Hour), withTaint, protected), "", "Keep a", karpv1.DoNotDisruptAnnotationKey},
		"another value of do-not-disrupt does not block": {machine("a", idle(time.Hour), annotated(karpv1.DoNotDisruptAnnotationKey, "false")), "", "Taint a", ""},
		"a pod that cannot be evicted":                   {machine("a", idle(time.Hour), withDaemon), "pod x may not be evicted", "Blocked a", "pod x"},
		"a pod that cannot be evicted, after the taint":  {machine("a", idle(time.Hour), tainting(time.Hour), withTaint, withDaemon), "pod x may not be evicted", "Keep a", "pod x"},
		"no reason before idleAfter":                     {machine("a", idle(time.Minute), protected), "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := given(c.machine)
			s.fakePods().blocker = func([]*corev1.Pod) string { return c.blocker }
			actions, _ := decide(s)
			if got := strings.Join(steps(actions), ", "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if c.reason != "" && !strings.Contains(actions[0].Reason, c.reason) {
				t.Errorf("the reason %q does not name %s", actions[0].Reason, c.reason)
			}
		})
	}
}

func TestBudgets(t *testing.T) {
	t.Parallel()
	ready := func(name string) records.Machine { return machine(name, idle(time.Hour)) }
	leaving := func(name string) records.Machine {
		return machine(name, idle(time.Hour), tainting(time.Second), withTaint)
	}
	settled := func(name string) records.Machine {
		return machine(name, idle(time.Hour), tainting(time.Hour), withTaint)
	}
	for name, c := range map[string]struct {
		budget   int
		machines []records.Machine
		want     []string
	}{
		"the budget allows two, in order of names":           {2, list(ready("a"), ready("b"), ready("c")), []string{"Taint a", "Taint b", "Blocked c"}},
		"leaving machines count":                             {2, list(leaving("a"), ready("b"), ready("c")), []string{"Taint b", "Blocked c"}},
		"machines that others delete count":                  {2, list(machine("a", deleting), ready("b"), ready("c")), []string{"Taint b", "Blocked c"}},
		"a taint without a timestamp counts":                 {1, list(machine("a", idle(time.Hour), withTaint), ready("b")), []string{"Taint a", "Blocked b"}},
		"a machine does not count against itself":            {1, list(machine("a", idle(time.Hour), tainting(time.Hour))), []string{"Taint a"}},
		"a machine that is kept frees its budget":            {1, list(machine("a", busy, tainting(time.Second), withTaint), ready("b")), []string{"Keep a", "Taint b"}},
		"a starting machine does not count":                  {1, list(machine("a", notInitialized, silent), ready("b")), []string{"Taint b"}},
		"a machine deleted before it started does not count": {1, list(machine("a", notInitialized, deleting), ready("b")), []string{"Taint b"}},
		"a machine that is no longer ready counts":           {1, list(machine("a", busy, silent), ready("b")), []string{"Blocked b"}},
		"a zero budget blocks all":                           {0, list(ready("a"), ready("b")), []string{"Blocked a", "Blocked b"}},
		"a closed budget keeps leaving machines":             {0, list(settled("a"), leaving("b")), []string{"Keep a", "Keep b"}},
		"a reduced budget keeps some leaving machines":       {1, list(settled("a"), settled("b")), []string{"Keep a", "Remove b"}},
		"a settled machine uses its own budget":              {1, list(settled("a"), ready("b")), []string{"Remove a", "Blocked b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := given(c.machines...)
			s.pools["gpu"].Budgets[karpv1.DisruptionReasonEmpty] = c.budget
			wantSteps(t, s, c.want...)
		})
	}
}

func silent(m *records.Machine) {
	m.Node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
}

// Karpenter's BuildDisruptionBudgetMapping counts machines in the same way.
func TestBudgetIgnoresUninitializedMachines(t *testing.T) {
	t.Parallel()
	machines := list(machine("a"), machine("b", silent), machine("c", deleting), machine("d", notInitialized), machine("e", notInitialized, silent), machine("f", of("other")))
	if got := budgeted(machines, "gpu"); got != 3 {
		t.Errorf("a tenth is taken of %d machines, want 3", got)
	}
	s := given(machines...)
	if use := count(s.machines).of("gpu").all; use.draining != 2 || use.leaving != 2 {
		t.Errorf("%d drain and %d leave, want 2 and 2", use.draining, use.leaving)
	}
}

// Each of the two machines has a place for its pods, but their PodDisruptionBudget allows only one eviction. If both were drained, both would wait for it until
// they time out.
func TestMachinesThatSharePDBAreRemovedOneAtATime(t *testing.T) {
	t.Parallel()
	squatting := func(m *records.Machine) {
		pod := snapshottest.Pod("squat-"+m.Claim.Name, snapshottest.Asking("cpu", "1"), snapshottest.Running(m.Node.Name))
		m.Pods = append(m.Pods, &pod)
	}
	settled := func(name string, edits ...func(*records.Machine)) records.Machine {
		return machine(name, append([]func(*records.Machine){idle(time.Hour), tainting(time.Minute), withTaint, squatting}, edits...)...)
	}
	one := func(pods []*corev1.Pod) []string {
		if len(pods) > 0 {
			return []string{"default/squat"}
		}
		return nil
	}
	for name, c := range map[string]struct {
		machines []records.Machine
		budgets  func([]*corev1.Pod) []string
		want     []string
	}{
		"both go without a PodDisruptionBudget":               {list(settled("a"), settled("b")), func([]*corev1.Pod) []string { return nil }, []string{"Remove a", "Remove b"}},
		"one at a time with a PodDisruptionBudget":            {list(settled("a"), settled("b")), one, []string{"Remove a", "Blocked b"}},
		"the second waits while the first drains":             {list(settled("a"), machine("b", squatting, deleting)), one, []string{"Blocked a"}},
		"an empty draining machine does not delay the second": {list(settled("a"), machine("b", deleting)), one, []string{"Remove a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := given(c.machines...)
			s.pools["gpu"].MovesPods, s.fakePods().budgets = true, c.budgets
			wantSteps(t, s, c.want...)
		})
	}
}

func TestIdleMachinesAreCheckedTogether(t *testing.T) {
	t.Parallel()
	cluster := snapshottest.Shared()
	for _, name := range []string{"a", "b"} {
		pool := &cluster.NodePools[0]
		claim := snapshottest.Claim(name, pool, snapshottest.TypeNamed("g4dn.xlarge"), snapshottest.Initialized(now.Add(-time.Hour)))
		node := snapshottest.Node(&claim, snapshottest.TypeNamed("g4dn.xlarge"), 10, func(n *corev1.Node) { n.Annotations[v1alpha1.IdleSinceAnnotation] = ago(time.Hour) })
		pod := snapshottest.Pod("squat-"+name, snapshottest.Asking("cpu", "2"), snapshottest.Running(name), snapshottest.OwnedBy("apps/v1", "ReplicaSet", "squat"))
		cluster.NodeClaims, cluster.Nodes, cluster.Pods = append(cluster.NodeClaims, claim), append(cluster.Nodes, node), append(cluster.Pods, pod)
	}
	room := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "room"}}
	room.Status.Allocatable = snapshottest.Amounts("cpu", "3", "memory", "8Gi", "pods", "10", "ephemeral-storage", "1Gi")
	cluster.Nodes = append(cluster.Nodes, room)
	judged := func(edit func(*facts.Cluster)) []string {
		c := *cluster
		c.NodeClaims, c.Pods = slices.Clone(c.NodeClaims), slices.Clone(c.Pods)
		edit(&c)
		s := given(records.Machines(&c)...)
		p := s.pools["gpu-shared"]
		p.MovesPods, p.IdleAfter, p.Budgets = true, new(idleAfter), map[karpv1.DisruptionReason]int{karpv1.DisruptionReasonEmpty: 10}
		s.fakePods().stays, s.fakePods().hold = retention.Pods(&c), retention.NewOtherNodes(&c).Hold
		actions, _ := decide(s)
		return steps(actions)
	}
	if diff := cmp.Diff([]string{"Taint a", "Blocked b"}, judged(func(*facts.Cluster) {})); diff != "" {
		t.Errorf("both idle: (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Blocked b"}, judged(func(c *facts.Cluster) { c.NodeClaims[0].DeletionTimestamp = &metav1.Time{Time: now} })); diff != "" {
		t.Errorf("while a drains: (-want +got):\n%s", diff)
	}
	evicted := func(c *facts.Cluster) {
		c.NodeClaims, c.Nodes = c.NodeClaims[1:], c.Nodes[1:]
		c.Pods[0] = snapshottest.Pod("squat-again", snapshottest.Asking("cpu", "2"), snapshottest.OwnedBy("apps/v1", "ReplicaSet", "squat"))
	}
	if diff := cmp.Diff([]string{"Blocked b"}, judged(evicted)); diff != "" {
		t.Errorf("while the pod of a waits: (-want +got):\n%s", diff)
	}
	empty := func(c *facts.Cluster) { c.Nodes, c.Pods = c.Nodes[:2], c.Pods[:1] }
	if diff := cmp.Diff([]string{"Blocked a", "Taint b"}, judged(empty)); diff != "" {
		t.Errorf("where b is empty and the only place: (-want +got):\n%s", diff)
	}
	drains := func(c *facts.Cluster) { empty(c); c.NodeClaims[0].DeletionTimestamp = &metav1.Time{Time: now} }
	if diff := cmp.Diff([]string{"Blocked b"}, judged(drains)); diff != "" {
		t.Errorf("where b is empty and a place for the pod of a, which drains: (-want +got):\n%s", diff)
	}
}

func TestEachPoolHasItsOwnBudgetAndIdleDuration(t *testing.T) {
	t.Parallel()
	s := given(machine("a", idle(2*time.Minute)), machine("b", of("fast"), idle(2*time.Minute)), machine("c", of("fast"), idle(2*time.Minute)))
	s.pools["fast"].IdleAfter, s.pools["fast"].Budgets = new(time.Minute), map[karpv1.DisruptionReason]int{karpv1.DisruptionReasonEmpty: 1}
	actions, again := decide(s)
	if diff := cmp.Diff([]string{"Taint b", "Blocked c"}, steps(actions)); diff != "" || again != settle {
		t.Errorf("again in %s; (-want +got):\n%s", again, diff)
	}
	if want := "the disruption budgets of NodePool fast allow 1 at present"; actions[1].Reason != want {
		t.Errorf("the reason is %q, want %q", actions[1].Reason, want)
	}
}

func TestMachineWithZeroIdleDurationGoesAtOnce(t *testing.T) {
	t.Parallel()
	s := given(machine("a", idle(0)))
	s.pools["gpu"].IdleAfter = new(time.Duration(0))
	if actions, _ := decide(s); len(actions) != 1 || actions[0].Step != Taint {
		t.Errorf("got %v, want Taint", steps(actions))
	}
}

func list(machines ...records.Machine) []records.Machine { return machines }

// TestDecideRemovesOnlyIdleUnprotectedMachines checks every decision. A machine is removed only if it is empty, unprotected, tainted, and observed for the whole idle time; it is
// removed once and within the budgets. Every mark without a reason is removed.
func TestDecideRemovesOnlyIdleUnprotectedMachines(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := given()
		s.pools["gpu"].Budgets[karpv1.DisruptionReasonEmpty] = rapid.IntRange(0, 5).Draw(t, "budget")
		for i := range rapid.IntRange(0, 8).Draw(t, "machines") {
			machine := anyMachine(t, fmt.Sprint("m", i))
			s.add(&machine).Wanted = rapid.IntRange(0, 5).Draw(t, "wanted") == 0
		}
		s.fakePods().blocker = func(pods []*corev1.Pod) string {
			for _, pod := range pods {
				if pod.Annotations["blocks"] != "" {
					return "blocked"
				}
			}
			return ""
		}
		before := 0
		for _, m := range s.machines {
			if m.Pool() == "gpu" && (m.Deleting() || Disrupting(m.Machine)) {
				before++
			}
		}
		actions, again := decide(s)
		if again <= 0 || again > maxWait {
			t.Fatalf("look again in %s", again)
		}
		seen, removed, more, kept := map[string]bool{}, 0, 0, 0
		for _, a := range actions {
			name := a.Machine.Claim.Name
			if seen[name] {
				t.Fatalf("two steps at once for %s: %v", name, steps(actions))
			}
			seen[name] = true
			switch a.Step {
			case Remove:
				removed++
				mayGo(t, s, a.Machine)
			case Taint:
				if !a.Machine.Empty() || a.Machine.Wanted || a.Machine.AwaitsReplicas() {
					t.Fatalf("%s is tainted though it is in use", name)
				}
				if !Disrupting(a.Machine.Machine) {
					more++
				}
			case Keep:
				if Disrupting(a.Machine.Machine) {
					kept++
				}
			case Blocked:
				if a.Reason == "" {
					t.Fatalf("%s is blocked without a reason", name)
				}
			case MarkIdle:
			case Replace, Hold, Stop, GiveUp, Stay, Force, HandOver:
				t.Fatalf("%s of %s, which has not drifted", a.Step, name)
			}
		}
		if after := before + more - kept; more+removed > 0 && after > s.pools["gpu"].Budgets[karpv1.DisruptionReasonEmpty] {
			t.Fatalf("%d machines are on their way out, the budget is %d: %v", after, s.pools["gpu"].Budgets[karpv1.DisruptionReasonEmpty], steps(actions))
		}
		for _, m := range s.machines {
			if m.Node != nil && !m.Deleting() && Disrupting(m.Machine) && !m.Empty() && !seen[m.Claim.Name] {
				t.Fatalf("%s is in use and stays tainted", m.Claim.Name)
			}
		}
	})
}

func mayGo(t *rapid.T, s *pass, m *reason.Machine) {
	t.Helper()
	disrupting, idle := since(m.Machine, v1alpha1.DisruptingSinceAnnotation), since(m.Machine, v1alpha1.IdleSinceAnnotation)
	switch {
	case !m.Empty(), m.Deleting(), m.AwaitsReplicas(), m.Wanted:
		t.Fatalf("%s is given back though it is in use, or gone already", m.Claim.Name)
	case !Tainted(m.Node), disrupting == nil, disrupting.Add(settle).After(now):
		t.Fatalf("%s is given back though it was not watched with its taint for %s", m.Claim.Name, settle)
	case idle == nil, idle.Add(idleAfter).After(now), m.Pool() != "gpu":
		t.Fatalf("%s is given back though it has not idled, or its pool keeps idle ones", m.Claim.Name)
	case reason.Protected(m, m.Pods, s.pods) != "":
		t.Fatalf("%s is given back though it is protected", m.Claim.Name)
	}
}

func anyMachine(t *rapid.T, name string) records.Machine {
	m := machine(name)
	some := func(what string, one int) bool { return rapid.IntRange(0, one-1).Draw(t, what) == 0 }
	long := func(what string, most time.Duration) time.Duration {
		return time.Duration(rapid.Int64Range(0, int64(most/time.Second)).Draw(t, what)) * time.Second
	}
	for _, edit := range []struct {
		apply func(*records.Machine)
		is    bool
	}{
		{busy, some("busy", 4)},
		{withDaemon, some("daemon", 2)},
		{func(m *records.Machine) {
			for _, pod := range m.Pods {
				pod.Annotations = map[string]string{"blocks": "yes"}
			}
		}, some("blocking", 5)},
		{annotated(karpv1.DoNotDisruptAnnotationKey, "true"), some("protected", 6)},
		{of("never"), some("never", 6)},
		{notInitialized, some("starting", 6)},
		{startupTainted, some("awaiting", 8)},
		{deleting, some("deleting", 6)},
		{withTaint, some("tainted", 2)},
		{idle(long("idle", 2*idleAfter)), !some("not idle", 4)},
		{tainting(long("disrupting", 2*settle)), some("disrupting since", 2)},
		{func(m *records.Machine) { m.Node = nil }, some("no node", 8)},
	} {
		if edit.is {
			edit.apply(&m)
		}
	}
	return m
}
