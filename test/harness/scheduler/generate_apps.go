package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// feature is a group of rules that a pod can have.
type feature string

const (
	selectors    feature = "nodeSelector"
	nodeAffinity feature = "node affinity"
	spread       feature = "topology spread"
	together     feature = "pod affinity"
	apart        feature = "pod anti-affinity"
	hostPorts    feature = "host ports"
	volumes      feature = "volumes"
	extended     feature = "extended resources"
	containers   feature = "init containers, overhead and pod-level resources"
	gpuMemory    feature = "GPU memory"
	priorities   feature = "priority"
	choices      feature = "minValues"
	instances    feature = "MIG instances"
	memorySlots  feature = "slots of GPU memory"
)

// slotSizes are the sizes of slots, of which classes have some.
var slotSizes = []string{"1Gi", "2Gi", "5Gi", "7Gi", "12Gi"}

var features = []feature{
	selectors, nodeAffinity, spread, together, apart, hostPorts, volumes, extended, containers, gpuMemory, priorities, choices, instances, memorySlots,
}

// app draws the running and pending pods of a workload.
func (d *draw) app(name string) {
	template := snapshottest.Pod(name, snapshottest.Asking(
		"cpu", one(d, "100m", "100m", "500m", "500m", "1300m", "1900m", "3700m"), "memory", one(d, "256Mi", "256Mi", "1Gi", "1Gi", "5Gi", "14Gi"),
		d.gpuResource(), one(d, "1", "1", "1", "1", "2", "3"),
	))
	if d.has(memorySlots) {
		size, _ := resource.ParseQuantity(one(d, slotSizes...))
		requests := template.Spec.Containers[0].Resources.Requests
		delete(requests, v1alpha1.ResourceGPUShared)
		requests[corev1.ResourceName(nodecontract.SlotResource(size.Value()>>20))] = resource.MustParse("1")
	}
	template.Namespace = one(d, d.s.Namespaces...).Name
	template.Labels = map[string]string{"app": name, "tier": one(d, "web", "db"), "pod-template-hash": "new"}
	if d.chance(0.1) {
		template.Spec.Containers[0].Resources.Requests[corev1.ResourceEphemeralStorage] = resource.MustParse(one(d, "1Gi", "9Gi"))
	}
	d.tolerations(&template)
	d.nodeRules(&template)
	d.podRules(&template)
	d.extras(&template)
	volumes := d.volumesOf(&template)

	for i := range d.between(0, 3) {
		pod := template.DeepCopy()
		if d.chance(0.3) {
			pod.Labels["pod-template-hash"] = "old"
		}
		pod.Name, pod.UID = fmt.Sprintf("%s-run-%d", name, i), types.UID(fmt.Sprintf("%s-run-%d", name, i))
		d.run(pod, volumes)
	}
	for i := range d.between(1, 5) {
		pod := template.DeepCopy()
		pod.Name, pod.UID = fmt.Sprintf("%s-%d", name, i), types.UID(fmt.Sprintf("%s-%d", name, i))
		volumes.giveTo(pod, nil)
		admitted(pod)
		d.s.Pods = append(d.s.Pods, *pod)
	}
}

// gpuResource draws a resource that one of the classes has.
func (d *draw) gpuResource() string {
	if !d.has(instances) {
		return v1alpha1.ResourceGPUShared
	}
	return one(d, one(d, d.s.GPUNodeClasses...).Spec.Sharing.Resources()...)
}

// run binds the pod to a node that has room for it, if there is one. It ignores rules about other pods, because a running pod may be older than a rule.
func (d *draw) run(pod *corev1.Pod, volumes *volumeTemplate) {
	var fitting []*corev1.Node
	for i := range d.s.Nodes {
		if node := &d.s.Nodes[i]; fitsOn(pod, node) && d.fits(pod, node) {
			fitting = append(fitting, node)
		}
	}
	if len(fitting) == 0 {
		return
	}
	node := one(d, fitting...)
	volumes.giveTo(pod, node)
	admitted(pod)
	pod.Spec.NodeName = node.Name
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning}
	d.s.Pods = append(d.s.Pods, *pod)
}

