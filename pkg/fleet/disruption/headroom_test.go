package disruption

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/headroom"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// warm is a simulation with headroom in which idle machines are removed.
type warm struct {
	*simulation
}

func newWarm(t *rapid.T, pods int) warm {
	w := warm{newSimulation(t, pods, 100, false, false)}
	w.cluster.GPUNodeClasses[0].Spec.Consolidation.IdleAfter = "2m"
	return w
}

func (w warm) wants(replicas int32) {
	w.cluster.GPUNodeClasses[0].Spec.Headroom = []v1alpha1.Headroom{{Replicas: replicas}}
}

// headroom returns the headroom that Karve plans.
func (w warm) headroom() headroom.Headroom {
	view := snapshot.Build(w.cluster)
	h := headroom.Build(&view, solve.Solver{Effort: 1}.Plan(view.Snapshot), solve.Solver{Effort: 1})
	if err := check.Plan(h.Snapshot, h.Plan); err != nil {
		w.Fatal(err)
	}
	return h
}

// launch launches machines for the pods, or for the headroom if the pods need none.
func (w warm) launch() {
	before := len(w.cluster.NodeClaims)
	w.provision()
	if len(w.cluster.NodeClaims) > before {
		return
	}
	h := w.headroom()
	w.create(&h.View, h.Plan.Launches)
}

// givesBack runs Karve's next steps. It checks that removing a machine does not increase what has to be launched for the headroom.
func (w warm) givesBack() {
	state := passOf(w.cluster)
	state.settle, state.fakePods().blocker = settle, func([]*corev1.Pod) string { return "" }
	before := w.headroom()
	actions, _ := decide(state)
	for _, a := range actions {
		if r, _ := before.Of(a.Machine.Pool()); a.Step == Remove && a.Machine.Empty() && r.Coming > 0 {
			w.Fatalf("%s goes while %d replicas of the headroom are on their way:\n%s", a.Machine.Node.Name, r.Coming, w)
		}
		w.apply(a)
	}
	after := w.headroom()
	if more := len(after.Plan.Launches) - len(before.Plan.Launches); more > 0 {
		w.Fatalf("%v makes %d launches for headroom necessary:\n%s", steps(actions), more, w)
	}
}

// end ends a running pod.
func (w warm) end(pick func(int) int) {
	running := slices.Collect(func(yield func(int) bool) {
		for i := range w.cluster.Pods {
			if w.cluster.Pods[i].Spec.NodeName != "" && !yield(i) {
				return
			}
		}
	})
	if len(running) > 0 {
		i := running[pick(len(running))]
		w.cluster.Pods = slices.Delete(w.cluster.Pods, i, i+1)
	}
}

// rank lets each component act once.
func (w warm) rank(pick func([]string) string) {
	w.cluster.Now = w.cluster.Now.Add(settle)
	for w.bind(pick) {
	}
	w.givesBack()
	w.launch()
	for _, name := range w.waiting() {
		w.start(name, false)
	}
	for range 2 * perXlarge {
		for _, name := range w.deleting() {
			w.drain(name)
		}
	}
}

