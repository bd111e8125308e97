package hostile

import (
	"fmt"
	"math"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
)

// PriorityClasses are the PriorityClasses that pods may name. They must exist before the pods are created.
var PriorityClasses = map[string]int32{"hostile-lowest": math.MinInt32, "hostile-low": -1, "hostile-high": 1_000_000_000}

// Pod returns a pending pod, or one that is bound to a node.
func (g *Generator) Pod() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: g.namespaced("Pod"), Spec: g.podSpec(true)}
	pod.Labels = g.labels(500)
	pod.Annotations = g.annotations(v1alpha1.GPUMemoryAnnotation, v1alpha1.GPUMemoryAnnotation, v1alpha1.EvictWhenUnusedAnnotation, nodecontract.ResourceAnnotation, nodecontract.GPUsAnnotation,
		v1alpha1.ReplacingAnnotation, "karpenter.sh/do-not-disrupt", "kubectl.kubernetes.io/last-applied-configuration", "kubernetes.io/config.mirror")
	delete(pod.Annotations, "kubernetes.io/config.mirror") // Only kubelets may create mirror pods.
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
	}}
	if g.maybe(0.05) {
		pod.Status.NominatedNodeName = pick(g, SaneMachine, SaneNode, g.known("Node"))
	}
	if g.maybe(0.25) {
		pod.Spec.NodeName = pick(g, SaneMachine, SaneNode, g.known("Node"), g.known("Node"), "missing")
		pod.Status = corev1.PodStatus{Phase: pick(g, corev1.PodRunning, corev1.PodRunning, corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown)}
		if g.maybe(0.3) {
			pod.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: pick(g, "DaemonSet", "ReplicaSet", "StatefulSet", "Node"), Name: g.known("DaemonSet"), UID: "owner", Controller: new(true),
			}}
		}
	} else if g.maybe(0.03) {
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/gate"}}
		pod.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated
	}
	return pod
}

// podSpec returns the spec of a pod or of a pod template.
func (g *Generator) podSpec(waits bool) corev1.PodSpec {
	spec := corev1.PodSpec{Tolerations: g.tolerations(), Affinity: g.affinity()}
	for i := range 1 + g.count(300) {
		spec.Containers = append(spec.Containers, g.container(fmt.Sprintf("c%d", i), i))
	}
	for i := range g.count(50) {
		ctr := g.container(fmt.Sprintf("i%d", i), 1000+i)
		if g.maybe(0.3) {
			ctr.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		spec.InitContainers = append(spec.InitContainers, ctr)
	}
	if g.maybe(0.3) {
		spec.NodeSelector = map[string]string{pick(g, keys...): g.value()}
	}
	for range g.count(8) {
		c := g.spread()
		if !hasSpread(spec.TopologySpreadConstraints, c) {
			spec.TopologySpreadConstraints = append(spec.TopologySpreadConstraints, c)
		}
	}
	if !waits {
		return spec
	}
	if g.maybe(0.3) {
		spec.PriorityClassName = pick(g, "hostile-lowest", "hostile-low", "hostile-high")
		spec.Priority = new(PriorityClasses[spec.PriorityClassName])
		spec.PreemptionPolicy = new(corev1.PreemptLowerPriority)
	}
	for i := range g.count(40) {
		v := corev1.Volume{Name: fmt.Sprintf("v%d", i)}
		if g.maybe(0.5) {
			v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: g.known("PersistentVolumeClaim")}
		} else {
			v.Ephemeral = &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: g.claimSpec()}}
		}
		spec.Volumes = append(spec.Volumes, v)
	}
	if g.maybe(0.02) {
		spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
	}
	return spec
}

func (g *Generator) container(name string, i int) corev1.Container {
	ctr := corev1.Container{Name: name, Image: "app", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if i < 3 && g.maybe(0.5) {
			ctr.Resources.Requests[name] = g.quantity()
		}
	}
	devices := func(name corev1.ResourceName, q resource.Quantity) {
		ctr.Resources.Requests[name], ctr.Resources.Limits[name] = q, q
	}
	if i == 0 && g.maybe(0.8) || g.maybe(0.1) {
		devices(pick(g, corev1.ResourceName(v1alpha1.ResourceGPUShared), v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPU), pick(g, resource.MustParse("1"), resource.MustParse("1"), g.whole()))
	}
	for i := range g.count(30) {
		devices(pick(g, corev1.ResourceName("example.com/fpga"), "vpc.amazonaws.com/efa", corev1.ResourceName(fmt.Sprintf("example.com/d%d", i))), g.whole())
	}
	ports := map[int32]bool{}
	for range g.count(100) {
		port := 1 + g.rand.Int32N(65535)
		if !ports[port] {
			ports[port] = true
			ctr.Ports = append(ctr.Ports, corev1.ContainerPort{ContainerPort: port, HostPort: port, Protocol: pick(g, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)})
		}
	}
	if i > 0 { // Several containers would request the same host ports.
		ctr.Ports = nil
	}
	return ctr
}

