package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

const (
	// mallory is the namespace of the bad objects.
	mallory = "mallory"
	// goodPods need five machines.
	goodPods, goodMachines = 50, 5
	// slower is how much longer Karve may take beside bad pods, on a busy machine.
	slower = 10 * time.Second
)

func TestHundredBadPodsDoNotDelayMachinesOfOthers(t *testing.T) { besideMallory(t, 100) }

func TestThousandBadPodsDoNotDelayMachinesOfOthers(t *testing.T) {
	cluster.Long(t)
	besideMallory(t, 1000)
}

// besideMallory measures how long good pods wait for machines, alone and beside bad pods and a CapacityBuffer that Karve cannot read.
func besideMallory(t *testing.T, bad int) {
	t.Helper()
	cluster.Require(t)
	t.Parallel()
	w := ownWorld(t, cluster.Config{}, karve.Options{Alone: true, DRA: true})
	s := w.scene(t, "good")
	s.class("1s")
	s.pool(poolOptions{})
	d := s.deploy("good", 0)
	// Karve learns of a pod once the scheduler has found no node for it, and the scheduler takes one pod after the other.
	wait := func() (w wait) {
		s.scale(d, goodPods)
		began := time.Now()
		w.machines = s.until(enough, "the good pods have machines", func() (bool, string) {
			if pods := s.pods(); w.scheduler == 0 && len(pods) >= goodPods && !slices.ContainsFunc(pods, unjudged) {
				w.scheduler = time.Since(began)
			}
			return len(alive(s.claims())) >= goodMachines, lines(s.claims())
		})
		if w.scheduler == 0 {
			w.scheduler = w.machines // Karve plans for pods together with others before the scheduler has seen all of them.
		}
		s.untilRunning(goodPods)
		return w
	}
	alone := wait()
	s.scale(d, 0)
	s.untilGone(s.name)

	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: mallory}})
	s.create(foreignBuffer())
	s.patchStatus(foreignBuffer(), `{"status":{"replicas":3,"conditions":[{"type":"ReadyForProvisioning","status":"True","reason":"Ready","message":"","lastTransitionTime":"2026-03-01T12:00:00Z"}]}}`)
	var group errgroup.Group
	group.SetLimit(8)
	for i := range bad {
		for _, o := range s.badPod(i) {
			if claims, ok := o.(*resourcev1.ResourceClaimTemplate); ok {
				s.create(claims) // Before its pod.
				continue
			}
			group.Go(func() error { return s.api.Create(t.Context(), o) })
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	among := wait()
	s.scale(d, 0)
	s.untilGone(s.name)
	// The API server and Karve have seen all bad pods once as many wait as before.
	waiting := -1.0
	s.until(enough, "all bad pods have arrived", func() (bool, string) {
		before := waiting
		waiting = w.metric(t, w.karve, "karve_pods_waiting")
		time.Sleep(10 * time.Second)
		return waiting > 0 && waiting == before, fmt.Sprint(waiting)
	})
	beside := wait()
	t.Logf("%d pods got %d machines in %s alone, in %s while %d bad pods arrived, and in %s beside them", goodPods, goodMachines, alone, among, bad, beside)
	if among.own() > alone.own()+slower || beside.own() > alone.own()+slower {
		t.Errorf("the good pods waited %s for machines while %d bad pods arrived, %s beside them, and %s alone", among, bad, beside, alone)
	}
}

// wait is how long pods waited until all have machines, and until the scheduler had found no node for any of them.
type wait struct{ machines, scheduler time.Duration }

// own is the part of Karve.
func (w wait) own() time.Duration { return w.machines - w.scheduler }

func (w wait) String() string {
	return fmt.Sprintf("%s (of which %s for the scheduler)", w.machines.Round(time.Millisecond), w.scheduler.Round(time.Millisecond))
}

// unjudged reports whether the scheduler has not seen a pod yet.
func unjudged(pod corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
}

// foreignBuffer returns a CapacityBuffer for an object of a kind that neither Karpenter nor Karve can read.
func foreignBuffer() *unstructured.Unstructured {
	buffer := manifest("autoscaling.x-k8s.io/v1beta1", "CapacityBuffer", "foreign", map[string]any{
		"replicas": int64(3), "scalableRef": map[string]any{"apiGroup": "argoproj.io", "kind": "Rollout", "name": "of"},
	})
	buffer.SetNamespace(mallory)
	return buffer
}

func (s *scene) patchStatus(o client.Object, patch string) {
	s.t.Helper()
	if err := s.api.Status().Patch(s.t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		s.t.Fatalf("patching the status of %T %s: %v", o, o.GetName(), err)
	}
}

// badPod returns the i-th bad pod, with the template of its claim if it has one. No machine has room for it. No two of them are alike. Half of them are as large as
// the API server accepts, and half as Karve plans for. Few have claims, because the API server takes seconds for the largest of them.
func (s *scene) badPod(i int) []client.Object {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: mallory, Name: fmt.Sprintf("bad-%04d", i), Labels: map[string]string{"app": "bad"}, Annotations: map[string]string{}},
		Spec: s.podSpec(func(spec *corev1.PodSpec) {
			spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("4000")
		}),
	}
	large, affinity := i%2 == 0, &corev1.NodeAffinity{}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: affinity}
	if i%20 < 2 {
		pod.Spec.Containers[0].Resources.Limits, pod.Spec.Containers[0].Resources.Claims = nil, []corev1.ResourceClaim{{Name: "gpu"}}
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &pod.Name}}
		return []client.Object{costlyClaim(pod.Name, i, i%100 == 0), pod}
	}
	switch i / 2 % 4 {
	case 0:
		pod.Annotations[v1alpha1.GPUMemoryAnnotation] = fmt.Sprintf("%de%d", 1+i, sizeOf(large, 2_000_000_000, 20))
	case 1:
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = preferredTerms(sizeOf(large, 4000, 90), i)
	case 2:
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = requiredTerms(sizeOf(large, 200, 45), sizeOf(large, 100, 10), i)
	case 3:
		pod.Spec.Containers[0].Resources.Limits = nil
		pod.Annotations[v1alpha1.Group+"/note"] = strings.Repeat(fmt.Sprintf("%08d", i), 250<<10/8)
	}
	return []client.Object{pod}
}