// TestHeadroomHoldsForAnyEvents checks for any sequence of events that Karve removes no machine that the headroom needs, so that none is launched to replace
// it; that no pod waits because of the headroom; and that, once nothing changes, the whole headroom is free on no more machines than necessary.
func TestHeadroomHoldsForAnyEvents(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWarm(t, rapid.IntRange(0, 25).Draw(t, "pods"))
		w.wants(int32(rapid.IntRange(1, 25).Draw(t, "replicas")))
		first := func(names []string) string { return names[0] }
		for range rapid.IntRange(0, 50).Draw(t, "moves") {
			w.cluster.Now = w.cluster.Now.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second)
			move := rapid.SampledFrom([]string{"turn", "turn", "give back", "give back", "launch", "start", "refuse", "bind", "drain", "come", "come", "end", "interrupt", "edit"}).Draw(t, "move")
			switch move {
			case "turn":
				w.rank(one(t))
			case "give back":
				w.givesBack()
			case "launch":
				w.launch()
			case "come":
				for range rapid.IntRange(1, 12).Draw(t, "more") {
					w.pod()
				}
			case "end":
				for range rapid.IntRange(1, 12).Draw(t, "less") {
					w.end(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "which") })
				}
			case "interrupt":
				if names := w.started(); len(names) > 0 {
					w.interrupt(one(t)(names))
				}
			case "edit":
				w.wants(int32(rapid.IntRange(0, 25).Draw(t, "replicas")))
			default:
				w.carriesOut(t, move)
			}
		}
		for range 20 {
			w.rank(first)
		}
		h := w.headroom()
		r, asked := h.Of("gpu-shared")
		if need, _, _ := w.need(); need > 0 || asked && r.Free != r.Wanted {
			t.Fatalf("%d pods wait, and of %d replicas that are wanted %d are free:\n%s", need, r.Wanted, r.Free, w)
		}
		keeps := h.Keeps()
		for _, m := range w.machines() {
			if m.Empty() && !keeps[m.Node.Name] {
				t.Fatalf("%s stays without need:\n%s", m.Node.Name, w)
			}
		}
		machines := len(w.machines())
		w.wants(0)
		for range 20 {
			w.rank(first)
		}
		for _, m := range w.machines() {
			if m.Empty() {
				t.Fatalf("%s of %d machines stays when no headroom is wanted any more:\n%s", m.Node.Name, machines, w)
			}
		}
	})
}

func TestDriftedMachineGoesOnceHeadroomIsFreeElsewhere(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	c.GPUNodeClasses[0].Spec.Headroom = []v1alpha1.Headroom{{Replicas: 10}}
	c.NodePools[0].Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "100%"}}
	xlarge := snapshottest.TypeNamed("g4dn.xlarge")
	c.NodeClaims = []karpv1.NodeClaim{snapshottest.Claim("a", &c.NodePools[0], xlarge, snapshottest.Initialized(c.Now))}
	c.Nodes = []corev1.Node{snapshottest.Node(&c.NodeClaims[0], xlarge, 10)}
	next := func() []string {
		state := passOf(c)
		state.settle, state.fakePods().blocker = settle, func([]*corev1.Pod) string { return "" }
		state.named("a").Candidate = &reason.Candidate{Reason: karpv1.DisruptionReasonDrifted, Word: "NodePoolDrifted"}
		state.named("a").Steady = true
		actions, _ := decide(state)
		return steps(actions)
	}
	if diff := cmp.Diff([]string{"Replace a"}, next()); diff != "" {
		t.Errorf("at first (-want +got):\n%s", diff)
	}
	c.NodeClaims[0].Annotations[v1alpha1.ReplacingAnnotation] = "NodePoolDrifted"
	c.NodeClaims[0].Annotations[v1alpha1.ReplacingSinceAnnotation] = c.Now.Format(time.RFC3339)
	c.NodeClaims = append(c.NodeClaims, snapshottest.Claim("b", &c.NodePools[0], xlarge))
	if got := next(); len(got) > 0 {
		t.Errorf("while the other machine starts: %v", got)
	}
	snapshottest.Initialized(c.Now)(&c.NodeClaims[1])
	c.Nodes = append(c.Nodes, snapshottest.Node(&c.NodeClaims[1], xlarge, 10))
	if diff := cmp.Diff([]string{"Taint a"}, next()); diff != "" {
		t.Errorf("when it has started (-want +got):\n%s", diff)
	}
}

// started returns the machines that have started.
func (w warm) started() []string {
	var names []string
	for _, m := range w.machines() {
		if m.Node != nil && !m.Deleting() {
			names = append(names, m.Claim.Name)
		}
	}
	return names
}
