package e2e

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/test/harness/cluster"
)

// untilHeadroom waits until all headroom of the scene's pool is free and the pool has the given number of machines.
func (s *scene) untilHeadroom(machines int) {
	s.t.Helper()
	s.until(enough, fmt.Sprintf("the headroom is free on %d machines", machines), func() (bool, string) {
		c := facts.Condition(s.nodePool(s.name).Status.Conditions, v1alpha1.ConditionHeadroomReady)
		here := alive(s.claims())
		if c == nil {
			return false, "no condition"
		}
		return c.IsTrue() && len(here) == machines, fmt.Sprintf("%s %s: %s\n%s", c.Status, c.Reason, c.Message, lines(here))
	})
}

// TestBurstWithinHeadroomStartsAtOnce keeps replicas free before there are any pods.
func TestBurstWithinHeadroomStartsAtOnce(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "warm")
	s.class("10s", func(spec *v1alpha1.GPUNodeClassSpec) { spec.Headroom = []v1alpha1.Headroom{{Replicas: 10}} })
	s.pool(poolOptions{})
	s.untilHeadroom(1)
	s.wantClaims(s.claims(), 1, karpv1.CapacityTypeOnDemand, 526_000)

	began, warm := time.Now(), s.nodes(s.name)[0].Name
	d := s.deploy("burst", 10)
	s.untilRunning(10)
	came, longest, homeless := s.history.waits(s.name, began)
	// The duration mostly depends on the load of the computer.
	t.Logf("ten pods came, the last was bound after %s", longest)
	if came != 10 || homeless > 0 {
		t.Errorf("of %d pods %d found no place at first, and one waited for %s", came, homeless, longest)
	}
	for _, pod := range s.pods() {
		if pod.Spec.NodeName != warm {
			t.Errorf("pod %s is on %s, not on %s, which was kept free", pod.Name, pod.Spec.NodeName, warm)
		}
	}

	// Another machine replaces the headroom that the burst took. After the burst, one of the two machines is removed and no other is launched.
	s.untilHeadroom(2)
	s.scale(d, 0)
	s.untilHeadroom(1)
	s.stays(30*time.Second, "one machine is kept", func() (bool, string) { return len(alive(s.claims())) == 1, lines(s.claims()) })
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 1_052_000)

	s.patch(&v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: s.name}}, `{"spec":{"headroom":null}}`)
	s.untilGone(s.name)
}

// TestKarveServesCapacityBufferOfSharedPods lets Karpenter resolve the buffer. None of Karpenter's own pools accepts its pods.
func TestKarveServesCapacityBufferOfSharedPods(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "buffered")
	s.class("5s")
	s.pool(poolOptions{})
	shared := func(spec *corev1.PodSpec) {
		// Karpenter does not read the limits of a template. Without these requests, it would see pods without a GPU that fit any pool.
		spec.Containers[0].Resources.Requests[v1alpha1.ResourceGPUShared] = resource.MustParse("1")
	}
	d := s.deploy("inference", 5, shared)
	s.untilRunning(5)
	buffer := s.buffer("burst", map[string]any{"scalableRef": map[string]any{"apiGroup": "apps", "kind": "Deployment", "name": d.Name}, "percentage": int64(200)})
	s.untilHeadroom(2)
	s.untilCondition(s.name, v1alpha1.ConditionHeadroomReady, "True", "10 of 10")
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 1_052_000)

	// There is room for one more pod of each kind of object that has a template.
	few := []*unstructured.Unstructured{buffer}
	for kind, o := range s.templates(shared) {
		s.create(o)
		ref := map[string]any{"scalableRef": map[string]any{"apiGroup": "apps", "kind": kind, "name": o.GetName()}, "replicas": int64(1)}
		if kind == "PodTemplate" {
			ref = map[string]any{"podTemplateRef": map[string]any{"name": o.GetName()}, "replicas": int64(1)}
		}
		few = append(few, s.buffer(o.GetName(), ref))
	}
	s.untilCondition(s.name, v1alpha1.ConditionHeadroomReady, "True", "13 of 13")
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 1_052_000)
	for _, buffer := range few {
		s.delete(buffer)
	}
	s.until(enough, "one machine goes", func() (bool, string) { return len(alive(s.claims())) == 1, lines(s.claims()) })
}

// buffer creates a CapacityBuffer.
func (s *scene) buffer(name string, spec map[string]any) *unstructured.Unstructured {
	s.t.Helper()
	buffer := manifest("autoscaling.x-k8s.io/v1beta1", "CapacityBuffer", name, spec)
	buffer.SetNamespace(s.name)
	s.create(buffer)
	return buffer
}

// templates returns objects with a pod template but no pods, by kind: every kind that a CapacityBuffer can refer to besides Deployment.
func (s *scene) templates(change ...func(*corev1.PodSpec)) map[string]client.Object {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: s.name, Name: name} }
	pods := map[string]string{"app": "none"}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pods}, Spec: s.podSpec(change...)}
	selector := &metav1.LabelSelector{MatchLabels: pods}
	return map[string]client.Object{
		"PodTemplate": &corev1.PodTemplate{ObjectMeta: meta("template"), Template: template},
		"StatefulSet": &appsv1.StatefulSet{ObjectMeta: meta("stateful"), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(0)), Selector: selector, Template: template}},
		"ReplicaSet":  &appsv1.ReplicaSet{ObjectMeta: meta("replicated"), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(0)), Selector: selector, Template: template}},
	}
}
