package disruption

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// perXlarge is how many pods a simulated xlarge holds. Replicas are its scarcest resource.
const perXlarge = 10

// simulatedEffort is the effort of a search for a cheaper layout.
const simulatedEffort = 1000

// simulation is a cluster in which Karve decides and all others act: Karpenter, the scheduler, and the owners of pods. With one instance type and identical
// pods, the test can count what is needed without a planner.
type simulation struct {
	rapid.TB
	cluster *facts.Cluster
	// made counts the created objects, for their names, and created the NodeClaims of launches.
	made, created int
	// budget is how many machines may be replaced at once.
	budget int
	// mixed means that pods request different amounts and that machines have different types. The needs cannot be counted then, and the test checks only the
	// other rules.
	mixed bool
	// cheaper enables moving pods to make the machines cheaper. vain lists the NodeClaims that could not be removed for this, and until when they are skipped.
	cheaper bool
	vain    map[string]time.Time
	// accounts has the accounts of the GPUNodeClasses, and saving reports whether one of them does not cover a step yet.
	accounts Accounts
	saving   bool
	// prefers returns which of the Nodes with room the scheduler chooses, unless the choice is drawn at random.
	prefers func([]string) string
	// blocking has the UIDs of pods that may not be evicted.
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
		s.cluster.GPUNodeClasses[0].Spec.Consolidation = v1alpha1.Consolidation{IdleAfter: "1m", RestartCost: "0.001"}
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

// again adds a pending copy of a pod under a new name.
func (s *simulation) again(pod corev1.Pod) {
	s.made++
	s.cluster.Pods = append(s.cluster.Pods, snapshottest.Pod(fmt.Sprintf("pod-%04d", s.made), func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources, p.OwnerReferences = pod.Spec.Containers[0].Resources, pod.OwnerReferences
		p.CreationTimestamp = metav1.NewTime(s.cluster.Now)
	}))
}

func (s *simulation) machines() []records.Machine { return records.Machines(s.cluster) }

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

// need returns how many pods wait or will wait, and how many more pods fit on the machines that stay: those that have started, and all including those on their
// way.
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
		if NotReady(m.Node) {
			continue
		}
		all += perXlarge - len(m.Pods)
		if m.Initialized() && !Tainted(m.Node) {
			started += perXlarge - len(m.Pods)
		}
	}
	return need, started, all
}

// provision launches machines for the pods without a place, and checks that it launches no more than they need.
func (s *simulation) provision() {
	view := snapshot.Build(s.cluster)
	effort := int64(placeEffort)
	if s.cheaper { // Launches dearer than what a step foresaw would undo the step, again and again.
		effort = costEffort
	}
	plan := solve.Solver{Effort: effort}.Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil {
		s.Fatal(err)
	}
	need, _, free := s.need()
	healthy := facts.Condition(s.cluster.NodePools[0].Status.Conditions, v1alpha1.ConditionReplicasHealthy)
	probed := healthy != nil && healthy.IsUnknown()
	if probed && len(plan.Launches) > 1 {
		s.Fatalf("%d machines are planned for a pool that is being probed", len(plan.Launches))
	}
	if want := max(0, (need-free+perXlarge-1)/perXlarge); !s.mixed && !probed && len(plan.Launches) != want {
		s.Fatalf("%d machines are planned for %d pods without a place and %d free places, want %d", len(plan.Launches), need, free, want)
	}
	s.create(&view, plan.Launches)
}

// create creates the NodeClaims of launches.
func (s *simulation) create(view *snapshot.View, launches []planner.Launch) {
	for _, l := range launches {
		claim := render.NodeClaim(view, l, nil)
		if s.claim(claim.Name) != nil {
			continue // The name exists, so the API server rejects it.
		}
		s.created++
		claim.UID, claim.CreationTimestamp = types.UID(fmt.Sprint(claim.Name, "-", s.created)), metav1.NewTime(s.cluster.Now)
		s.cluster.NodeClaims = append(s.cluster.NodeClaims, *claim)
	}
}

