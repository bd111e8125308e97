package disruption

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/controllers/planning"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// slots is how many pods an xlarge of the simulation holds: its replicas are what runs out first.
const slots = 10

// simulation is a cluster with Karve's decisions and everybody else's moves: Karpenter's, the scheduler's, the owners' of pods. Where there is one instance type, and
// all pods are alike, what is needed can be counted without a planner.
type simulation struct {
	rapid.TB
	cluster *snapshot.Cluster
	// made counts what was made, for names.
	made int
	// budget is how many machines may be replaced at once.
	budget int
	// mixed says that pods ask for different amounts, of machines of different types. Then what is needed cannot be counted, and only the rest is checked.
	mixed bool
	// cheaper says that pods are moved to make the machines cheaper; vain are the claims that could not go for it, until when.
	cheaper bool
	vain    map[string]time.Time
	// prefers is which of the Nodes with room the scheduler takes, where it is not drawn.
	prefers func([]string) string
	// blocking are the UIDs of pods that may not be evicted.
	blocking map[types.UID]bool
}

func newSimulation(t rapid.TB, pods, budget int, mixed, cheaper bool) *simulation {
	s := &simulation{TB: t, cluster: snapshottest.Shared(), budget: budget, mixed: mixed, cheaper: cheaper, blocking: map[types.UID]bool{}, vain: map[string]time.Time{}}
	s.prefers = func(nodes []string) string { return nodes[0] }
	pool := &s.cluster.NodePools[0]
	if !mixed {
		snapshottest.Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge")(pool)
	}
	pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: fmt.Sprint(budget)}}
	pool.Spec.Template.Spec.ExpireAfter = karpv1.NillableDuration{}
	s.cluster.GPUNodeClasses[0].Spec.Consolidation = v1alpha1.Consolidation{IdleAfter: v1alpha1.IdleNever, Policy: v1alpha1.ConsolidateWhenIdle}
	if cheaper {
		s.cluster.GPUNodeClasses[0].Spec.Consolidation = v1alpha1.Consolidation{IdleAfter: "1m", SettleAfter: "30s"}
	}
	for range pods {
		s.pod()
	}
	return s
}

func (s *simulation) pod() {
	s.again(snapshottest.Pod("", snapshottest.OwnedBy("apps/v1", "ReplicaSet", "web"), func(p *corev1.Pod) {
		if s.mixed && s.made%3 == 0 {
			snapshottest.Asking("cpu", "1200m", "memory", "4Gi", v1alpha1.ResourceGPUShared, "2")(p)
		}
	}))
}

// again makes another pod like one.
func (s *simulation) again(pod corev1.Pod) {
	s.made++
	s.cluster.Pods = append(s.cluster.Pods, snapshottest.Pod(fmt.Sprintf("pod-%04d", s.made), func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources, p.OwnerReferences = pod.Spec.Containers[0].Resources, pod.OwnerReferences
		p.CreationTimestamp = metav1.NewTime(s.cluster.Now)
	}))
}

func (s *simulation) machines() []snapshot.Machine { return s.cluster.Machines() }

func (s *simulation) claim(name string) *karpv1.NodeClaim {
	for i := range s.cluster.NodeClaims {
		if s.cluster.NodeClaims[i].Name == name {
			return &s.cluster.NodeClaims[i]
		}
	}
	return nil
}

func (s *simulation) node(name string) *corev1.Node {
	for i := range s.cluster.Nodes {
		if s.cluster.Nodes[i].Name == name {
			return &s.cluster.Nodes[i]
		}
	}
	return nil
}

// need is how many pods wait or will wait, and free how many the machines hold besides that stay and have started, or are to come as well.
func (s *simulation) need() (need, started, all int) {
	for i := range s.cluster.Pods {
		if s.cluster.Pods[i].Spec.NodeName == "" {
			need++
		}
	}
	for _, m := range s.machines() {
		if m.Leaving() {
			need += len(m.Moving())
			continue
		}
		if notReady(m.Node) {
			continue
		}
		all += slots - len(m.Pods)
		if m.Initialized() && !tainted(m.Node) {
			started += slots - len(m.Pods)
		}
	}
	return need, started, all
}