func sizeOf(large bool, accepted, planned int) int {
	if large {
		return accepted
	}
	return planned
}

func preferredTerms(n, salt int) []corev1.PreferredSchedulingTerm {
	terms := make([]corev1.PreferredSchedulingTerm, n)
	for i := range terms {
		terms[i] = corev1.PreferredSchedulingTerm{Weight: int32(1 + i%100), Preference: term(2, salt*n+i)} //nolint:gosec // It is small.
	}
	return terms
}

func requiredTerms(n, values, salt int) *corev1.NodeSelector {
	terms := make([]corev1.NodeSelectorTerm, n)
	for i := range terms {
		terms[i] = term(values, salt*n+i)
	}
	return &corev1.NodeSelector{NodeSelectorTerms: terms}
}

func term(values, salt int) corev1.NodeSelectorTerm {
	r := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn}
	for i := range values {
		r.Values = append(r.Values, fmt.Sprintf("zone-%d-%d", salt, i))
	}
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{r}}
}

// costlyClaim returns a claim with selectors: as many and as long ones as the API server accepts, or as Karve evaluates.
func costlyClaim(name string, salt int, large bool) *resourcev1.ResourceClaimTemplate {
	exactly := &resourcev1.ExactDeviceRequest{DeviceClassName: nodecontract.DRADriver}
	for i := range sizeOf(large, resourcev1.DeviceSelectorsMaxSize, 4) {
		var all strings.Builder
		for j := 0; all.Len() < sizeOf(large, resourcev1.CELSelectorExpressionMaxLength, 1000)-100; j++ {
			fmt.Fprintf(&all, "device.attributes['%s'].architecture != 'x%d-%d-%d' && ", nodecontract.DRADriver, salt, i, j)
		}
		exactly.Selectors = append(exactly.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: all.String() + "true"}})
	}
	return &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: mallory, Name: name}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{
		Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: exactly}}},
	}}}
}
