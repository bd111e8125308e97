package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// karpenterPool is a NodePool that Karpenter provisions for, with the machines that Karpenter could launch for GPU pods. Karpenter counts whole GPUs and
// the capacity that NodeOverlays add. This file matches pods like Karpenter, with Karpenter's scheduling requirements.
type karpenterPool struct {
	nodePool *karpv1.NodePool
	machines []karpenterMachine
}

type karpenterMachine struct {
	labels      scheduling.Requirements
	allocatable planner.Resources
	// gpus has the amounts of the GPU resources.
	gpus map[corev1.ResourceName]int64
}

// karpenterPoolsOf returns the NodePools that Karpenter provisions for, sorted by name. It skips static NodePools and those that are being deleted.
func karpenterPoolsOf(c *facts.Cluster) []karpenterPool {
	var pools []karpenterPool
	for i := range c.NodePools {
		if np := &c.NodePools[i]; !facts.IsOurs(np) && np.Spec.Replicas == nil && np.DeletionTimestamp.IsZero() && facts.SetAsideWhy(np) == "" {
			c.BeginVisit("NodePool", np)
			pools = append(pools, karpenterPool{np, karpenterMachinesOf(c, np)})
		}
	}
	slices.SortFunc(pools, func(a, b karpenterPool) int { return strings.Compare(a.nodePool.Name, b.nodePool.Name) })
	return pools
}

func karpenterMachinesOf(c *facts.Cluster, np *karpv1.NodePool) []karpenterMachine {
	ref := np.Spec.Template.Spec.NodeClassRef
	types := c.TypesOf(ref, c.InstanceTypes)
	var kind schema.GroupKind
	if ref != nil {
		kind = schema.GroupKind{Group: ref.Group, Kind: ref.Kind}
	}
	described := clouds.Relabel(kind, describedLabels(types))
	fixed := records.MergedLabels(np.Spec.Template.Labels, map[string]string{karpv1.NodePoolLabelKey: np.Name}, clouds.ManagedLabels(kind))
	pool := scheduling.NewNodeSelectorRequirementsWithMinValues(np.Spec.Template.Spec.Requirements...)
	pool.Add(scheduling.NewLabelRequirements(fixed).Values()...)
	var machines []karpenterMachine
	for i := range types {
		t := &types[i]
		if t.GPU.Count == 0 && len(c.NodeOverlays) == 0 {
			continue
		}
		for _, o := range t.Offerings {
			machine := clouds.Relabel(kind, records.MergedLabels(t.Labels, o.Labels))
			if !admits(machine, fixed, pool, described) {
				continue
			}
			labels := scheduling.NewLabelRequirements(machine)
			labels.Add(absentLabels(described, machine)...)
			labels.Add(pool.Values()...)
			if gpus := karpenterGPUs(c, t, labels); len(gpus) > 0 {
				machines = append(machines, karpenterMachine{labels, records.AllocatableOf(t), gpus})
			}
		}
	}
	return machines
}

// absentLabels returns requirements for the absence of labels that other machines of the cloud have and this one does not. Otherwise Karpenter's matching assumes
// that the machine may still get a well-known label.
func absentLabels(described map[string]bool, machine map[string]string) []*scheduling.Requirement {
	var absent []*scheduling.Requirement
	for key := range described {
		if _, ok := machine[key]; !ok {
			absent = append(absent, scheduling.NewRequirement(key, corev1.NodeSelectorOpDoesNotExist))
		}
	}
	return absent
}

// karpenterGPUs returns the amounts of the GPU resources that Karpenter assumes for a machine.
func karpenterGPUs(c *facts.Cluster, t *catalog.InstanceType, labels scheduling.Requirements) map[corev1.ResourceName]int64 {
	gpus := map[corev1.ResourceName]int64{}
	if t.GPU.Count > 0 {
		gpus[v1alpha1.ResourceGPU] = t.GPU.Count
	}
	for i := range c.NodeOverlays {
		overlay := &c.NodeOverlays[i]
		wanted := scheduling.NewRequirements()
		for _, req := range overlay.Spec.Requirements {
			wanted.Add(scheduling.NewRequirement(req.Key, req.Operator, req.Values...))
		}
		if labels.Compatible(wanted) != nil {
			continue
		}
		for gpu := range overlay.Spec.Capacity {
			if n := facts.ValueOf(overlay.Spec.Capacity, gpu); nodecontract.IsGPUResource(string(gpu)) && n > gpus[gpu] {
				gpus[gpu] = n
			}
		}
	}
	return gpus
}

// karpenterPoolServing returns the name of the first pool that could serve the pod and the request of its claims. claim is nil if it has none. It returns "" if
// there is no such pool. Karpenter's machines have no devices of Karve's agents, but may have those of other drivers.
func karpenterPoolServing(pools func() []karpenterPool, pod *corev1.Pod, gpu corev1.ResourceName, claim *claims.Ask) string {
	need := facts.RequestsOf(pod, gpu)
	if claim != nil {
		if claim.DriverName() == nodecontract.DRADriver {
			return ""
		}
		need.Replicas = claim.Distinct()
	}
	wanted := nodeRequirements(pod)
	for _, p := range pools() {
		if p.serves(pod, gpu, need, wanted) {
			return p.nodePool.Name
		}
	}
	return ""
}