// provision launches for whoever needs a place, and never more than they need.
func (s *simulation) provision() {
	view := snapshot.Build(s.cluster)
	plan := solve.Solver{Effort: 1}.Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil {
		s.Fatal(err)
	}
	need, _, free := s.need()
	healthy := snapshot.Condition(s.cluster.NodePools[0].Status.Conditions, v1alpha1.ConditionReplicasHealthy)
	probed := healthy != nil && healthy.IsUnknown()
	if probed && len(plan.Launches) > 1 {
		s.Fatalf("%d machines are planned for a pool that is being probed", len(plan.Launches))
	}
	if want := max(0, (need-free+slots-1)/slots); !s.mixed && !probed && len(plan.Launches) != want {
		s.Fatalf("%d machines are planned for %d pods without a place and %d free places, want %d", len(plan.Launches), need, free, want)
	}
	for _, l := range plan.Launches {
		claim := render.NodeClaim(&view, l)
		if s.claim(claim.Name) != nil {
			continue // The API server refuses it.
		}
		claim.UID, claim.CreationTimestamp = types.UID(claim.Name), metav1.NewTime(s.cluster.Now)
		s.cluster.NodeClaims = append(s.cluster.NodeClaims, *claim)
	}
}

// start has a claim's machine start, or has the cloud refuse it.
func (s *simulation) start(name string, refused bool) {
	claim := s.claim(name)
	if refused {
		s.cluster.NodeClaims = slices.DeleteFunc(s.cluster.NodeClaims, func(c karpv1.NodeClaim) bool { return c.Name == name })
		return
	}
	snapshottest.Initialized(s.cluster.Now)(claim)
	instanceType, _, _ := snapshot.ShapeOf(claim)
	made := snapshottest.TypeNamed(instanceType)
	s.cluster.Nodes = append(s.cluster.Nodes, snapshottest.Node(claim, made, slots*made.GPU.Count))
}

func (s *simulation) waiting() []string {
	var names []string
	for _, claim := range s.cluster.NodeClaims {
		if claim.Status.NodeName == "" && claim.DeletionTimestamp.IsZero() {
			names = append(names, claim.Name)
		}
	}
	return names
}

// bind has the scheduler bind a waiting pod to the node that pick chooses of those with room.
func (s *simulation) bind(pick func([]string) string) bool {
	for i := range s.cluster.Pods {
		pod := &s.cluster.Pods[i]
		if pod.Spec.NodeName != "" {
			continue
		}
		var nodes []string
		for _, m := range s.machines() {
			if m.Node != nil && !m.Deleting() && m.Initialized() && !tainted(m.Node) && !notReady(m.Node) && fits(&m, pod) {
				nodes = append(nodes, m.Node.Name)
			}
		}
		if len(nodes) > 0 {
			snapshottest.Running(pick(nodes))(pod)
			pod.Status.StartTime = &metav1.Time{Time: s.cluster.Now}
			return true
		}
	}
	return false
}

// fits says whether the scheduler would bind a pod to a machine.
func fits(m *snapshot.Machine, pod *corev1.Pod) bool {
	for name, free := range m.Node.Status.Allocatable {
		free = free.DeepCopy()
		for _, p := range append([]*corev1.Pod{pod}, m.Pods...) {
			free.Sub(p.Spec.Containers[0].Resources.Requests[name])
		}
		if free.Sign() < 0 {
			return false
		}
	}
	return true
}

