package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
)

// hasRun makes a pod look as if it had run for d.
func (s *scene) hasRun(name string, d time.Duration) {
	s.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}}
	patch := fmt.Sprintf(`{"status":{"startTime":%q}}`, time.Now().Add(-d).UTC().Format(time.RFC3339))
	if err := s.api.Status().Patch(s.t.Context(), pod, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		s.t.Fatal(err)
	}
}

// reportUnused makes the node's agent report that pods have not used their GPUs for d, and the pods look as if they had run for longer. kwok may have written their
// status again since the last report, from a watch that was late.
func (s *scene) reportUnused(node corev1.Node, d time.Duration, pods ...string) {
	s.t.Helper()
	for _, pod := range pods {
		s.hasRun(pod, d+time.Hour)
	}
	r := nodecontract.UnusedReport{AsOf: time.Now().UTC().Truncate(time.Second), Since: map[string]time.Time{}}
	for _, pod := range pods {
		r.Since[s.name+"/"+pod] = r.AsOf.Add(-d)
	}
	s.patch(&node, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, nodecontract.UnusedSinceAnnotation, r.String()))
}

func TestUnusedMachineIsReportedAndItsWillingPodsAreEvicted(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "unused")
	s.class("2s", func(c *v1alpha1.GPUNodeClassSpec) { c.Consolidation.UnusedAfter = "2h" })
	s.pool(poolOptions{})
	notebooks := []string{"one", "two"}
	for _, name := range notebooks {
		s.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: s.name, Name: name, Labels: map[string]string{"app": name}, Annotations: map[string]string{v1alpha1.EvictWhenUnusedAnnotation: "3h"},
		}, Spec: s.podSpec()})
	}
	s.untilRunning(2)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "two"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "two"}},
	}}
	s.create(budget)
	node := s.nodes(s.name)[0]
	there := func() []string {
		var names []string
		for _, pod := range s.pods() {
			if pod.DeletionTimestamp == nil {
				names = append(names, pod.Name)
			}
		}
		slices.Sort(names)
		return names
	}

	s.reportUnused(node, 150*time.Minute, notebooks...)
	s.untilEvent("Node", node.Name, "Unused", "2h30m0s", "$0.526 an hour", "unused/one, unused/two")
	s.until(enough, "the class says what it costs", func() (bool, string) {
		class := &v1alpha1.GPUNodeClass{}
		if err := s.seen.Get(t.Context(), client.ObjectKey{Name: s.name}, class); err != nil {
			return false, err.Error()
		}
		return class.Status.UnusedNodes == 1 && class.Status.UnusedUSDPerHour == "0.526", fmt.Sprintf("%+v", class.Status)
	})
	if got := there(); !slices.Equal(got, notebooks) {
		t.Errorf("the pods left are %q, want all: they allow half an hour more", got)
	}

	s.reportUnused(node, 4*time.Hour, notebooks...)
	s.untilEvent("Pod", "one", "EvictedWhenUnused", "4h0m0s", "3h")
	s.untilEvent("Pod", "two", "UnusedButKept", "PodDisruptionBudget unused/two")
	if got := there(); !slices.Equal(got, notebooks[1:]) {
		t.Errorf("%q are left, want only the one with a budget", got)
	}
	s.delete(budget)
	s.reportUnused(node, 5*time.Hour, "two")
	s.untilEvent("Pod", "two", "EvictedWhenUnused")
	s.untilGone(s.name)
}
