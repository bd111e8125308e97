package disruption

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

var now = snapshottest.Now

const (
	idleAfter = 5 * time.Minute
	settle    = 10 * time.Second
)

func ago(d time.Duration) string { return now.Add(-d).Format(time.RFC3339) }

// machine returns an empty, healthy machine that has started.
func machine(name string, edits ...func(*records.Machine)) records.Machine {
	pool := snapshottest.Pool("gpu", "gpu", snapshottest.Tainted(v1alpha1.ResourceGPUShared))
	xlarge := snapshottest.TypeNamed("g4dn.xlarge")
	claim := snapshottest.Claim(name, &pool, xlarge, snapshottest.Initialized(now.Add(-time.Hour)))
	node := snapshottest.Node(&claim, xlarge, 10)
	m := records.Machine{Claim: &claim, Node: &node, Type: xlarge, Promise: facts.PromiseOf(claim.Annotations)}
	for _, edit := range edits {
		edit(&m)
	}
	return m
}

func annotated(key, value string) func(*records.Machine) {
	return func(m *records.Machine) { m.Node.Annotations[key] = value }
}

func idle(d time.Duration) func(*records.Machine) {
	return annotated(v1alpha1.IdleSinceAnnotation, ago(d))
}

func tainting(d time.Duration) func(*records.Machine) {
	return annotated(v1alpha1.DisruptingSinceAnnotation, ago(d))
}

func withTaint(m *records.Machine) {
	m.Node.Spec.Taints = append(m.Node.Spec.Taints, corev1.Taint{Key: v1alpha1.DisruptingTaintKey, Effect: corev1.TaintEffectNoSchedule})
}

func busy(m *records.Machine) {
	pod := snapshottest.Pod("web", snapshottest.Running(m.Node.Name))
	m.Pods = append(m.Pods, &pod)
}

func withDaemon(m *records.Machine) {
	pod := snapshottest.Pod("agent", snapshottest.Running(m.Node.Name), snapshottest.OwnedBy("apps/v1", "DaemonSet", "agent"))
	m.Pods = append(m.Pods, &pod)
}

func deleting(m *records.Machine) { m.Claim.DeletionTimestamp = &metav1.Time{Time: now} }

func of(pool string) func(*records.Machine) {
	return func(m *records.Machine) { m.Claim.Labels[karpv1.NodePoolLabelKey] = pool }
}

func nothingBlocks([]*corev1.Pod) string { return "" }

// fakePods answers with its functions. Where a function is nil, nothing blocks a pod.
type fakePods struct {
	blocker func([]*corev1.Pod) string
	budgets func([]*corev1.Pod) []string
	stays   func(*records.Machine) string
	hold    func([]*records.Machine, map[string]planner.Resources) string
}

func (f *fakePods) Blocker(pods []*corev1.Pod) string {
	if f.blocker == nil {
		return ""
	}
	return f.blocker(pods)
}

func (f *fakePods) Budgets(pods []*corev1.Pod) []string {
	if f.budgets == nil {
		return nil
	}
	return f.budgets(pods)
}

func (f *fakePods) Keeps(m *records.Machine) string {
	if f.stays == nil {
		return ""
	}
	return f.stays(m)
}

func (f *fakePods) Hold(going []*records.Machine, taken map[string]planner.Resources) string {
	if f.hold == nil {
		return ""
	}
	return f.hold(going, taken)
}

// fakeWhatIf answers with its functions. Where a function is nil, it asks the simulator.
type fakeWhatIf struct {
	simulator
	planned_, place_ func([]string) string
	placements_      func([]string) map[string]placement
	saves_           func([]string, Proposal) (planner.MicroUSD, string)
}

func (f *fakeWhatIf) planned(claims []string) string {
	if f.planned_ == nil {
		return f.simulator.planned(claims)
	}
	return f.planned_(claims)
}

func (f *fakeWhatIf) place(claims []string) string {
	if f.place_ == nil {
		return f.simulator.place(claims)
	}
	return f.place_(claims)
}

func (f *fakeWhatIf) placements(claims []string) map[string]placement {
	if f.placements_ == nil {
		return f.simulator.placements(claims)
	}
	return f.placements_(claims)
}

func (f *fakeWhatIf) saves(marked []string, p Proposal) (planner.MicroUSD, string) {
	if f.saves_ == nil {
		return f.simulator.saves(marked, p)
	}
	return f.saves_(marked, p)
}

// given returns a pass with these machines, all of which may be removed.
func given(machines ...records.Machine) *pass {
	seen := &Seen{
		fleet: fleet{now: now, settle: settle, byName: map[string]*reason.Machine{}, pools: map[string]*reason.Pool{}, pods: &fakePods{}}, view: &snapshot.View{},
	}
	seen.pools["gpu"] = &reason.Pool{Name: "gpu", IdleAfter: new(idleAfter), Budgets: map[karpv1.DisruptionReason]int{karpv1.DisruptionReasonEmpty: 10}}
	for i := range machines {
		seen.add(&machines[i])
	}
	s := over(seen)
	s.fakeWhatIf().placements_ = func([]string) map[string]placement { return nil }
	return s
}

// steps returns the commands as "step machine".
func steps(commands []Command) []string {
	var s []string
	for _, a := range commands {
		s = append(s, string(a.Step)+" "+a.Machine.Claim.Name)
	}
	return s
}

// wantSteps checks that decide returns these steps, and returns the commands.
func wantSteps(t *testing.T, s *pass, want ...string) []Command {
	t.Helper()
	actions, _ := decide(s)
	if diff := cmp.Diff(want, steps(actions)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	return actions
}