// drain evicts a pod of a machine that is being deleted, whose owner makes another one at once; it ends a pod that was evicted before, and the machine when it is
// empty.
func (s *simulation) drain(name string) {
	for i := range s.cluster.Pods {
		if pod := &s.cluster.Pods[i]; pod.Spec.NodeName != "" && pod.Spec.NodeName == s.claim(name).Status.NodeName {
			if pod.DeletionTimestamp.IsZero() {
				s.evict(pod.UID)
			} else {
				s.cluster.Pods = slices.Delete(s.cluster.Pods, i, i+1)
			}
			return
		}
	}
	node := s.claim(name).Status.NodeName
	s.cluster.Nodes = slices.DeleteFunc(s.cluster.Nodes, func(n corev1.Node) bool { return n.Name == node })
	s.cluster.NodeClaims = slices.DeleteFunc(s.cluster.NodeClaims, func(c karpv1.NodeClaim) bool { return c.Name == name })
}

// evict has a pod end, whose owner makes another one at once.
func (s *simulation) evict(uid types.UID) {
	for i := range s.cluster.Pods {
		if pod := &s.cluster.Pods[i]; pod.UID == uid {
			pod.DeletionTimestamp = &metav1.Time{Time: s.cluster.Now}
			s.again(*pod)
			return
		}
	}
}

// leave ends so many tenths of the pods that run on machines that stay.
func (s *simulation) leave(tenths int) {
	n := 0
	s.cluster.Pods = slices.DeleteFunc(s.cluster.Pods, func(p corev1.Pod) bool {
		n++
		return p.Spec.NodeName != "" && p.DeletionTimestamp.IsZero() && n*7%10 < tenths
	})
}

func (s *simulation) deleting() []string {
	var names []string
	for _, claim := range s.cluster.NodeClaims {
		if !claim.DeletionTimestamp.IsZero() {
			names = append(names, claim.Name)
		}
	}
	return names
}

// interrupt has somebody else delete a machine.
func (s *simulation) interrupt(name string) {
	s.claim(name).DeletionTimestamp = &metav1.Time{Time: s.cluster.Now}
}

// drift changes the pool's template.
func (s *simulation) drift() {
	s.made++
	snapshottest.Labeled(map[string]string{"generation": fmt.Sprint(s.made)})(&s.cluster.NodePools[0])
}

// passOf is the pass of a cluster as it is. Machines are diagnosed if it is said how long sick ones are borne.
func passOf(cluster *snapshot.Cluster, borne ...repair.Tolerations) *pass {
	plan, headroom := planning.Suppose(snapshot.Build(cluster), 0)
	var diagnosis repair.Diagnosis
	for _, tolerations := range borne {
		diagnosis = repair.Diagnose(cluster, plan.View.Machines, tolerations)
	}
	return newPass(cluster, &plan, &headroom, diagnosis, karpenter.Evictions{}, clocktesting.NewFakeClock(cluster.Now), always)
}

func always() bool { return true }

// decides has Karve take the next steps, checks each, and carries them out.
func (s *simulation) decides() {
	state := passOf(s.cluster, borne)
	state.settle = settle
	state.fakePods().blocker = func(pods []*corev1.Pod) string {
		for _, pod := range pods {
			if s.blocking[pod.UID] {
				return "blocked"
			}
		}
		return ""
	}
	state.choose()
	for _, m := range state.machines {
		m.Steady = m.Candidate != nil
	}
	if s.cheaper {
		s.consider(state)
	}
	before := s.draining()
	actions, _ := decide(state)
	actions = append(actions, state.consolidate()...)
	for _, m := range state.toSteer() {
		setSurplusTaint(s.node(m.Node.Name), !hasSurplusTaint(m.Machine))
	}
	seen := map[string]bool{}
	for _, a := range actions {
		if seen[a.machine.Claim.Name] {
			s.Fatalf("two steps at once for a machine: %v", steps(actions))
		}
		seen[a.machine.Claim.Name] = true
		s.apply(a)
	}
	if after := s.draining(); after > max(before, s.budget) {
		s.Fatalf("%d machines drain, after %d and with a budget of %d: %v", after, before, s.budget, steps(actions))
	}
}

