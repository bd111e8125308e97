package main

import (
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// filled sets every field of an object of Kubernetes. Lists and maps have one item.
func filled(seed int64, object any) {
	quantity := func(q *resource.Quantity, c randfill.Continue) {
		*q = *resource.NewQuantity(1+c.Int63n(100), resource.DecimalSI)
	}
	randfill.NewWithSeed(seed).NilChance(0).NumElements(1, 1).MaxDepth(math.MaxInt).Funcs(
		quantity,
		func(s *string, c randfill.Continue) { *s = "v" + strings.Repeat("x", c.Intn(8)) },
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Time{Time: time.Unix(1+c.Int63n(1<<30), 0)} },
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.FromInt32(1 + c.Int31n(100)) },
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.Raw = []byte("{}") },
		func(l *corev1.ResourceList, c randfill.Continue) {
			*l = corev1.ResourceList{}
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, v1alpha1.ResourceGPUShared} {
				var q resource.Quantity
				quantity(&q, c)
				(*l)[name] = q
			}
		},
	).Fill(object)
}

// TestNothingIsOmittedThatTheControllerKeeps sets every field of pods and nodes and compares what the controller keeps of them with what it would keep of
// those that lack the omitted fields. So what decisions read is defined by gather.Trim alone: it fails if Trim begins to keep an omitted field.
func TestNothingIsOmittedThatTheControllerKeeps(t *testing.T) {
	t.Parallel()
	for seed := range int64(20) {
		var node corev1.Node
		filled(seed, &node)
		message, err := node.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		less, err := ofNodes.from(nil, message)
		if err != nil {
			t.Fatal(err)
		}
		var part corev1.Node
		if err := part.Unmarshal(less); err != nil {
			t.Fatal(err)
		}
		var whole corev1.Node // Without a monotonic clock, as all that was encoded.
		if err := whole.Unmarshal(message); err != nil {
			t.Fatal(err)
		}
		compareTrimmed(t, "the node", &whole, &part)
	}
	for state, edit := range map[string]func(*corev1.Pod){
		"waits": func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Conditions[0].Type = "", corev1.PodScheduled },
		"runs":  func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning },
		"is not ready": func(p *corev1.Pod) {
			p.Status.Conditions[0].Type, p.Status.Conditions[0].Status = corev1.PodReady, corev1.ConditionFalse
		},
		"has succeeded": func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
	} {
		for seed := range int64(20) {
			var pod corev1.Pod
			filled(seed, &pod)
			edit(&pod)
			decoded, _ := decodeAll(t, []corev1.Pod{pod})
			message, err := pod.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			var whole corev1.Pod
			if err := whole.Unmarshal(message); err != nil {
				t.Fatal(err)
			}
			compareTrimmed(t, "a pod that "+state, &whole, decoded[0])
		}
	}
}
