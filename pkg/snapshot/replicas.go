package snapshot

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// perGPU returns the number of replicas of each GPU of a pool's machine. The scheduler ignores device memory and may put any pods on any replicas. If the
// class sets a range, the number is therefore as many in the range as fit if each replica uses the device memory of the largest pod that the pool admits. If
// that is unknown, it is the minimum.
func (p *Pool) perGPU(share v1alpha1.Share, memoryMiB int64) int64 {
	if p.footprint <= 0 {
		return share.Least
	}
	return max(share.Least, min(share.Most, memoryMiB*facts.BytesPerMiB/p.footprint))
}

// shareGPUs finds the largest pod of the pool, and sets the replicas per GPU of the pool's offerings accordingly. It skips offerings on which DaemonSets use
// replicas, because their device memory is unknown.
func shareGPUs(c *facts.Cluster, p *Pool) {
	p.footprint = footprintOf(c, p)
	for i := range p.Offerings {
		if o := &p.Offerings[i]; o.Daemons.Replicas == 0 {
			o.ReplicasPerGPU = p.perGPU(o.Share, o.Type.GPU.UsableMiB())
		}
	}
}

// footprintOf returns the device memory, in bytes, of the largest pod that the pool admits or runs. Running pods count, because similar pods may follow.
// Pending pods count only if an empty machine of the pool can hold them and their volumes do not prevent it: otherwise a pod that fits nowhere would reduce
// the sharing of all GPUs. It returns 0 if one of the pods requests no or invalid device memory, if there are no pods, or if the class or a limit on
// replicas leaves no range.
func footprintOf(c *facts.Cluster, p *Pool) int64 {
	if _, limited := p.NodePool.Spec.Limits[p.Resource()]; p.Class.Spec.Sharing.MaxReplicas == nil || limited && p.Resource() != v1alpha1.ResourceGPU {
		return 0
	}
	x, shapes, storage := c.Indexed(), newShapes(c), records.StorageOf(c)
	var largest int64
	// note adds a pod, and returns false if one requests no or invalid device memory.
	note := func(s *shape) bool {
		largest = max(largest, s.gpuMemory)
		return s.wrong == nil && s.gpuMemory > 0
	}
	onPool := func(n facts.NodeCount) bool {
		s := x.Site(n.Node)
		return s != nil && s.Node.Labels[karpv1.NodePoolLabelKey] == p.NodePool.Name
	}
	load, counted := 0, map[*shape]bool{}
	count := func(pod *corev1.Pod) {
		if s := shapes.turn(pod); !counted[s] {
			counted[s] = true
			load += s.nodeLoad
		}
	}
	for _, h := range x.Bound() {
		count(h.Pod)
	}
	for _, pod := range x.Unbound() {
		if claims.RequestsGPU(&pod.Spec) {
			count(pod)
		}
	}
	// To read more node affinity than that of one plan would delay the plan. Pods with much of it then count as admitted.
	admits := func(s *shape) bool { return load > maxTerms && s.nodeLoad > 0 || p.admitsShape(s) }
	for _, h := range x.Bound() {
		if s := shapes.turn(h.Pod); s.gpu == p.Resource() && (admits(s) || slices.ContainsFunc(h.On.Numbers, onPool)) && !note(s) {
			return 0
		}
	}
	fits := map[*shape]bool{}
	for _, pod := range x.Unbound() {
		if !claims.RequestsGPU(&pod.Spec) || facts.ExcessWhy(pod) != "" { // Nothing is planned for pods beyond a bound.
			continue
		}
		s := shapes.turn(pod)
		if _, known := fits[s]; !known {
			fits[s] = s.gpu == p.Resource() && admits(s) && p.takes(s)
		}
		if fits[s] && storage.Of(pod).Refusal() == nil && !note(s) {
			return 0
		}
	}
	return largest
}

// admitsShape reports whether the pool has offerings that admit pods of the shape.
func (p *Pool) admitsShape(s *shape) bool {
	if s.claim != nil && (!p.Class.Spec.Sharing.UsesDRA() || s.claim.Refusal != "") {
		return false
	}
	_, err := p.admitting(&s.demand, s.gpu)
	return err == nil
}

// takes reports whether an empty machine of the pool is large enough for a pod of the shape. Like the scheduler, it ignores device memory.
func (p *Pool) takes(s *shape) bool {
	asks := facts.ResourcesOf(s.demand.Requests, s.gpu)
	return slices.ContainsFunc(p.Offerings, func(o Offering) bool {
		has := o.Free()
		return asks.MilliCPU <= has.MilliCPU && asks.MemoryBytes <= has.MemoryBytes && asks.EphemeralBytes <= has.EphemeralBytes &&
			asks.Replicas <= o.Share.Most*o.Type.GPU.Count
	})
}

// shareGPUs sets MostPerGPU of each machine.
func (v *View) shareGPUs() {
	pools := map[string]*Pool{}
	for i := range v.Pools {
		if p := &v.Pools[i]; p.Class != nil && p.Class.Spec.Sharing.MaxReplicas != nil {
			pools[p.NodePool.Name] = p
		}
	}
	if len(pools) == 0 {
		return
	}
	for i := range v.Machines {
		m := &v.Machines[i]
		p := pools[m.Pool()]
		if p == nil || m.Type == nil || m.Promise.Resource != p.Resource() {
			continue
		}
		m.MostPerGPU = math.MaxInt64
		for _, t := range append([]*catalog.InstanceType{m.Type}, m.Others...) {
			if share, ok := p.Class.Spec.Sharing.ShareWith(m.Promise.MIG, t.GPU.Name, t.GPU.MemoryMiB, t.GPU.Count); ok {
				m.MostPerGPU = min(m.MostPerGPU, p.perGPU(share, m.LeastMemoryMiB(t)))
			}
		}
		if m.MostPerGPU == math.MaxInt64 { // The class cannot share its GPUs now.
			m.MostPerGPU = m.Promise.ReplicasPerGPU
		}
	}
}

// Promised returns the number of GPUs and of replicas per GPU that the machine of a launch promises. If the launch has alternatives, both are the minimum
// over them, which is enough for the pods. If the class sets a range, it promises no more replicas than the pods need, and at least the minimum of the
// range.
func (v *View) Promised(launch planner.Launch) (gpus, perGPU int64) {
	o := v.Offerings[launch.Offering]
	gpus, most := o.Type.GPU.Count, o.ReplicasPerGPU
	least := min(most, o.Share.Least)
	for _, i := range launch.Alternatives {
		other := v.Offerings[i]
		gpus, most, least = min(gpus, other.Type.GPU.Count), min(most, other.ReplicasPerGPU), min(least, other.Share.Least)
	}
	if gpus <= 0 {
		return gpus, most
	}
	return gpus, max(least, min(most, facts.CeilDiv(v.Replicas(launch.Pods), gpus)))
}

// Replicas returns the total number of replicas that the named pods of the view request.
func (v *View) Replicas(pods []string) int64 {
	var n int64
	for _, name := range pods {
		if pod := v.Pods[name]; pod != nil {
			gpu, _ := facts.GPUResource(pod)
			n = amount.Add(n, facts.RequestsOf(pod, gpu).Replicas)
		}
	}
	return n
}