// consider has a cheaper layout looked for, without regard to how long anything has been so.
func (s *simulation) consider(state *pass) {
	for name, candidate := range state.standing(verdicts{}, func() bool { return false }).stand {
		state.named(name).Saving = candidate
	}
	state.choose()
	layout := state.lay(nil, func(m *snapshot.Machine) string {
		if s.cluster.Now.Before(s.vain[m.Claim.Name]) {
			return "in vain"
		}
		return cmp.Or(reason.Protected(state.named(m.Claim.Name), m.Pods, state.pods), state.pods.Keeps(m))
	})
	out := propose(&layout, solve.Solver{Effort: 1000})
	state.proposals = out.proposals
	for _, m := range state.machines {
		m.Surplus = slices.Contains(out.surplus, m.Claim.Name)
	}
	for _, p := range out.proposals {
		for _, name := range p.claims {
			state.named(name).Proposed = true
		}
	}
	saves := state.whatIf.saves
	state.fakeWhatIf().saves_ = func(marked []string, p proposal) (planner.MicroUSD, string) {
		saving, why := saves(marked, p)
		for _, name := range p.claims {
			if why != "" {
				s.vain[name] = s.cluster.Now.Add(unprofitableFor)
			}
		}
		return saving, why
	}
}

// price is what the machines cost an hour, those on their way and those that go included.
func (s *simulation) price() (sum planner.MicroUSD) {
	for _, m := range s.machines() {
		sum += planner.MicroUSD(m.MicroUSDPerHour())
	}
	return sum
}

func (s *simulation) draining() int {
	n := 0
	for _, m := range s.machines() {
		if (m.Deleting() || disrupting(&m)) && m.Replacing() != reason.Unhealthy && !sick(&m) {
			n++
		}
	}
	return n
}

// borne are how long sick machines are.
var borne = repair.Tolerations{NotReady: 5 * time.Minute, GPUFault: 2 * time.Minute, Replicas: 10 * time.Minute}

// falls has a machine fall sick, or become well again where the status is True. The scheduler binds nothing to a Node that is not ready.
func (s *simulation) falls(name string, with corev1.NodeConditionType, status corev1.ConditionStatus) {
	node := s.node(s.claim(name).Status.NodeName)
	node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == with })
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: with, Status: status, LastTransitionTime: metav1.NewTime(s.cluster.Now)})
	if with == corev1.NodeReady {
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable })
		if status != corev1.ConditionTrue {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule})
		}
	}
}

func (s *simulation) recovers(name string) {
	for _, with := range ailments {
		s.falls(name, with, corev1.ConditionTrue)
	}
}

var ailments = []corev1.NodeConditionType{corev1.NodeReady, "AcceleratedHardwareReady"}

func sick(m *snapshot.Machine) bool {
	return m.Node != nil && slices.ContainsFunc(m.Node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Status != corev1.ConditionTrue })
}

// goesAnyway says that a machine is on its way out for another cause, and has not been sick for long.
func (s *simulation) goesAnyway(m *snapshot.Machine) bool {
	fault := borne.Fault(m, s.cluster.Now)
	return m.Deleting() && m.Replacing() != reason.Unhealthy && fault != nil && fault.Until.After(s.cluster.Now)
}

// mayRepair checks that a machine that goes because it is sick is, and that at most a fifth of all are.
func (s *simulation) mayRepair(a command) {
	all, ill := 0, 0
	for _, m := range s.machines() {
		if m.Node == nil {
			continue
		}
		all++
		if sick(&m) && !s.goesAnyway(&m) || m.Replacing() == reason.Unhealthy && m.Claim.Name != a.machine.Claim.Name {
			ill++
		}
	}
	if !sick(a.machine.Machine) || ill > (all+4)/5 || a.step == force && !notReady(a.machine.Node) {
		s.Fatalf("%s of %s, when %d of %d machines are sick: %v", a.step, a.machine.Node.Name, ill, all, a.machine.Node.Status.Conditions)
	}
}

