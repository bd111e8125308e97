package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
)

func withMPS(replicas int32) func(*v1alpha1.GPUNodeClassSpec) {
	return func(c *v1alpha1.GPUNodeClassSpec) {
		c.Sharing.Strategy, c.Sharing.Replicas = v1alpha1.StrategyMPS, &replicas
	}
}

// TestMPSPodsShareGPUsAtSixteen has pods that state just less than a sixteenth of a T4's memory, and one that states more.
func TestMPSPodsShareGPUsAtSixteen(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "sixteen")
	s.class(v1alpha1.IdleNever, withMPS(16))
	s.pool(poolOptions{requirements: map[string]string{corev1.LabelInstanceTypeStable: cheapest}})
	light := func(spec *corev1.PodSpec) { // Sixteen fit into the main memory of a machine.
		spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("512Mi")
	}
	stating := func(name, memory string) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name, Annotations: map[string]string{v1alpha1.GPUMemoryAnnotation: memory}}, Spec: s.podSpec(asking("150m"), light)}
		s.create(pod)
	}
	for i := range 32 {
		stating(fmt.Sprintf("model-%02d", i), "900Mi")
	}
	s.untilRunning(32)
	stating("large", "2Gi") // The scheduler would give it a free replica.
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 2*526_000)
	s.untilEvent("Pod", "large", "TooLarge", "states 2Gi of device memory", "with MPS")
	for _, n := range s.nodes(s.name) {
		mps, err := nodecontract.ParseMPS(n.Annotations[nodecontract.MPSAnnotation])
		if err != nil || mps != nodecontract.DefaultMPS || n.Annotations[nodecontract.ReplicasPerGPUAnnotation] != "16" {
			t.Errorf("node %s promises %v, %v", n.Name, n.Annotations, err)
		}
	}
	s.stays(3*time.Second, "no machine for the pod that is too large", func() (bool, string) { return len(s.claims()) == 2, lines(s.claims()) })
}

// TestAnotherStrategyReplacesNodesWithinBudget changes the strategy of a pool with full nodes. A node keeps the strategy that it was launched with.
func TestAnotherStrategyReplacesNodesWithinBudget(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	const nodes = 3
	s := w.scene(t, "switched")
	s.class("20s")
	s.pool(poolOptions{budget: "1", requirements: map[string]string{corev1.LabelInstanceTypeStable: cheapest}})
	s.deploy("inference", 10*nodes)
	s.untilRunning(10 * nodes)
	began := time.Now()
	s.patch(&v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: s.name}}, `{"spec":{"sharing":{"strategy":"MPS","backend":"DevicePlugin","mps":{"memoryOvercommitPercent":150}}}}`)
	promises := map[string]string{}
	s.until(enough+nodes*time.Minute, "all machines are new", func() (bool, string) {
		for _, n := range s.nodes(s.name) {
			if n.Annotations[nodecontract.ResourceAnnotation] == "" {
				continue // Karpenter has not found it yet.
			}
			now := n.Annotations[nodecontract.MPSAnnotation]
			if was, known := promises[n.Name]; known && now != was {
				t.Fatalf("node %s was launched with %q and has %q", n.Name, was, now)
			}
			promises[n.Name] = now
		}
		old := slices.DeleteFunc(slices.Clone(s.claims()), func(c claim) bool { return !c.first.Before(began) || !c.gone.IsZero() })
		return len(old) == 0 && s.running() == 10*nodes, fmt.Sprintf("%d old ones are left, %d pods run", len(old), s.running())
	})
	if n := most(s.claims()); n > 1 {
		t.Errorf("%d machines went at once, with a budget of 1:\n%s", n, lines(s.claims()))
	}
	if _, longest, homeless := w.history.waits(s.name, began); homeless > 0 {
		t.Errorf("%d pods that moved had to wait for a machine, up to %s", homeless, longest)
	}
	want := nodecontract.MPS{MemoryOvercommitPercent: 150, Users: nodecontract.MPSUsersAny}
	for _, n := range s.nodes(s.name) {
		if mps, err := nodecontract.ParseMPS(n.Annotations[nodecontract.MPSAnnotation]); err != nil || mps != want {
			t.Errorf("node %s has %+v, %v", n.Name, mps, err)
		}
	}
	s.wantMetric("karve_nodes_replacements_total", nodes, `reason="SharingDrifted"`, `result="Done"`)
}
