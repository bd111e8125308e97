package advice

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

// merges returns the changes that move all workloads of a NodePool to a larger one with the same sharing and the same GPUs. replicas has the largest number that
// is advised for a GPUNodeClass, by its name.
func (sc *scenario) merges(sites []site, gpus map[string][]string, replicas map[string]int64) (all []change) {
	hours, at := map[string]float64{}, map[string]*site{}
	for i := range sc.workloads {
		hours[sc.workloads[i].Pool] += sc.workloads[i].hours()
	}
	for i := range sites {
		for _, pool := range sites[i].pools {
			at[pool] = &sites[i]
		}
	}
	order := slices.SortedFunc(maps.Keys(at), func(a, b string) int { return cmp.Or(cmp.Compare(hours[b], hours[a]), cmp.Compare(a, b)) })
	for i, from := range order {
		for _, to := range order[:i] {
			if !slices.Equal(gpus[from], gpus[to]) || !sc.mayMeet(at[from], at[to], from, replicas[at[to].class.Name]) {
				continue
			}
			if c, ok := sc.merge(sc.pool(from), sc.pool(to)); ok {
				at[to].incoming = append(at[to].incoming, sc.workloadsIn(from)...)
				all = append(all, c)
				break
			}
		}
	}
	return all
}

func (sc *scenario) workloadsIn(pool string) (all []*Workload) {
	for i := range sc.workloads {
		if sc.workloads[i].Pool == pool {
			all = append(all, &sc.workloads[i])
		}
	}
	return all
}

// mayMeet reports whether the workloads of a pool of a site may share GPUs with those of another site, which has at most this many replicas.
func (sc *scenario) mayMeet(from, to *site, pool string, replicas int64) bool {
	if from.class.Name == to.class.Name && len(to.incoming) == 0 {
		return true
	}
	a, b := from.class.Spec.Sharing, to.class.Spec.Sharing
	if a.Strategy != b.Strategy || a.Resource() != b.Resource() || from.fixed(sc) != "" || to.fixed(sc) != "" || !b.Shared() || !from.known(sc) || !to.known(sc) || to.memory == 0 {
		return false
	}
	return fits(slices.Concat(to.workloads(sc), to.incoming, sc.workloadsIn(pool)), max(replicas, to.replicas()), to.memory, b.Strategy)
}

func (sc *scenario) pool(name string) *karpv1.NodePool {
	at := slices.IndexFunc(sc.cluster.NodePools, func(np karpv1.NodePool) bool { return np.Name == name })
	return &sc.cluster.NodePools[at]
}

// merge returns the change that moves the workloads of a NodePool to another. It returns false if a workload cannot be patched, or chooses its nodes by affinity.
func (sc *scenario) merge(from, to *karpv1.NodePool) (c change, ok bool) {
	c = change{Change: Change{Kind: Merge, Object: "NodePool " + from.Name, Risks: []string{"the workloads of both NodePools share nodes and GPUs, and what disrupts one disrupts the other"}}}
	moved := map[int]corev1.PodSpec{}
	for i := range sc.workloads {
		w := &sc.workloads[i]
		if w.Pool != from.Name {
			continue
		}
		spec, patch := moving(&sc.templates[i].Spec, from, to)
		p := w.patchOf(object{"spec": patch})
		if affinity := spec.Affinity; p.Command == "" || affinity != nil && affinity.NodeAffinity != nil && affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			return c, false
		}
		moved[i] = spec
		c.Patches = append(c.Patches, p)
	}
	if len(moved) == 0 {
		return c, false
	}
	c.Do = fmt.Sprintf("move its %s to NodePool %s, which has the same GPUs", words.Count(len(moved), "workload"), to.Name)
	c.Evidence = []string{"each NodePool has machines that its own pods do not fill"}
	c.apply = func(sc *scenario) {
		for _, i := range slices.Sorted(maps.Keys(moved)) {
			spec := &sc.template(i).Spec
			spec.NodeSelector, spec.Tolerations = moved[i].NodeSelector, moved[i].Tolerations
		}
	}
	return c, true
}

// moving returns the spec of a pod of a NodePool for another NodePool, and the difference as a patch.
func moving(pod *corev1.PodSpec, from, to *karpv1.NodePool) (corev1.PodSpec, object) {
	spec, selector := *pod, object{karpv1.NodePoolLabelKey: to.Name}
	spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: to.Name}
	for key, value := range pod.NodeSelector {
		switch {
		case key == karpv1.NodePoolLabelKey:
		case from.Spec.Template.Labels[key] == value && to.Spec.Template.Labels[key] != value:
			selector[key] = nil
		default:
			spec.NodeSelector[key] = value
		}
	}
	spec.Tolerations = slices.DeleteFunc(slices.Clone(pod.Tolerations), func(t corev1.Toleration) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") }) // Kubernetes adds these.
	known := len(spec.Tolerations)
	for _, taint := range to.Spec.Template.Spec.Taints {
		if facts.KeepsPodsAway(taint) && (scheduling.Taints{taint}).Tolerates(spec.Tolerations) != nil {
			spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: taint.Key, Operator: corev1.TolerationOpEqual, Value: taint.Value, Effect: taint.Effect})
		}
	}
	patch := object{"nodeSelector": selector}
	if len(spec.Tolerations) > known {
		patch["tolerations"] = spec.Tolerations
	}
	return spec, patch
}
