package snapshot

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
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

const limitNodes corev1.ResourceName = "nodes"

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

// FieldReport describes a field of a NodePool or GPUNodeClass that has no effect, or a different effect than in Karpenter. Nodes are still launched.
// Settings that must prevent launches are a [Problem].
type FieldReport struct {
	// Path is the path of the field, such as spec.disruption.consolidationPolicy.
	Path string
	// Reason and Message are for the condition FieldsHonored. The message names the field and says what to do instead.
	Reason, Message string
}