func (p *karpenterPool) serves(pod *corev1.Pod, gpu corev1.ResourceName, need planner.Resources, wanted []scheduling.Requirements) bool {
	lasting := slices.DeleteFunc(slices.Clone(p.nodePool.Spec.Template.Spec.Taints), func(t corev1.Taint) bool { return !facts.KeepsPodsAway(t) })
	if launchesNothing(p.nodePool, gpu) || scheduling.Taints(lasting).Tolerates(pod.Spec.Tolerations) != nil {
		return false
	}
	return slices.ContainsFunc(p.machines, func(m karpenterMachine) bool { return m.hasRoomFor(gpu, need) && m.meetsAny(wanted) })
}

// hasRoomFor reports whether the machine has room for a pod when it is empty.
func (m *karpenterMachine) hasRoomFor(gpu corev1.ResourceName, need planner.Resources) bool {
	free := m.allocatable
	free.Replicas = m.gpus[gpu]
	return free.Covers(need)
}

// meetsAny reports whether the labels of the machine meet one of the alternatives.
func (m *karpenterMachine) meetsAny(alternatives []scheduling.Requirements) bool {
	return slices.ContainsFunc(alternatives, func(w scheduling.Requirements) bool {
		return m.labels.IsCompatible(w, scheduling.AllowUndefinedWellKnownLabels)
	})
}

// whyKarpenterCannot returns, for each of Karpenter's pools with the GPU resource that cannot serve a pod, what differs.
func whyKarpenterCannot(pools []karpenterPool, d *records.Demand, gpu corev1.ResourceName) []string {
	need, wanted := facts.RequestsOf(d.Pod, gpu), nodeRequirements(d.Pod)
	var all []string
	for i := range pools {
		p := &pools[i]
		if !slices.ContainsFunc(p.machines, func(m karpenterMachine) bool { return m.gpus[gpu] > 0 }) {
			continue
		}
		if err := p.refusal(d, gpu, need, wanted); err != nil {
			all = append(all, fmt.Sprintf("NodePool %s, which Karpenter serves: %s", p.nodePool.Name, err))
		}
	}
	return all
}

// refusal returns why the pool does not serve a pod, or nil if it does.
func (p *karpenterPool) refusal(d *records.Demand, gpu corev1.ResourceName, need planner.Resources, wanted []scheduling.Requirements) error {
	if launchesNothing(p.nodePool, gpu) {
		return errors.New("a limit of 0 in spec.limits keeps it from launching")
	}
	if taint := d.Untolerated(p.nodePool.Spec.Template.Spec.Taints, facts.KeepsPodsAway); taint != nil {
		return records.UntoleratedTaintError{Taint: *taint}
	}
	fitting := slices.DeleteFunc(slices.Clone(p.machines), func(m karpenterMachine) bool { return !m.hasRoomFor(gpu, need) })
	switch {
	case len(fitting) == 0:
		return errors.New("none of its machines is large enough")
	case slices.ContainsFunc(fitting, func(m karpenterMachine) bool { return m.meetsAny(wanted) }):
		return nil
	}
	for _, key := range d.Selectors {
		want := d.Pod.Spec.NodeSelector[key]
		one := []scheduling.Requirements{scheduling.NewLabelRequirements(map[string]string{key: want})}
		if !slices.ContainsFunc(fitting, func(m karpenterMachine) bool { return m.meetsAny(one) }) {
			return records.OtherLabelError{Key: key, Want: want}
		}
	}
	return d.AffinityError()
}

// launchesNothing reports whether a limit of zero prevents all launches of the pool.
func launchesNothing(np *karpv1.NodePool, gpu corev1.ResourceName) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, limitNodes, gpu, v1alpha1.ResourceGPU} {
		if limit, ok := np.Spec.Limits[name]; ok && limit.IsZero() {
			return true
		}
	}
	return false
}

// nodeRequirements returns the alternatives of a pod's node selector and required node affinity. The terms of the affinity are ORed.
func nodeRequirements(pod *corev1.Pod) []scheduling.Requirements {
	selector := func() scheduling.Requirements { return scheduling.NewLabelRequirements(pod.Spec.NodeSelector) }
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return []scheduling.Requirements{selector()}
	}
	var alternatives []scheduling.Requirements
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		// A term without expressions matches nothing. A term with fields names an existing node.
		if len(term.MatchExpressions) == 0 || len(term.MatchFields) > 0 {
			continue
		}
		requirements := selector()
		requirements.Add(scheduling.NewNodeSelectorRequirements(term.MatchExpressions...).Values()...)
		alternatives = append(alternatives, requirements)
	}
	if len(alternatives) == 0 {
		none := selector()
		none.Add(scheduling.NewRequirement("metadata.name", corev1.NodeSelectorOpExists))
		return []scheduling.Requirements{none}
	}
	return alternatives
}