func (s *simulation) apply(a command) {
	claim, node := s.claim(a.machine.Claim.Name), s.node(a.machine.Node.Name)
	now := s.cluster.Now.Format(time.RFC3339)
	switch a.step {
	case force:
		s.mayRepair(a)
		if claim.DeletionTimestamp == nil {
			claim.DeletionTimestamp = &metav1.Time{Time: s.cluster.Now}
		}
		claim.Annotations[v1alpha1.ReplacingAnnotation], claim.Annotations[v1alpha1.ReplacingSinceAnnotation] = reason.Unhealthy, now
		claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey] = now
	case replace:
		if a.reason == reason.Unhealthy {
			s.mayRepair(a)
		}
		claim.Annotations[v1alpha1.ReplacingAnnotation], claim.Annotations[v1alpha1.ReplacingSinceAnnotation] = a.reason, now
	case stop, giveUp:
		delete(claim.Annotations, v1alpha1.ReplacingAnnotation)
		clearNode(node)
	case hold, keep:
		clearNode(node)
	case markIdle:
		node.Annotations[v1alpha1.IdleSinceAnnotation] = now
	case taint:
		s.mayDrain(a)
		node.Annotations[v1alpha1.DisruptingSinceAnnotation] = now
		if !tainted(node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: v1alpha1.DisruptingTaintKey, Effect: corev1.TaintEffectNoSchedule})
		}
	case remove:
		if !tainted(node) {
			s.Fatalf("%s goes without a taint", node.Name)
		}
		s.mayDrain(a)
		claim.DeletionTimestamp = &metav1.Time{Time: s.cluster.Now}
	case handOver:
		s.mayDrain(a)
		for _, pod := range a.pods {
			s.evict(pod.UID)
		}
	case blocked, stay:
	}
}

// mayDrain checks that the pods of a machine that goes have room on machines that have started, after all others that wait for it or are about to.
func (s *simulation) mayDrain(a command) {
	ahead := 0
	for i := range s.cluster.Pods {
		if s.cluster.Pods[i].Spec.NodeName == "" {
			ahead++
		}
	}
	for _, m := range s.machines() {
		if m.Deleting() || m.Replacing() != "" && disrupting(&m) && m.Claim.Name != a.machine.Claim.Name {
			ahead += len(m.Moving())
		}
		if m.Claim.Name == a.machine.Claim.Name && slices.ContainsFunc(m.Pods, func(p *corev1.Pod) bool { return s.blocking[p.UID] }) {
			s.Fatalf("%s goes with a pod that may not be evicted", m.Node.Name)
		}
	}
	if _, started, _ := s.need(); !s.mixed && len(a.machine.Moving()) > 0 && started < ahead+len(a.machine.Moving()) {
		s.Fatalf("%s of %s with %d pods, when %d others need one of %d places", a.step, a.machine.Node.Name, len(a.machine.Moving()), ahead, started)
	}
}

// settles lets everybody do what there is to do, fairly, until nothing changes; it says whether that came to pass. People see to what is sick and is not replaced.
func (s *simulation) settles() bool {
	quiet := 0
	for range 900 {
		s.cluster.Now = s.cluster.Now.Add(settle)
		for name, sick := range repair.Diagnose(s.cluster, s.machines(), borne).Cases {
			if sick.Kept != "" {
				s.recovers(name)
			}
		}
		s.decides()
		s.provision()
		for _, name := range s.waiting() {
			s.start(name, false)
		}
		for _, name := range s.deleting() {
			s.drain(name)
		}
		for s.bind(s.prefers) {
		}
		if !s.quiet() {
			quiet = 0
		} else if quiet++; !s.cheaper || quiet > 3 {
			return true
		} else {
			s.cluster.Now = s.cluster.Now.Add(unprofitableFor)
		}
	}
	return false
}

// quiet says that no pod waits, nothing is on its way in or out, and no machine has drifted.
func (s *simulation) quiet() bool {
	if need, _, _ := s.need(); need > 0 || len(s.deleting())+len(s.waiting()) > 0 {
		return false
	}
	pool := s.cluster.Pools()[0]
	for _, m := range s.machines() {
		if m.Replacing() != "" || disrupting(&m) || sick(&m) || drift.Of(s.cluster, &pool, &m) != nil {
			return false
		}
	}
	return true
}

