package provisioning

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// placing returns a view with a node of a backend, and a plan that places two pods there.
func placing(backend string, edits ...func(*corev1.Node)) (*snapshot.View, *corev1.Node, planner.Plan) {
	c := Shared()
	t := TypeNamed("g4dn.xlarge")
	claim := Claim("one", &c.NodePools[0], t, Initialized(Now), func(claim *karpv1.NodeClaim) {
		if backend != "" {
			claim.Annotations[nodecontract.BackendAnnotation] = backend
		}
	})
	node := Node(&claim, t, 10, edits...)
	c.NodeClaims, c.Nodes, c.Pods = append(c.NodeClaims, claim), append(c.Nodes, node), Pods("web", 2)
	view := snapshot.Build(c)
	return &view, &node, planner.Plan{Placements: []planner.Placement{{Node: 0, Pods: []string{"default/web-000", "default/web-001"}}}}
}

func TestSchedulerIsWokenForPodsThatHaveHadAPlace(t *testing.T) {
	t.Parallel()
	view, _, plan := placing(nodecontract.BackendDRA)
	w := &wakes{}
	var at []time.Duration
	for passed := time.Duration(0); passed < 4*time.Minute; passed += time.Second {
		on, next := w.due(view, plan.Placements, Now.Add(passed))
		if next <= 0 {
			t.Fatalf("after %s nothing is due in %s", passed, next)
		}
		if on != nil {
			at = append(at, passed)
		}
	}
	// The pause doubles, because the scheduler may have a reason that the plan does not know.
	if len(at) != 4 || at[0] != 10*time.Second || at[1] != 30*time.Second || at[2] != 70*time.Second || at[3] != 150*time.Second {
		t.Errorf("the scheduler is woken after %v", at)
	}
}

func TestSchedulerIsWokenAtMostOnceInTenSeconds(t *testing.T) {
	t.Parallel()
	view, _, plan := placing(nodecontract.BackendDRA)
	first, both := []planner.Placement{{Node: 0, Pods: plan.Placements[0].Pods[:1]}}, plan.Placements
	w := &wakes{}
	w.due(view, first, Now)
	w.due(view, both, Now.Add(5*time.Second))
	if on, _ := w.due(view, both, Now.Add(10*time.Second)); on == nil {
		t.Error("the scheduler is not woken when the first pod is due")
	}
	if on, next := w.due(view, both, Now.Add(15*time.Second)); on != nil || next != 5*time.Second {
		t.Errorf("when the second pod is due five seconds later, the scheduler is woken (%t), or the next is in %s", on != nil, next)
	}
	if on, _ := w.due(view, both, Now.Add(20*time.Second)); on == nil {
		t.Error("the second pod is forgotten")
	}
	w.due(view, nil, Now.Add(time.Minute))
	if on, _ := w.due(view, both, Now.Add(2*time.Minute)); on != nil {
		t.Error("a pod that had no place in between counts from its first place")
	}
}

func TestSchedulerIsNotWokenForOtherNodes(t *testing.T) {
	t.Parallel()
	for name, view := range map[string]func() (*snapshot.View, *corev1.Node, planner.Plan){
		"a device plugin": func() (*snapshot.View, *corev1.Node, planner.Plan) { return placing("") },
		"a node that is to go": func() (*snapshot.View, *corev1.Node, planner.Plan) {
			return placing(nodecontract.BackendDRA, func(n *corev1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: v1alpha1.DisruptingTaintKey, Effect: corev1.TaintEffectNoSchedule})
			})
		},
		"pods that run": func() (*snapshot.View, *corev1.Node, planner.Plan) {
			view, node, plan := placing(nodecontract.BackendDRA)
			for _, pod := range view.Pods {
				pod.Spec.NodeName = "leaving"
			}
			return view, node, plan
		},
	} {
		view, _, plan := view()
		w := &wakes{}
		for passed := range 5 {
			if on, next := w.due(view, plan.Placements, Now.Add(time.Duration(passed)*time.Minute)); on != nil || next != 0 {
				t.Errorf("%s: the scheduler is woken (%t), or the next is in %s", name, on != nil, next)
			}
		}
	}
}

func TestWakingChangesALabelOfTheNode(t *testing.T) {
	t.Parallel()
	view, node, plan := placing(nodecontract.BackendDRA)
	clk := clocktesting.NewFakeClock(Now)
	c := New(Config{Client: fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(node.DeepCopy()).Build(), Clock: clk})
	for range 2 {
		if _, err := c.wake(t.Context(), view, plan); err != nil {
			t.Fatal(err)
		}
		clk.Step(wakeAfter)
	}
	if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
		t.Fatal(err)
	}
	if got, want := node.Labels[v1alpha1.SchedulingRetriedLabel], strconv.FormatInt(Now.Add(wakeAfter).Unix(), 10); got != want {
		t.Errorf("the label is %q, want %q", got, want)
	}
}