// fitsOn reports whether the labels and taints of a node admit a pod.
func fitsOn(pod *corev1.Pod, node *corev1.Node) bool {
	_, untolerated := schedulinghelper.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	}, false)
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return !untolerated && matches && err == nil
}

func (d *draw) fits(pod *corev1.Pod, node *corev1.Node) bool {
	left := node.Status.Allocatable.DeepCopy()
	subtract := func(p *corev1.Pod) {
		requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
		requests[corev1.ResourcePods] = resource.MustParse("1")
		for name, quantity := range requests {
			rest := left[name]
			rest.Sub(quantity)
			left[name] = rest
		}
	}
	subtract(pod)
	for i := range d.s.Pods {
		if d.s.Pods[i].Spec.NodeName == node.Name {
			subtract(&d.s.Pods[i])
		}
	}
	for _, rest := range left {
		if rest.Sign() < 0 {
			return false
		}
	}
	return true
}

func (d *draw) tolerations(pod *corev1.Pod) {
	switch {
	case d.chance(0.05):
		pod.Spec.Tolerations = nil
	case d.chance(0.1):
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: one(d, "", corev1.TaintEffectNoSchedule)}}
	}
	if d.chance(0.5) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key: taintTeam, Operator: corev1.TolerationOpEqual, Value: one(d, "red", "blue"), Effect: one(d, "", corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute),
		})
	}
}

// nodeRules draws the pod's rules about nodes.
func (d *draw) nodeRules(pod *corev1.Pod) {
	if d.has(selectors) && d.chance(0.5) {
		pod.Spec.NodeSelector = map[string]string{}
		for range d.between(1, 2) {
			r := d.nodeRequirement()
			if len(r.Values) > 0 {
				pod.Spec.NodeSelector[r.Key] = r.Values[0]
			}
		}
	}
	if !d.has(nodeAffinity) || d.chance(0.4) {
		return
	}
	affinity := &corev1.NodeAffinity{}
	for range d.between(0, 2) {
		term := corev1.NodeSelectorTerm{}
		for range d.between(1, 2) {
			term.MatchExpressions = append(term.MatchExpressions, d.nodeRequirement())
		}
		if d.chance(0.1) {
			term.MatchFields = []corev1.NodeSelectorRequirement{{
				Key: "metadata.name", Operator: one(d, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn), Values: []string{one(d, "node-0", "node-1", "other-0")},
			}}
		}
		if affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
			affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{}
		}
		required := affinity.RequiredDuringSchedulingIgnoredDuringExecution
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
	}
	for range d.between(0, 2) {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(affinity.PreferredDuringSchedulingIgnoredDuringExecution, corev1.PreferredSchedulingTerm{
			Weight: int32(d.between(1, 3)), Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{d.nodeRequirement()}},
		})
	}
	affinityOf(pod).NodeAffinity = affinity
}

func (d *draw) nodeRequirement() corev1.NodeSelectorRequirement {
	switch d.IntN(10) {
	case 0, 1, 2, 7:
		return corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: d.inOrNot(), Values: some(d, d.zones...)}
	case 8:
		return corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: d.inOrNot(), Values: []string{one(d, "node-0", "other-0")}}
	case 3:
		return corev1.NodeSelectorRequirement{Key: karpv1.CapacityTypeLabelKey, Operator: d.inOrNot(), Values: []string{one(d, karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot)}}
	case 4:
		return corev1.NodeSelectorRequirement{Key: labelTeam, Operator: one(d, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpDoesNotExist)}
	case 5:
		return corev1.NodeSelectorRequirement{Key: labelRack, Operator: d.inOrNot(), Values: []string{one(d, "r1", "r2")}}
	case 6:
		return corev1.NodeSelectorRequirement{Key: labelCPU, Operator: one(d, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt), Values: []string{"7"}}
	default:
		return corev1.NodeSelectorRequirement{Key: labelFamily, Operator: d.inOrNot(), Values: []string{one(d, "g4dn", "g5")}}
	}
}