// one draws one of the names.
func one(t *rapid.T) func(names []string) string {
	return func(names []string) string { return rapid.SampledFrom(names).Draw(t, "one") }
}

// goesOn is what the cloud, the scheduler and Karpenter do by themselves.
func (s *simulation) goesOn(t *rapid.T, move string) {
	switch move {
	case "start", "refuse":
		if names := s.waiting(); len(names) > 0 {
			s.start(one(t)(names), rapid.IntRange(0, 3).Draw(t, "refused") == 0)
		}
	case "bind":
		for s.bind(one(t)) {
		}
	case "drain":
		for _, name := range s.deleting() {
			s.drain(name)
		}
	default:
		t.Fatalf("nobody knows the move %q", move)
	}
}

func (s *simulation) String() string {
	var b strings.Builder
	for _, m := range s.machines() {
		fmt.Fprintf(&b, "%s pods %d replacing %q marked %t deleting %t\n", m.Claim.Name, len(m.Pods), m.Replacing(), disrupting(&m), m.Deleting())
	}
	return b.String()
}

// Whatever happens in whatever order: no more machines are launched than there are pods without a place, also while pods move and turn up under other names; no
// machine drains before its pods have a place on machines that have started, but for those that do not answer for them, nor more of them than the budgets allow;
// none goes as a sick one that is well, or when more than a fifth are sick; and when everybody does their part all machines that have drifted or are sick
// are replaced in the end, and no mark is left.
func TestReplacingWhateverHappens(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newSimulation(t, rapid.IntRange(0, 45).Draw(t, "pods"), rapid.IntRange(1, 3).Draw(t, "budget"), rapid.IntRange(0, 2).Draw(t, "mixed") == 0,
			rapid.Bool().Draw(t, "cheaper"))
		if !s.settles() {
			t.Fatalf("the pods do not start:\n%s", s)
		}
		for range rapid.IntRange(0, 60).Draw(t, "moves") {
			s.cluster.Now = s.cluster.Now.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "seconds")) * time.Second)
			move := rapid.SampledFrom([]string{"decide", "decide", "decide", "provision", "provision", "start", "start", "refuse", "bind", "drain", "drain", "drift", "interrupt", "scale", "leave", "block", "sick", "well", "probe", "mend"}).Draw(t, "move")
			switch move {
			case "decide":
				s.decides()
			case "provision":
				s.provision()
			case "drift":
				s.drift()
			case "interrupt":
				for _, m := range s.machines() {
					if m.Node != nil && rapid.IntRange(0, 4).Draw(t, "interrupted") == 0 {
						s.interrupt(m.Claim.Name)
					}
				}
			case "sick", "well":
				for _, m := range s.machines() {
					if m.Started() && rapid.IntRange(0, 3).Draw(t, "falls sick") == 0 {
						s.falls(m.Claim.Name, rapid.SampledFrom(ailments).Draw(t, "with"), rapid.SampledFrom([]corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue}).Draw(t, "status"))
					}
				}
			case "scale":
				for range rapid.IntRange(1, 6).Draw(t, "more") {
					s.pod()
				}
			case "leave":
				s.leave(rapid.IntRange(1, 9).Draw(t, "tenths"))
			case "probe":
				s.cluster.NodePools[0].StatusConditions().SetUnknownWithReason(v1alpha1.ConditionReplicasHealthy, "Probing", "")
			case "mend":
				s.cluster.NodePools[0].StatusConditions().SetTrue(v1alpha1.ConditionReplicasHealthy)
			case "block":
				for i := range s.cluster.Pods {
					s.blocking[s.cluster.Pods[i].UID] = rapid.IntRange(0, 4).Draw(t, "blocks") == 0
				}
			default:
				s.goesOn(t, move)
			}
		}
		s.cluster.NodePools[0].StatusConditions().SetTrue(v1alpha1.ConditionReplicasHealthy)
		s.blocking = map[types.UID]bool{}
		if !s.settles() {
			t.Fatalf("there is no end:\n%s", s)
		}
	})
}
