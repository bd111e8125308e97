package hostile_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/hostile"
)

// byHand is an edit that is not drawn.
type byHand struct {
	name   string
	change func(o client.Object, salt int)
}

func (b byHand) On(o client.Object, salt, _ int) { b.change(o, salt) }

func (byHand) Elements(int) int { return 1 }

func (b byHand) String() string { return b.name }

// known are attacks that did harm once.
func known() map[string]*attack {
	g := hostile.New("known", 1)
	pods := func(copies int, gpu bool, change func(pod *corev1.Pod, i int)) *attack {
		pod := g.TenantPod(gpu)
		pod.Spec.Volumes, pod.Spec.Affinity, pod.Spec.TopologySpreadConstraints, pod.Spec.NodeSelector = nil, nil, nil, nil // It has a place.
		return &attack{objects: []client.Object{pod}, copies: copies, edits: []edit{byHand{"known", func(o client.Object, i int) {
			if pod, ok := o.(*corev1.Pod); ok {
				change(pod, i)
			}
		}}}}
	}
	all := map[string]*attack{}
	for _, text := range []string{"1e2000000000", "0e2000000000", "1e-2000000000", "1e2147483648"} {
		all["device memory of "+text] = pods(1, true, func(pod *corev1.Pod, _ int) { pod.Annotations[v1alpha1.GPUMemoryAnnotation] = text })
	}
	all["many preferred terms"] = pods(1, true, func(pod *corev1.Pod, i int) { pod.Spec.Affinity = affinity(0, 4000, 0, i) })
	all["many pods with preferred terms"] = pods(300, true, func(pod *corev1.Pod, i int) { pod.Spec.Affinity = affinity(0, 300, 1, i) })
	all["many required terms"] = pods(300, true, func(pod *corev1.Pod, i int) { pod.Spec.Affinity = affinity(200, 0, 100, i) })
	all["annotations of Karve's domain"] = pods(300, false, func(pod *corev1.Pod, i int) {
		pod.Annotations[v1alpha1.Group+"/note"] = strings.Repeat(fmt.Sprintf("%08d", i), 250<<10/8)
	})
	all["a large node selector without a GPU"] = pods(300, false, func(pod *corev1.Pod, i int) {
		pod.Spec.NodeSelector = map[string]string{}
		for j := range 8000 {
			pod.Spec.NodeSelector[fmt.Sprintf("example.com/%d", j)] = fmt.Sprintf("v%d-%d", i, j)
		}
	})
	all["large affinity without a GPU"] = pods(300, false, func(pod *corev1.Pod, i int) { pod.Spec.Affinity = affinity(100, 0, 200, i) })
	all["many resources"] = pods(8, true, func(pod *corev1.Pod, _ int) {
		for j := range 4000 {
			name, none := corev1.ResourceName(fmt.Sprintf("example.com/%d", j)), resource.MustParse("0")
			pod.Spec.Containers[0].Resources.Requests[name], pod.Spec.Containers[0].Resources.Limits[name] = none, none
		}
	})
	claim := func(copies int, change func(request *resourcev1.ExactDeviceRequest, spec *resourcev1.ResourceClaimSpec, i int)) *attack {
		return &attack{objects: g.Claiming(), copies: copies, edits: []edit{byHand{"known", func(o client.Object, i int) {
			if t, ok := o.(*resourcev1.ResourceClaimTemplate); ok {
				change(t.Spec.Spec.Devices.Requests[0].Exactly, &t.Spec.Spec, i)
			}
		}}}}
	}
	all["capacity of 1e2000000000"] = claim(1, func(r *resourcev1.ExactDeviceRequest, _ *resourcev1.ResourceClaimSpec, _ int) {
		r.Capacity.Requests[nodecontract.DRAMemory] = resource.MustParse("1e2000000000")
	})
	all["long selectors"] = claim(4, func(r *resourcev1.ExactDeviceRequest, spec *resourcev1.ResourceClaimSpec, i int) {
		r.Selectors = selectors(i)
		for j := range 3 {
			more := spec.Devices.Requests[0].DeepCopy()
			more.Name, more.Exactly.Selectors = fmt.Sprint("gpu", j), selectors(1000*(1+j)+i)
			spec.Devices.Requests = append(spec.Devices.Requests, *more)
		}
	})
	objects := g.Buffered()
	all["a CapacityBuffer of another kind"] = &attack{objects: objects, copies: 1, edits: []edit{byHand{"known", func(o client.Object, _ int) {
		if buffer, ok := o.(*autoscalingv1beta1.CapacityBuffer); ok {
			buffer.Spec.PodTemplateRef, buffer.Spec.ScalableRef = nil, &autoscalingv1beta1.ScalableRef{APIGroup: "argoproj.io", Kind: "Rollout", Name: "of"}
		}
	}}}}
	return all
}

// affinity returns node affinity with required and preferred terms, each of many values or for a label that no node has.
func affinity(required, preferred, values, salt int) *corev1.Affinity {
	term := func(i int) corev1.NodeSelectorTerm {
		r := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn}
		if values == 0 {
			r = corev1.NodeSelectorRequirement{Key: fmt.Sprint("k", i), Operator: corev1.NodeSelectorOpDoesNotExist}
		}
		for j := range values {
			r.Values = append(r.Values, fmt.Sprintf("z%d-%d-%d", salt, i, j))
		}
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{r}}
	}
	a := &corev1.NodeAffinity{}
	for i := range required {
		if i == 0 {
			a.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{}
		}
		a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = append(a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, term(i))
	}
	for i := range preferred {
		a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution, corev1.PreferredSchedulingTerm{Weight: 1, Preference: term(i)})
	}
	return &corev1.Affinity{NodeAffinity: a}
}

// selectors returns as many selectors as a request may have, each as long as possible.
func selectors(salt int) []resourcev1.DeviceSelector {
	all := make([]resourcev1.DeviceSelector, resourcev1.DeviceSelectorsMaxSize)
	for i := range all {
		var text strings.Builder
		for j := 0; text.Len() < resourcev1.CELSelectorExpressionMaxLength-200; j++ {
			fmt.Fprintf(&text, "device.attributes['%s'].architecture != 'x%d-%d-%d' && ", nodecontract.DRADriver, salt, i, j)
		}
		all[i].CEL = &resourcev1.CELDeviceSelector{Expression: text.String() + "true"}
	}
	return all
}

// TestKnownAttacksNeitherStopNorSlowOthers does not run in parallel, because it measures CPU time and memory.
func TestKnownAttacksNeitherStopNorSlowOthers(t *testing.T) {
	v, endless := validator(t, 30*time.Second), false
	for name, a := range known() {
		t.Run(name, func(t *testing.T) {
			if endless {
				t.Skip("an earlier attack goes on in the background")
			}
			a.most = math.MaxInt
			if testing.Short() {
				a.copies = (a.copies + 7) / 8 // The API server's validation of large objects takes long.
			}
			if _, err := a.create(v, 0, a.most); err != nil {
				t.Fatalf("the API server rejects it: %.1000v", err)
			}
			if harm := a.harm(t.Context(), v); harm != nil {
				endless = errors.Is(harm, errEndless)
				t.Errorf("%.3000v", harm)
			}
		})
	}
}
