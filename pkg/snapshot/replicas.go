package snapshot

import (
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/planner"
)

// raising is how long Karve assumes that a machine will report the replicas of its raised promise.
const raising = time.Minute

// perGPU returns the number of replicas of each GPU of a pool's machine. The scheduler ignores device memory and may put any pods on any replicas. If the
// class sets a range, the number is therefore as many in the range as fit if each replica uses the device memory of the largest pod that the pool admits. If
// that is unknown, it is the minimum.
func (p *Pool) perGPU(share v1alpha1.Share, memoryMiB int64) int64 {
	if p.footprint <= 0 {
		return share.Least
	}
	return max(share.Least, min(share.Most, memoryMiB*bytesPerMiB/p.footprint))
}

// shareGPUs finds the largest pod of the pool, and sets the replicas per GPU of the pool's offerings accordingly. It skips offerings on which DaemonSets use
// replicas, because their device memory is unknown.
func (c *Cluster) shareGPUs(p *Pool) {
	p.footprint = c.footprint(p)
	for i := range p.Offerings {
		if o := &p.Offerings[i]; o.Daemons.Replicas == 0 {
			o.ReplicasPerGPU = p.perGPU(o.Share, o.Type.GPU.UsableMiB())
		}
	}
}

// footprint returns the device memory, in bytes, of the largest pod that the pool admits or runs. Running pods count, because similar pods may follow.
// Pending pods count only if an empty machine of the pool can hold them and their volumes do not prevent it: otherwise a pod that fits nowhere would reduce
// the sharing of all GPUs. It returns 0 if one of the pods requests no or invalid device memory, if there are no pods, or if the class or a limit on
// replicas leaves no range.
func (c *Cluster) footprint(p *Pool) int64 {
	if _, limited := p.NodePool.Spec.Limits[p.Resource()]; p.Class.Spec.Sharing.MaxReplicas == nil || limited && p.Resource() != v1alpha1.ResourceGPU {
		return 0
	}
	x, shapes, storage := c.Indexed(), c.shapes(), c.storage()
	var largest int64
	// note adds a pod, and returns false if one requests no or invalid device memory.
	note := func(s *shape) bool {
		largest = max(largest, s.gpuMemory)
		return s.wrong == nil && s.gpuMemory > 0
	}
	onPool := func(n number) bool {
		s := x.site(n.node)
		return s != nil && s.node.Labels[karpv1.NodePoolLabelKey] == p.NodePool.Name
	}
	load, counted := 0, map[*shape]bool{}
	count := func(pod *corev1.Pod) {
		if s := shapes.turn(pod); !counted[s] {
			counted[s] = true
			load += s.nodeLoad
		}
	}
	for _, h := range x.bound() {
		count(h.pod)
	}
	for _, pod := range x.unbound() {
		if claims.RequestsGPU(&pod.Spec) {
			count(pod)
		}
	}
	// To read more node affinity than that of one plan would delay the plan. Pods with much of it then count as admitted.
	admits := func(s *shape) bool { return load > maxTerms && s.nodeLoad > 0 || p.admitsShape(s) }
	for _, h := range x.bound() {
		if s := shapes.turn(h.pod); s.gpu == p.Resource() && (admits(s) || slices.ContainsFunc(h.on.numbers, onPool)) && !note(s) {
			return 0
		}
	}
	fits := map[*shape]bool{}
	for _, pod := range x.unbound() {
		if !claims.RequestsGPU(&pod.Spec) || excessWhy(pod) != "" { // Nothing is planned for pods beyond a bound.
			continue
		}
		s := shapes.turn(pod)
		if _, known := fits[s]; !known {
			fits[s] = s.gpu == p.Resource() && admits(s) && p.takes(s)
		}
		if fits[s] && storage.of(pod).refusal() == nil && !note(s) {
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
	asks := ResourcesOf(s.demand.requests, s.gpu)
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
				m.MostPerGPU = min(m.MostPerGPU, p.perGPU(share, m.leastMemoryMiB(t)))
			}
		}
		if m.MostPerGPU == math.MaxInt64 { // The class cannot share its GPUs now.
			m.MostPerGPU = m.Promise.ReplicasPerGPU
		}
	}
}

// leastMemoryMiB returns the device memory of each GPU of the machine in MiB, the lower of the values in the catalog and on the Node.
func (m *Machine) leastMemoryMiB(t *catalog.InstanceType) int64 {
	mib := t.GPU.UsableMiB()
	if m.Node != nil {
		mib = min(mib, memoryMiB(m.Node.Labels, t))
	}
	return mib
}

// raised reports whether the promise of a machine was raised a moment ago.
func (m *Machine) raised(now time.Time) bool {
	at := m.status().raised
	return !at.IsZero() && now.Before(at.Add(raising)) && at.Before(now.Add(raising))
}

// hasOrGets returns the number of replicas that a machine has or can get, given the number that it reports. Replicas of a promise that was raised a
// moment ago count as reported. more is how many additional replicas each GPU can get. It is 0 if the machine reports less than it promised.
func (m *Machine) hasOrGets(exposed int64, raised bool) (replicas, more int64) {
	if raised && !m.GPUsCordoned() {
		exposed = max(exposed, m.Promise.Replicas())
	}
	if exposed >= m.Promise.Replicas() {
		more = max(0, m.MostPerGPU-m.Promise.ReplicasPerGPU)
	}
	return exposed + more*m.Promise.GPUs, more
}

// TimeOf parses the time in an annotation. It returns the zero time for missing or invalid values.
func TimeOf(value string) time.Time {
	if value == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return time.Time{}
	}
	return t
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
	return gpus, max(least, min(most, ceil(v.Replicas(launch.Pods), gpus)))
}

// Replicas returns the total number of replicas that the named pods of the view request.
func (v *View) Replicas(pods []string) int64 {
	var n int64
	for _, name := range pods {
		if pod := v.Pods[name]; pod != nil {
			gpu, _ := gpuResource(pod)
			n = amount.Add(n, requests(pod, gpu).Replicas)
		}
	}
	return n
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }
