package e2e

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// oneIdleNode launches a machine for a pod, calls arrange, and deletes the pod. It returns the node.
func (s *scene) oneIdleNode(idleAfter string, o poolOptions, arrange func(corev1.Node)) corev1.Node {
	s.t.Helper()
	s.class(idleAfter)
	s.pool(o)
	s.pod("first")
	s.untilRunning(1)
	node := s.nodes(s.name)[0]
	if arrange != nil {
		arrange(node)
	}
	s.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "first"}})
	return node
}

// staysIdle checks that an event gives the reason why the node is kept, and that the node is neither tainted nor removed for a while after that.
func (s *scene) staysIdle(node corev1.Node, words ...string) {
	s.t.Helper()
	s.untilEvent("Node", node.Name, "IdleButKept", words...)
	s.stays(settings.Settle+5*time.Second, "the node is kept", func() (bool, string) { return len(alive(s.claims())) == 1, lines(s.claims()) })
	if s.history.wasLeaving(node.Name) {
		s.t.Errorf("node %s was tainted although it may not go\n%s", node.Name, s.dump())
	}
}

func TestIdleNodeWithDoNotDisruptStays(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "forbidden")
	node := s.oneIdleNode("2s", poolOptions{}, func(n corev1.Node) {
		s.patch(&n, fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}}}`, karpv1.DoNotDisruptAnnotationKey))
	})
	s.staysIdle(node, karpv1.DoNotDisruptAnnotationKey)
	s.patch(&node, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, karpv1.DoNotDisruptAnnotationKey))
	s.untilGone(s.name)
}

func TestIdleNodeStaysWhileItsDaemonCannotBeEvicted(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "daemon")
	labels := map[string]string{"app": "agent"}
	spec := s.podSpec(selects(karpv1.NodePoolLabelKey, s.name), func(spec *corev1.PodSpec) {
		// A DaemonSet pod that tolerates everything would not be evicted at all.
		spec.Containers[0].Resources = corev1.ResourceRequirements{}
	})
	s.create(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "agent"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
	}})
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "agent"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
	}}
	s.create(budget)
	s.class("2s")
	s.pool(poolOptions{})
	s.pod("first")
	s.until(enough, "the pod and the daemon run, and the budget counts it", func() (bool, string) {
		if err := s.api.Get(t.Context(), client.ObjectKeyFromObject(budget), budget); err != nil {
			return false, err.Error()
		}
		st := budget.Status
		return s.running() == 2 && st.CurrentHealthy == 1 && st.DisruptionsAllowed == 0, fmt.Sprintf("%d run, budget %+v", s.running(), st)
	})
	s.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "first"}})
	s.staysIdle(s.nodes(s.name)[0], s.name+"/agent", "PodDisruptionBudget")
	s.delete(budget)
	s.untilGone(s.name)
}

func TestZeroBudgetKeepsIdleNodes(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "budget")
	node := s.oneIdleNode("2s", poolOptions{budget: "0"}, nil)
	s.staysIdle(node, "disruption budgets of NodePool budget allow 0")
}

func TestLatePodKeepsNodeFromRemoval(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "lastmoment")
	s.oneIdleNode("2s", poolOptions{}, nil)
	s.untilTainted()
	s.pod("second")
	s.untilRunning(1)
	s.untilNotTainted()
	s.wantClaims(s.claims(), 1, karpv1.CapacityTypeOnDemand, 526_000)
	if left := alive(s.claims()); len(left) != 1 {
		t.Errorf("the node is on its way out:\n%s", lines(s.claims()))
	}
}
