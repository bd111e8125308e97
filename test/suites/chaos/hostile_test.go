package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
)

const (
	// tenant is the namespace of the adversary's pods.
	tenant = "tenant"
	// adversaryLabel is on every object of the adversary. Its value is the number of the fault, standing or early.
	adversaryLabel = "example.com/adversary"
	// standing is the value of adversaryLabel on objects that exist from before the first workload until the cluster has settled after the last fault.
	standing = "standing"
	// early is its value on objects that exist until the first fault.
	early = "early"
	// nowhere is a label that no Node has.
	nowhere = "example.com/nowhere"
)

// most is the largest int64, overflows is the smallest number of CPUs that overflows int64 in milli-CPU, and beyondMost does not fit into int64.
const (
	most       = "9223372036854775807"
	overflows  = "9223372036854776"
	beyondMost = "1e40"
)

// hostile is a pod that a tenant may create.
type hostile struct {
	name string
	edit func(p *corev1.Pod)
	// runs says that the pod has to run. It requests no more than one replica and some CPU.
	runs bool
	// fits says that the scheduler may find a node for it, although Karve need not.
	fits bool
}

// hostiles are pods that a tenant may create. Each tolerates the taint of a pool and requests one replica unless its edit says otherwise. Pods whose requests
// overflow int64 also select a label that no Node has: the scheduler misreads such requests as small, and there is no kubelet here to reject the pod.
var hostiles = []hostile{
	{name: "processors-overflow", edit: func(p *corev1.Pod) { requests("cpu", overflows)(p); p.Spec.Tolerations = nil }},
	{name: "processors-most", edit: all(requests("cpu", most), stranded)},
	{name: "processors-beyond", edit: all(requests("cpu", beyondMost), stranded)},
	{name: "memory-sum-overflows", edit: all(requests("memory", most), twice, stranded)},
	{name: "memory-beyond", edit: all(requests("memory", beyondMost), stranded)},
	{name: "memory-init-most", edit: all(func(p *corev1.Pod) {
		p.Spec.InitContainers = slices.Clone(p.Spec.Containers)
		p.Spec.InitContainers[0].Name = "sidecar"
		p.Spec.InitContainers[0].RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	}, requests("memory", most), stranded)},
	{name: "storage-most", edit: all(requests("ephemeral-storage", most), twice, stranded)},
	{name: "hugepages-most", edit: limits("hugepages-2Mi", "4Ei")},
	{name: "replicas-most", edit: limits(v1alpha1.ResourceGPUShared, most)},
	{name: "replicas-sum-overflows", edit: all(limits(v1alpha1.ResourceGPUShared, most), twice, stranded)},
	{name: "gpus-most", edit: limits(v1alpha1.ResourceGPU, most)},
	{name: "unknown-resource", edit: limits("example.com/unknown", most)},
	{name: "selects-nothing", edit: stranded},
	{name: "selects-no-zone", edit: selects(corev1.LabelTopologyZone, "mars-1a")},
	{name: "selects-no-node", edit: selects(corev1.LabelHostname, "nobody")},
	{name: "selects-no-pool", edit: selects(karpv1.NodePoolLabelKey, "nobody")},
	{name: "affinity-of-many-values", edit: affinity(corev1.NodeSelectorRequirement{Key: nowhere, Operator: corev1.NodeSelectorOpIn, Values: many(500)})},
	{name: "affinity-beyond", edit: affinity(corev1.NodeSelectorRequirement{Key: "karpenter.k8s.aws/instance-cpu", Operator: corev1.NodeSelectorOpGt, Values: []string{most}})},
	{name: "spreads-over-nothing", edit: spreads(nowhere)},
	{name: "near-nobody", edit: func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{nowhere: "x"}}},
		}}}
	}},
	{name: "volume-of-nobody", edit: func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "nobody"}}}}
	}},
	{name: "scheduler-of-nobody", edit: func(p *corev1.Pod) { p.Spec.SchedulerName = "nobody" }},
	{name: "gated", edit: func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: nowhere}} }},
	{name: "gpu-memory-most", fits: true, edit: annotates(v1alpha1.GPUMemoryAnnotation, most)},
	{name: "gpu-memory-beyond", fits: true, edit: annotates(v1alpha1.GPUMemoryAnnotation, beyondMost)},
	{name: "gpu-memory-negative", fits: true, edit: annotates(v1alpha1.GPUMemoryAnnotation, "-9223372036854775808")},
	{name: "gpu-memory-none", fits: true, edit: annotates(v1alpha1.GPUMemoryAnnotation, strings.Repeat("1", 1000))},
	{name: "kept", runs: true, edit: all(annotates(karpv1.DoNotDisruptAnnotationKey, "true"), annotates("controller.kubernetes.io/pod-deletion-cost", "2147483647"))},
	{name: "cheap", runs: true, edit: all(annotates("controller.kubernetes.io/pod-deletion-cost", "-2147483648"), annotates(v1alpha1.EvictWhenUnusedAnnotation, "-9223372036854775808h"))},
	{name: "posing", runs: true, edit: func(p *corev1.Pod) {
		for _, key := range append([]string{v1alpha1.ReplacingAnnotation, nodecontract.ResourceAnnotation, nodecontract.GPUsAnnotation, nodecontract.ReplicasPerGPUAnnotation}, times...) {
			annotates(key, most)(p)
		}
		p.Labels[v1alpha1.CanaryLabel], p.Labels[v1alpha1.GPUNodeClassLabel], p.Labels[karpv1.NodePoolLabelKey] = "x", "x", "x"
	}},
	{name: "least", runs: true, edit: all(requests("cpu", "1n"), requests("memory", "1"))},
	{name: "far-from-many", runs: true, edit: func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}
		for _, value := range many(150) {
			of := &metav1.LabelSelector{MatchLabels: map[string]string{nowhere: value}}
			p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(
				p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: of})
			p.Spec.TopologySpreadConstraints = append(
				p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "example.com/" + value, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: of})
		}
	}},
	{name: "port", runs: true, edit: func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 65535}}
	}},
	{name: "first", runs: true, edit: func(p *corev1.Pod) { p.Spec.PriorityClassName = "tenant-first" }},
	{name: "last", runs: true, edit: func(p *corev1.Pod) { p.Spec.PriorityClassName = "tenant-last" }},
}