func (g *Generator) tolerations() []corev1.Toleration {
	switch g.rand.IntN(4) {
	case 0:
		return nil
	case 1:
		return []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	tolerations := []corev1.Toleration{{Key: pick(g, "nvidia.com/gpu.shared", "nvidia.com/gpu.shared", "example.com/0"), Operator: corev1.TolerationOpExists}}
	for i := range g.count(500) {
		tolerations = append(tolerations, corev1.Toleration{Key: fmt.Sprintf("example.com/%d", i), Value: "a", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: pick(g, nil, new(int64(math.MinInt64)), new(int64(math.MaxInt64)))})
	}
	return tolerations
}

func (g *Generator) spread() corev1.TopologySpreadConstraint {
	c := corev1.TopologySpreadConstraint{
		MaxSkew: g.integer(1), TopologyKey: pick(g, keys...), WhenUnsatisfiable: pick(g, corev1.DoNotSchedule, corev1.DoNotSchedule, corev1.ScheduleAnyway), LabelSelector: g.selector(),
	}
	if c.WhenUnsatisfiable == corev1.DoNotSchedule && g.maybe(0.5) {
		c.MinDomains = new(g.integer(1))
	}
	if g.maybe(0.3) {
		c.NodeAffinityPolicy = new(pick(g, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
		c.NodeTaintsPolicy = new(pick(g, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
	}
	return c
}

func hasSpread(all []corev1.TopologySpreadConstraint, c corev1.TopologySpreadConstraint) bool {
	for i := range all {
		if all[i].TopologyKey == c.TopologyKey && all[i].WhenUnsatisfiable == c.WhenUnsatisfiable {
			return true
		}
	}
	return false
}

func (g *Generator) affinity() *corev1.Affinity {
	if g.maybe(0.6) {
		return nil
	}
	a := &corev1.Affinity{}
	if g.maybe(0.5) {
		var terms []corev1.NodeSelectorTerm
		for range 1 + g.count(200) {
			terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{g.nodeRequirement()}})
		}
		a.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}
		for range g.count(50) {
			a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
				corev1.PreferredSchedulingTerm{Weight: pick(g, int32(1), 100), Preference: terms[0]})
		}
	}
	terms := func() (required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for range g.count(20) {
			required = append(required, g.podTerm())
		}
		for range g.count(20) {
			preferred = append(preferred, corev1.WeightedPodAffinityTerm{Weight: pick(g, int32(1), 100), PodAffinityTerm: g.podTerm()})
		}
		return required, preferred
	}
	if g.maybe(0.4) {
		required, preferred := terms()
		a.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required, PreferredDuringSchedulingIgnoredDuringExecution: preferred}
	}
	if g.maybe(0.4) {
		required, preferred := terms()
		a.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required, PreferredDuringSchedulingIgnoredDuringExecution: preferred}
	}
	return a
}

func (g *Generator) podTerm() corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{LabelSelector: g.selector(), TopologyKey: pick(g, keys...)}
	switch g.rand.IntN(3) {
	case 0:
		t.NamespaceSelector = &metav1.LabelSelector{}
	case 1:
		t.Namespaces = []string{"default", Namespace}
	}
	return t
}

func (g *Generator) nodeRequirement() corev1.NodeSelectorRequirement {
	r := corev1.NodeSelectorRequirement{Key: pick(g, keys...), Operator: pick(g, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist,
		corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt)}
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		for range 1 + g.count(100) {
			r.Values = append(r.Values, g.value())
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		r.Values = []string{pick(g, "0", "1", "9223372036854775806", "9223372036854775807")}
	}
	return r
}

// DaemonSet returns a DaemonSet.
func (g *Generator) DaemonSet() *appsv1.DaemonSet {
	ds := &appsv1.DaemonSet{ObjectMeta: g.namespaced("DaemonSet")}
	ds.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"daemon": ds.Name}}
	ds.Spec.Template.Labels = map[string]string{"daemon": ds.Name}
	ds.Spec.Template.Spec = g.podSpec(false)
	ds.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
	return ds
}