// start starts the machine of a NodeClaim, or lets the cloud refuse it.
func (s *simulation) start(name string, refused bool) {
	claim := s.claim(name)
	if refused {
		s.cluster.NodeClaims = slices.DeleteFunc(s.cluster.NodeClaims, func(c karpv1.NodeClaim) bool { return c.Name == name })
		return
	}
	snapshottest.Initialized(s.cluster.Now)(claim)
	instanceType, _, _ := records.ShapeOf(claim)
	made := snapshottest.TypeNamed(instanceType)
	s.cluster.Nodes = append(s.cluster.Nodes, snapshottest.Node(claim, made, perXlarge*made.GPU.Count))
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

// bind binds a waiting pod to the node that pick chooses among those with room.
func (s *simulation) bind(pick func([]string) string) bool {
	for i := range s.cluster.Pods {
		pod := &s.cluster.Pods[i]
		if pod.Spec.NodeName != "" {
			continue
		}
		var nodes []string
		for _, m := range s.machines() {
			if m.Node != nil && !m.Deleting() && m.Initialized() && !Tainted(m.Node) && !NotReady(m.Node) && fits(&m, pod) {
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

// fits reports whether the scheduler would bind a pod to a machine.
func fits(m *records.Machine, pod *corev1.Pod) bool {
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

// drain advances the deletion of a machine by one step. It evicts a pod, which its owner replaces immediately, or ends a pod that was evicted before, or
// removes the machine once it is empty.
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

// evict starts the termination of a pod. Its owner replaces it immediately.
func (s *simulation) evict(uid types.UID) {
	for i := range s.cluster.Pods {
		if pod := &s.cluster.Pods[i]; pod.UID == uid {
			pod.DeletionTimestamp = &metav1.Time{Time: s.cluster.Now}
			s.again(*pod)
			return
		}
	}
}

// leave ends the given number of tenths of the running pods.
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

// interrupt deletes a machine as another client would.
func (s *simulation) interrupt(name string) {
	s.claim(name).DeletionTimestamp = &metav1.Time{Time: s.cluster.Now}
}

// drift changes the NodePool's template.
func (s *simulation) drift() {
	s.made++
	snapshottest.Labeled(map[string]string{"generation": fmt.Sprint(s.made)})(&s.cluster.NodePools[0])
}

// falls makes a machine unhealthy, or healthy again if the status is True. The scheduler binds no pods to a Node that is not ready.
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

// apply checks a command and carries it out.
func (s *simulation) apply(a Command) {
	claim, node := s.claim(a.Machine.Claim.Name), s.node(a.Machine.Node.Name)
	switch a.Step {
	case Force:
		s.mayRepair(a)
		if claim.DeletionTimestamp == nil {
			claim.DeletionTimestamp = &metav1.Time{Time: s.cluster.Now}
		}
	case Replace:
		if a.Reason == reason.Unhealthy {
			s.mayRepair(a)
		}
		if a.Reason == string(karpv1.DisruptionReasonUnderutilized) {
			s.mayMove(a)
		}
	case Taint:
		s.mayDrain(a)
	case Remove:
		if !Tainted(node) {
			s.Fatalf("%s goes without a taint", node.Name)
		}
		s.mayDrain(a)
		claim.DeletionTimestamp = &metav1.Time{Time: s.cluster.Now}
	case HandOver:
		s.mayDrain(a)
		for _, pod := range a.Pods {
			s.evict(pod.UID)
		}
	case Stop, GiveUp, Hold, Keep, MarkIdle, Blocked, Stay:
	}
	a.EditNode(node, s.cluster.Now)
	a.EditClaim(claim, s.cluster.Now)
	delete(claim.Annotations, v1alpha1.ReplaceAfterAnnotation) // Nobody waits here.
}

// carriesOut carries out a move of the cloud, the scheduler or Karpenter.
func (s *simulation) carriesOut(t *rapid.T, move string) {
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
		t.Fatalf("unknown move %q", move)
	}
}

func (s *simulation) String() string {
	var b strings.Builder
	for _, m := range s.machines() {
		fmt.Fprintf(&b, "%s pods %d replacing %q marked %t deleting %t\n", m.Claim.Name, len(m.Pods), m.Replacing(), Disrupting(&m), m.Deleting())
	}
	return b.String()
}

// TestReplacementHoldsForAnyEvents checks these properties for any sequence of events:
//   - Karve launches no more machines than there are pods without a place, also while pods move and reappear under new names.
//   - It drains a machine only when its pods have places on started machines, and no more machines than the budgets allow. Machines that do not
//     answer are an exception.
//   - It repairs no healthy machine, and none while more than a fifth are unhealthy.
//   - Once all components have acted, every drifted or unhealthy machine is replaced, and no mark is left.
func TestReplacementHoldsForAnyEvents(t *testing.T) {
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
				s.carriesOut(t, move)
			}
		}
		s.cluster.NodePools[0].StatusConditions().SetTrue(v1alpha1.ConditionReplicasHealthy)
		s.blocking = map[types.UID]bool{}
		if !s.settles() {
			t.Fatalf("the simulation does not settle:\n%s", s)
		}
	})
}