func (d *draw) inOrNot() corev1.NodeSelectorOperator {
	return one(d, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn)
}

func affinityOf(pod *corev1.Pod) *corev1.Affinity {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	return pod.Spec.Affinity
}

// podRules draws the pod's rules about other pods.
func (d *draw) podRules(pod *corev1.Pod) {
	if d.has(spread) && d.chance(0.6) {
		for range d.between(1, 2) {
			d.spreadRule(pod)
		}
	}
	if d.has(together) && d.chance(0.4) {
		affinityOf(pod).PodAffinity = &corev1.PodAffinity{}
		a := pod.Spec.Affinity.PodAffinity
		a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution = d.terms(pod)
	}
	if d.has(apart) && d.chance(0.4) {
		affinityOf(pod).PodAntiAffinity = &corev1.PodAntiAffinity{}
		a := pod.Spec.Affinity.PodAntiAffinity
		a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution = d.terms(pod)
	}
}

func (d *draw) topologyKey() string {
	if d.chance(0.8) {
		return one(d, corev1.LabelTopologyZone, corev1.LabelHostname)
	}
	return one(d, karpv1.CapacityTypeLabelKey, labelRack, labelTeam, corev1.LabelInstanceTypeStable)
}

func (d *draw) spreadRule(pod *corev1.Pod) {
	c := corev1.TopologySpreadConstraint{
		MaxSkew: int32(d.between(1, 2)), TopologyKey: d.topologyKey(), LabelSelector: d.podSelector(pod),
		WhenUnsatisfiable: one(d, corev1.DoNotSchedule, corev1.DoNotSchedule, corev1.ScheduleAnyway),
	}
	if slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(o corev1.TopologySpreadConstraint) bool {
		return o.TopologyKey == c.TopologyKey && o.WhenUnsatisfiable == c.WhenUnsatisfiable
	}) {
		return // The API server accepts only one.
	}
	if c.WhenUnsatisfiable == corev1.DoNotSchedule && d.chance(0.2) {
		c.MinDomains = new(int32(d.between(1, 3)))
	}
	if d.chance(0.2) {
		c.NodeAffinityPolicy = new(one(d, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
	}
	if d.chance(0.2) {
		c.NodeTaintsPolicy = new(one(d, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
	}
	if d.chance(0.2) && c.LabelSelector != nil && d.names(c.LabelSelector) {
		c.MatchLabelKeys = []string{"pod-template-hash"}
	}
	pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, c)
}

// names reports whether the selector does not use pod-template-hash, which matchLabelKeys requires.
func (d *draw) names(selector *metav1.LabelSelector) bool {
	return !slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == "pod-template-hash" })
}

func (d *draw) podSelector(pod *corev1.Pod) *metav1.LabelSelector {
	switch d.IntN(10) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"tier": one(d, "web", "db")}}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "app", Operator: one(d, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: some(d, "app-a", "app-b", "app-c"),
		}}}
	case 3:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": one(d, "app-a", "app-b", "app-c", "daemon")}}
	case 4:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "pod-template-hash", Operator: metav1.LabelSelectorOpIn, Values: []string{one(d, "old", "new")},
		}}}
	default:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pod.Labels["app"]}}
	}
}

