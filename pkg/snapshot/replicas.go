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

// replicasPerGPU returns the number of replicas of each GPU of a pool's machine. The scheduler ignores device memory and may put any pods on any replicas. If the
// class sets a range, the number is therefore as many in the range as fit if each replica uses the device memory of the largest pod that the pool admits. If
// that is unknown, it is the minimum.
func (p *Pool) replicasPerGPU(share v1alpha1.Share, memoryMiB int64) int64 {
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
			o.ReplicasPerGPU = p.replicasPerGPU(o.Share, o.Type.GPU.UsableMiB())
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
	f := footprint{pool: p, index: c.Indexed(), shapes: newShapes(c)}
	f.crowded = f.nodeLoad() > maxTerms
	if !f.addRunning() || !f.addWaiting(records.StorageOf(c)) {
		return 0
	}
	return f.largest
}

// footprint finds the device memory of the largest pod of a pool.
type footprint struct {
	pool   *Pool
	index  *facts.Index
	shapes *shapes
	// crowded reports whether the pods have more node affinity than that of one plan. To read it would delay the plan, so pods with much of it count as admitted.
	crowded bool
	largest int64
}

// nodeLoad returns the part of the work of a plan that the node affinity of all pods with a GPU causes, once for each shape.
func (f *footprint) nodeLoad() int {
	load, counted := 0, map[*shape]bool{}
	count := func(pod *corev1.Pod) {
		if s := f.shapes.sketchOf(pod); !counted[s] {
			counted[s] = true
			load += s.nodeLoad
		}
	}
	for _, h := range f.index.Bound() {
		count(h.Pod)
	}
	for _, pod := range f.index.Unbound() {
		if claims.RequestsGPU(&pod.Spec) {
			count(pod)
		}
	}
	return load
}

// addRunning adds the bound pods that the pool admits or runs. It returns false if one of them requests no or invalid device memory.
func (f *footprint) addRunning() bool {
	onPool := func(n facts.NodeCount) bool {
		s := f.index.Site(n.Node)
		return s != nil && s.Node.Labels[karpv1.NodePoolLabelKey] == f.pool.NodePool.Name
	}
	for _, h := range f.index.Bound() {
		if s := f.shapes.sketchOf(h.Pod); s.gpu == f.pool.Resource() && (f.admits(s) || slices.ContainsFunc(h.On.Numbers, onPool)) && !f.add(s) {
			return false
		}
	}
	return true
}

// addWaiting adds the pending pods that an empty machine of the pool can hold. It returns false if one of them requests no or invalid device memory.
func (f *footprint) addWaiting(storage *records.Storage) bool {
	fits := map[*shape]bool{}
	for _, pod := range f.index.Unbound() {
		if !claims.RequestsGPU(&pod.Spec) || facts.TooLarge(pod) != "" { // Nothing is planned for it.
			continue
		}
		s := f.shapes.sketchOf(pod)
		if _, known := fits[s]; !known {
			fits[s] = s.gpu == f.pool.Resource() && f.admits(s) && f.pool.emptyMachineHolds(s)
		}
		if fits[s] && storage.Of(pod).Refusal() == nil && !f.add(s) {
			return false
		}
	}
	return true
}

func (f *footprint) admits(s *shape) bool {
	return f.crowded && s.nodeLoad > 0 || f.pool.admitsShape(s)
}

// add adds a pod, and returns false if it requests no or invalid device memory.
func (f *footprint) add(s *shape) bool {
	f.largest = max(f.largest, s.gpuMemory)
	return s.wrong == nil && s.gpuMemory > 0
}

// admitsShape reports whether the pool has offerings that admit pods of the shape.
func (p *Pool) admitsShape(s *shape) bool {
	if s.claim != nil && (!p.Class.Spec.Sharing.UsesDRA() || s.claim.Refusal != "") {
		return false
	}
	_, err := p.admittingOfferings(&s.demand, s.gpu)
	return err == nil
}

// emptyMachineHolds reports whether an empty machine of the pool is large enough for a pod of the shape. Like the scheduler, it ignores device memory.
func (p *Pool) emptyMachineHolds(s *shape) bool {
	asks := facts.ResourcesOf(s.demand.Requests, s.gpu)
	return slices.ContainsFunc(p.Offerings, func(o Offering) bool {
		has := o.Free()
		has.Replicas = o.Share.Most * o.Type.GPU.Count
		return has.Covers(asks)
	})
}

// shareGPUs sets MaxPerGPU of each machine.
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
		m.MaxPerGPU = math.MaxInt64
		for _, t := range append([]*catalog.InstanceType{m.Type}, m.Others...) {
			if share, ok := p.Class.Spec.Sharing.ShareWith(m.Promise.MIG, t.GPU.Name, t.GPU.MemoryMiB, t.GPU.Count); ok {
				m.MaxPerGPU = min(m.MaxPerGPU, p.replicasPerGPU(share, m.MinMemoryMiB(t)))
			}
		}
		if m.MaxPerGPU == math.MaxInt64 { // The class cannot share its GPUs now.
			m.MaxPerGPU = m.Promise.ReplicasPerGPU
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
