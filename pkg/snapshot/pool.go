package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Pool is a NodePool that refers to a GPUNodeClass, with what it needs to launch machines.
type Pool struct {
	NodePool *karpv1.NodePool
	// Class is the GPUNodeClass of the NodePool, or nil if it does not exist.
	Class *v1alpha1.GPUNodeClass
	// Problems are the reasons why the pool launches nothing, at most one for each condition. A valid pool has none.
	Problems []Problem
	// Unhonored are fields of the NodePool that have no effect, or a different effect than in Karpenter. The pool still launches nodes.
	Unhonored []FieldReport
	// Offerings are what the pool could launch, including offerings that the cloud refuses now. It is empty if Class is nil.
	Offerings []Offering

	// footprint is the device memory of the pool's largest pod, in bytes. It is 0 if it does not limit the number of replicas.
	footprint int64
}

// Problem is the reason why a pool launches nothing, as a condition.
type Problem struct {
	// Condition is the type of the NodePool's condition that is False.
	Condition       string
	Reason, Message string
}

// Resource returns the name of the resource that pods of the pool request. If they may request several, it is the first.
func (p *Pool) Resource() corev1.ResourceName {
	return corev1.ResourceName(p.Class.Spec.Sharing.Resource())
}

// Resources returns the names of all resources that pods of the pool may request.
func (p *Pool) Resources() []corev1.ResourceName {
	var names []corev1.ResourceName
	for _, name := range p.Class.Spec.Sharing.Resources() {
		names = append(names, corev1.ResourceName(name))
	}
	return names
}

// Serves reports whether pods that request the resource may belong to the pool.
func (p *Pool) Serves(gpu corev1.ResourceName) bool { return slices.Contains(p.Resources(), gpu) }

// countsReplicas reports whether a limit of the pool may count its replicas: their resource has a name of its own, and is the same on all machines.
func (p *Pool) countsReplicas() bool {
	return p.Class != nil && p.Resource() != v1alpha1.ResourceGPU && len(p.Class.Spec.Sharing.Resources()) == 1 && !facts.IsSlot(p.Resource())
}

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

const limitNodes corev1.ResourceName = "nodes"

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

// Limit is one of the limits that a NodePool may have.
type Limit struct {
	// Name is the name in spec.limits.
	Name corev1.ResourceName
	// Of returns the amount that the limit counts.
	Of func(*planner.Physical) *int64
	// Quantity returns an amount as in spec.limits.
	Quantity func(int64) resource.Quantity
}

// Limits returns the limits that the pool may have. A limit on replicas counts only for pools that rename their resource.
func (p *Pool) Limits() []Limit {
	whole := func(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }
	milli := func(n int64) resource.Quantity { return *resource.NewMilliQuantity(n, resource.DecimalSI) }
	binary := func(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.BinarySI) }
	all := []Limit{
		{v1alpha1.ResourceGPU, func(p *planner.Physical) *int64 { return &p.GPUs }, whole},
		{corev1.ResourceCPU, func(p *planner.Physical) *int64 { return &p.MilliCPU }, milli},
		{corev1.ResourceMemory, func(p *planner.Physical) *int64 { return &p.MemoryBytes }, binary},
		{limitNodes, func(p *planner.Physical) *int64 { return &p.Nodes }, whole},
	}
	if p.countsReplicas() {
		all = append(all, Limit{p.Resource(), func(p *planner.Physical) *int64 { return &p.Replicas }, whole})
	}
	return all
}

// remaining returns what the pool's limits leave beyond what it uses, in hardware: ten replicas of a GPU count as one nvidia.com/gpu.
func (p *Pool) remaining(used planner.Physical) planner.Physical {
	left := func(name corev1.ResourceName, used int64, milli bool) int64 {
		limit, ok := p.NodePool.Spec.Limits[name]
		if !ok {
			return planner.Unlimited
		}
		if milli {
			return amount.Sub(amount.Milli(limit), used)
		}
		return amount.Sub(amount.Value(limit), used)
	}
	remaining := planner.Physical{
		MilliCPU:    left(corev1.ResourceCPU, used.MilliCPU, true),
		MemoryBytes: left(corev1.ResourceMemory, used.MemoryBytes, false),
		GPUs:        left(v1alpha1.ResourceGPU, used.GPUs, false),
		Nodes:       left(limitNodes, used.Nodes, false),
		Replicas:    planner.Unlimited,
	}
	if p.countsReplicas() {
		remaining.Replicas = left(p.Resource(), used.Replicas, false)
	}
	return remaining
}

// setAside returns why decisions are made without the pool or its class, or "" if they are not.
func (p *Pool) setAside() string {
	if why := facts.SetAsideWhy(p.NodePool); why != "" || p.Class == nil {
		return why
	}
	return facts.SetAsideWhy(p.Class)
}