// terms draws pod affinity or anti-affinity terms: required ones, preferred ones, or both.
func (d *draw) terms(pod *corev1.Pod) ([]corev1.PodAffinityTerm, []corev1.WeightedPodAffinityTerm) {
	term := func() corev1.PodAffinityTerm {
		t := corev1.PodAffinityTerm{TopologyKey: d.topologyKey(), LabelSelector: d.podSelector(pod)}
		switch d.IntN(8) {
		case 0:
			t.Namespaces = []string{one(d, d.s.Namespaces...).Name}
		case 1:
			t.NamespaceSelector = &metav1.LabelSelector{}
			// Exclude the daemon pods in the same namespaces.
			t.LabelSelector.MatchExpressions = append(t.LabelSelector.MatchExpressions, metav1.LabelSelectorRequirement{Key: "app", Operator: metav1.LabelSelectorOpExists})
		case 2:
			t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"side": one(d, "east", "west", "north")}}
		case 3:
			if d.names(t.LabelSelector) {
				t.MatchLabelKeys = []string{"pod-template-hash"}
			}
		case 4:
			if d.names(t.LabelSelector) {
				t.MismatchLabelKeys = []string{"pod-template-hash"}
			}
		}
		return t
	}
	var required []corev1.PodAffinityTerm
	var preferred []corev1.WeightedPodAffinityTerm
	for range one(d, 0, 1, 1, 1, 2) {
		required = append(required, term())
	}
	for range one(d, 0, 0, 1) {
		preferred = append(preferred, corev1.WeightedPodAffinityTerm{Weight: int32(d.between(1, 3)), PodAffinityTerm: term()})
	}
	return required, preferred
}

// extras draws what makes a pod need more than its container's requests.
func (d *draw) extras(pod *corev1.Pod) {
	spec := &pod.Spec
	if d.has(hostPorts) && d.chance(0.5) {
		port := corev1.ContainerPort{HostPort: one(d, int32(8080), 9090), Protocol: one(d, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP)}
		port.ContainerPort = port.HostPort
		if d.chance(0.2) {
			port.HostIP = one(d, "10.0.0.1", "10.0.0.2", "0.0.0.0")
		}
		spec.Containers[0].Ports = []corev1.ContainerPort{port}
	}
	if d.has(extended) && d.chance(0.3) {
		spec.Containers[0].Resources.Requests[fpga] = resource.MustParse("1")
	}
	if d.has(priorities) {
		spec.Priority = new(int32(one(d, 0, 100)))
	}
	if d.has(gpuMemory) && d.chance(0.5) {
		pod.Annotations = map[string]string{gpuMemoryAnnotation: one(d, "2Gi", "6Gi", "12Gi", "40Gi")}
	}
	if !d.has(containers) {
		return
	}
	more := func(name string) corev1.Container {
		return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{
			Requests: snapshottest.Amounts("cpu", one(d, "50m", "2500m"), "memory", one(d, "64Mi", "6Gi")),
		}}
	}
	if d.chance(0.4) {
		c := more("init")
		if d.chance(0.5) {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		spec.InitContainers = append(spec.InitContainers, c)
	}
	if d.chance(0.3) {
		spec.Containers = append(spec.Containers, more("side"))
	}
	if d.chance(0.3) {
		spec.Overhead = snapshottest.Amounts("cpu", "250m", "memory", "128Mi")
	}
	if d.chance(0.3) {
		spec.Resources = &corev1.ResourceRequirements{Requests: snapshottest.Amounts("cpu", "3800m", "memory", "13Gi")}
	}
}

// gpuMemoryAnnotation is the GPU memory that a pod requests.
const gpuMemoryAnnotation = v1alpha1.Group + "/gpu-memory"

// admitted does what the API server does when it admits a pod: it adds label keys to the selectors.
func admitted(pod *corev1.Pod) {
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		selectByKeys(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn, pod)
	}
	affinity := pod.Spec.Affinity
	if affinity == nil {
		return
	}
	var terms []*corev1.PodAffinityTerm
	add := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for i := range required {
			terms = append(terms, &required[i])
		}
		for i := range preferred {
			terms = append(terms, &preferred[i].PodAffinityTerm)
		}
	}
	if a := affinity.PodAffinity; a != nil {
		add(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a := affinity.PodAntiAffinity; a != nil {
		add(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	for _, t := range terms {
		selectByKeys(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn, pod)
		selectByKeys(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn, pod)
	}
}

func selectByKeys(selector *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator, pod *corev1.Pod) {
	for _, key := range keys {
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{pod.Labels[key]}})
	}
}