// priorities are the priorities of hostile pods. None of them preempts.
var priorities = map[string]int32{"tenant-first": 1_000_000_000, "tenant-last": -2147483648}

// pod returns a hostile pod that tolerates the taint of a pool.
func (h hostile) pod(of, pool string) *corev1.Pod {
	t := podTemplate(h.name, pool, "50m", "64Mi")
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: tenant, Name: fmt.Sprintf("%s-%s-%s", h.name, pool, of), Labels: map[string]string{"app": h.name, adversaryLabel: of}, Annotations: map[string]string{},
		},
		Spec: t.Spec,
	}
	if h.edit != nil {
		h.edit(p)
	}
	return p
}

// classOf returns one of many pods that are each in a class of their own: no two have the same labels and rules.
func classOf(of, pool string, i int) *corev1.Pod {
	return hostile{name: fmt.Sprintf("class-%d", i), edit: func(p *corev1.Pod) {
		own := &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Labels["app"]}}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: own}},
		}}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
			{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: own},
			{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: own},
		}
	}}.pod(of, pool)
}

func all(edits ...func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, edit := range edits {
			edit(p)
		}
	}
}

// requests sets a request of all containers.
func requests(name corev1.ResourceName, quantity string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
			for i := range list {
				own := list[i].Resources.Requests.DeepCopy()
				own[name] = resource.MustParse(quantity)
				list[i].Resources.Requests = own
			}
		}
	}
}

// limits sets a limit of the first container. The request defaults to it.
func limits(name corev1.ResourceName, quantity string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits[name] = resource.MustParse(quantity) }
}

// twice adds a copy of the container.
func twice(p *corev1.Pod) {
	again := *p.Spec.Containers[0].DeepCopy()
	again.Name = "again"
	p.Spec.Containers = append(p.Spec.Containers, again)
}

func selects(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
}

// stranded makes the pod unschedulable by a label that no Node has.
func stranded(p *corev1.Pod) { selects(nowhere, "x")(p) }

func affinity(r corev1.NodeSelectorRequirement) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{r}}},
		}}}
	}
}

func spreads(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
			{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Labels["app"]}}},
		}
	}
}

func annotates(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func many(n int) []string {
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprintf("v%d", i)
	}
	return values
}

// plenty is more than any machine of the pools has.
var plenty = corev1.ResourceList{
	corev1.ResourceCPU: resource.MustParse("200"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	v1alpha1.ResourceGPUShared: resource.MustParse("160"),
}

// whyUnschedulable returns why a pod may stay pending, judged by its spec alone and with Kubernetes' arithmetic; "" for a pod that has to run.
func whyUnschedulable(p *corev1.Pod) string {
	tolerates := func(t corev1.Toleration) bool { return t.Key == v1alpha1.ResourceGPUShared || t.Key == "" }
	memory, err := resource.ParseQuantity(p.Annotations[v1alpha1.GPUMemoryAnnotation])
	switch {
	case p.Spec.SchedulerName != "" && p.Spec.SchedulerName != corev1.DefaultSchedulerName:
		return "another scheduler"
	case len(p.Spec.SchedulingGates) > 0:
		return "gates"
	case !slices.ContainsFunc(p.Spec.Tolerations, tolerates):
		return "taints"
	case len(p.Spec.NodeSelector) > 0, p.Spec.Affinity != nil && (p.Spec.Affinity.NodeAffinity != nil || p.Spec.Affinity.PodAffinity != nil):
		return "affinity"
	case slices.ContainsFunc(p.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool { return c.TopologyKey == nowhere }):
		return "spread"
	case slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil }):
		return "volumes"
	case p.Annotations[v1alpha1.GPUMemoryAnnotation] != "" && (err != nil || memory.Sign() < 0 || memory.Cmp(resource.MustParse("16Gi")) > 0):
		return "device memory"
	}
	sum := corev1.ResourceList{}
	for _, c := range slices.Concat(p.Spec.Containers, p.Spec.InitContainers) {
		asked := c.Resources.Requests.DeepCopy()
		if asked == nil {
			asked = corev1.ResourceList{}
		}
		for name, q := range c.Resources.Limits {
			if _, ok := asked[name]; !ok {
				asked[name] = q
			}
		}
		for name, q := range asked {
			total := sum[name]
			total.Add(q)
			sum[name] = total
		}
	}
	for name, q := range sum {
		if has, ok := plenty[name]; !ok || q.Cmp(has) > 0 {
			return string(name)
		}
	}
	return ""
}

func TestOnlyUnschedulablePodsMayStayPending(t *testing.T) {
	t.Parallel()
	for _, h := range hostiles {
		if why := whyUnschedulable(h.pod(standing, steady)); (why == "") != h.runs {
			t.Errorf("%s has to run: %t, but its hindrance is %q", h.name, h.runs, why)
		}
	}
	if why := whyUnschedulable(classOf(standing, spot, 1)); why != "" {
		t.Errorf("a pod of a class of its own is hindered by %s", why)
	}
	for _, a := range apps {
		if why := whyUnschedulable(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: a.template().Annotations}, Spec: a.template().Spec}); why != "" {
			t.Errorf("%s is hindered by %s", a.name, why)
		}
	}
}
