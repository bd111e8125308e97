package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Pools returns Karve's NodePools with their problems, sorted by name.
func Pools(c *facts.Cluster) []Pool {
	var pools []Pool
	for i := range c.NodePools {
		if np := &c.NodePools[i]; facts.IsOurs(np) {
			c.BeginVisit("NodePool", np)
			pools = append(pools, poolOf(c, np))
		}
	}
	slices.SortFunc(pools, func(a, b Pool) int { return strings.Compare(a.NodePool.Name, b.NodePool.Name) })
	return pools
}

func poolOf(c *facts.Cluster, np *karpv1.NodePool) Pool {
	p := Pool{NodePool: np, Class: c.GPUNodeClass(np.Spec.Template.Spec.NodeClassRef.Name)}
	if why := p.setAside(); why != "" {
		p.Problems = []Problem{{karpv1.ConditionTypeValidationSucceeded, string(planner.ReasonSetAside), why}}
		return p
	}
	if problem := classProblem(c, &p); problem != nil {
		p.Problems = append(p.Problems, *problem)
	}
	if p.Class == nil {
		p.Unhonored = unhonoredFields(c, &p, nil)
		return p
	}
	t := templateOf(c, &p)
	p.Offerings = offeringsOf(c, &p, t)
	shareGPUs(c, &p)
	if problem := launchProblem(c, &p); problem != nil && len(p.Problems) == 0 {
		p.Problems = append(p.Problems, *problem)
	}
	p.Unhonored = unhonoredFields(c, &p, t)
	if reason, message := t.problem(np); reason != "" {
		p.Problems = append(p.Problems, Problem{karpv1.ConditionTypeValidationSucceeded, reason, message})
	} else if reason, message := p.specProblem(); reason != "" {
		p.Problems = append(p.Problems, Problem{karpv1.ConditionTypeValidationSucceeded, reason, message})
	} else if problem := nothingOffered(c, &p, t); problem != nil {
		p.Problems = append(p.Problems, *problem)
	}
	return p
}

// classProblem returns the problem of the GPUNodeClass or its node class, or nil if there is none.
func classProblem(c *facts.Cluster, p *Pool) *Problem {
	notReady := func(reason, message string) *Problem {
		return &Problem{karpv1.ConditionTypeNodeClassReady, reason, message}
	}
	name := p.NodePool.Spec.Template.Spec.NodeClassRef.Name
	if p.Class == nil {
		return notReady("GPUNodeClassNotFound", fmt.Sprintf("GPUNodeClass %q does not exist: create it, or name another in spec.template.spec.nodeClassRef. Until then nothing is launched, and idle nodes are given back after %s", name, v1alpha1.DefaultIdleAfter))
	}
	if !p.Class.DeletionTimestamp.IsZero() {
		return notReady("GPUNodeClassTerminating", fmt.Sprintf("GPUNodeClass %q is being deleted: name another in spec.template.spec.nodeClassRef", name))
	}
	ref := p.Class.Spec.NodeClassRef
	state, ok := c.NodeClasses[ref]
	if !ok {
		state = facts.NodeClassState{Reason: "NodeClassNotFound", Message: fmt.Sprintf("%s %q is not known: create it, or name another in spec.nodeClassRef", ref.Kind, ref.Name)}
	}
	if !state.Ready {
		return notReady(cmp.Or(state.Reason, "NodeClassNotReady"), fmt.Sprintf("GPUNodeClass %q: %s", name, cmp.Or(state.Message, fmt.Sprintf("%s %q is not Ready", ref.Kind, ref.Name))))
	}
	if reason, message := c.DRA.Problem(p.Class); reason != "" {
		return notReady(reason, fmt.Sprintf("GPUNodeClass %q: %s", name, message))
	}
	return nil
}

// specProblem returns the problem of the NodePool's spec, or "" if there is none.
func (p *Pool) specProblem() (reason, message string) {
	np := p.NodePool
	if np.Spec.Replicas != nil {
		return "StaticPool", "spec.replicas asks for a fixed number of nodes, which Karve does not serve: remove it, or use a node class of the cloud for static nodes"
	}
	if p.Class.Spec.Sharing.Shared() && !slices.ContainsFunc(np.Spec.Template.Spec.Taints, facts.KeepsPodsAway) {
		key := p.Resource()
		if facts.IsSlot(key) {
			key = v1alpha1.ResourceGPU // One taint serves all sizes.
		}
		return "NoTaint", fmt.Sprintf("shared nodes need a taint that keeps other pods away: add one to spec.template.spec.taints, such as {key: %s, effect: NoSchedule}", key)
	}
	if problem := p.slotProblem(); problem != "" {
		return "SlotsAboveGPUs", problem
	}
	for _, req := range np.Spec.Template.Spec.Requirements {
		if req.MinValues != nil && len(p.Offerings) > 0 && !p.describes(req.Key) {
			return "UnsupportedMinValues", fmt.Sprintf("minValues of requirement %q cannot be kept, since no instance type has that label: remove it", req.Key)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(np.Spec.Limits)) {
		if !p.knowsLimit(name) {
			return "UnsupportedLimit", fmt.Sprintf("limit %q cannot be enforced: use cpu, memory, nodes, %s (physical GPUs)%s", name, v1alpha1.ResourceGPU, p.sharedLimit())
		}
	}
	return "", ""
}

// describes reports whether the cloud sets the label on the pool's machines.
func (p *Pool) describes(key string) bool {
	key = nodelabels.Current(key)
	return slices.ContainsFunc(p.Offerings, func(o Offering) bool {
		_, chosen := o.CustomLabels[key]
		_, fixed := p.NodePool.Spec.Template.Labels[key]
		_, has := o.Labels[key]
		return has && !chosen && !fixed
	})
}

func (p *Pool) knowsLimit(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, limitNodes, v1alpha1.ResourceGPU:
		return true
	}
	return p.countsReplicas() && name == p.Resource()
}

func (p *Pool) sharedLimit() string {
	if !p.countsReplicas() {
		return ""
	}
	return fmt.Sprintf(" or %s (replicas)", p.Resource())
}
