package snapshot

import (
	"slices"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
)

// raising is how long a machine is trusted to expose the replicas that its promise was raised to a moment ago.
const raising = time.Minute

// perGPU is how many replicas each GPU of a machine of the pool may have. The scheduler knows nothing of device memory and puts any pods on any replicas, so
// where the class leaves a range it is as many as each hold the largest of the pods that the pool admits: in whatever number and order they come, they fit.
func (p *Pool) perGPU(gpuName string, memoryMiB int64) int64 {
	least, most := p.Class.Spec.Sharing.ReplicasRange(gpuName)
	if p.footprint <= 0 {
		return least
	}
	return max(least, min(most, memoryMiB*bytesPerMiB/p.footprint))
}

// shareGPUs finds the largest pod, and shares the GPUs of the pool's offerings by it. Where DaemonSets hold replicas there is no telling how much memory they take.
func (c *Cluster) shareGPUs(p *Pool) {
	p.footprint = c.footprint(p)
	for i := range p.Offerings {
		if o := &p.Offerings[i]; o.Daemons.Replicas == 0 {
			o.ReplicasPerGPU = p.perGPU(o.Type.GPU.Name, o.Type.GPU.UsableMiB())
		}
	}
}

// footprint is the device memory, in bytes, of the largest of the pods that the pool admits or has, those that run included, since others of their kind may
// come; 0 when one of them states none, when there are none, and when the class or a limit on replicas leaves no range. Pods that wait
// and that the scheduler puts on no machine of the pool as they are do not count: else one that asks for the impossible would have all GPUs shared less.
func (c *Cluster) footprint(p *Pool) int64 {
	if _, limited := p.NodePool.Spec.Limits[p.Resource()]; p.Class.Spec.Sharing.MaxReplicas == nil || limited && p.Resource() != v1alpha1.ResourceGPU {
		return 0
	}
	onPool := map[string]bool{}
	for i := range c.Nodes {
		onPool[c.Nodes[i].Name] = c.Nodes[i].Labels[karpv1.NodePoolLabelKey] == p.NodePool.Name
	}
	shapes, storage, admitted, taken := c.shapes(), c.storage(), map[*shape]bool{}, map[*shape]bool{}
	var largest int64
	for i := range c.Pods {
		pod := &c.Pods[i]
		if !mentionsGPU(pod) || karpenter.IsTerminal(pod) {
			continue
		}
		s := shapes.of(pod)
		if s.gpu != p.Resource() {
			continue
		}
		if _, known := admitted[s]; !known {
			_, err := p.admitting(&s.demand, s.gpu)
			admitted[s], taken[s] = err == nil, err == nil && p.takes(s)
		}
		if !admitted[s] && !onPool[pod.Spec.NodeName] {
			continue
		}
		if pod.Spec.NodeName == "" && (!taken[s] || storage.of(pod).refusal() != nil) {
			continue
		}
		if s.wrong != nil || s.gpuMemory == 0 {
			return 0
		}
		largest = max(largest, s.gpuMemory)
	}
	return largest
}

// takes says whether an empty machine of the pool is large enough for a pod of the shape, as the scheduler sees it, which knows nothing of device memory.
func (p *Pool) takes(s *shape) bool {
	asks := ResourcesOf(s.demand.requests, s.gpu)
	return slices.ContainsFunc(p.Offerings, func(o Offering) bool {
		has := o.Free()
		_, most := p.Class.Spec.Sharing.ReplicasRange(o.Type.GPU.Name)
		return asks.MilliCPU <= has.MilliCPU && asks.MemoryBytes <= has.MemoryBytes && asks.EphemeralBytes <= has.EphemeralBytes &&
			asks.Replicas <= most*o.Type.GPU.Count
	})
}

// shareGPUs says of each machine how many replicas each of its GPUs may have.
func (v *View) shareGPUs() {
	pools := map[string]*Pool{}
	for i := range v.Pools {
		pools[v.Pools[i].NodePool.Name] = &v.Pools[i]
	}
	for i := range v.Machines {
		m := &v.Machines[i]
		p := pools[m.Pool()]
		if p == nil || p.Class == nil || p.Class.Spec.Sharing.MaxReplicas == nil || m.Type == nil || m.Promise.Resource != p.Resource() {
			continue
		}
		m.MostPerGPU = p.perGPU(m.Type.GPU.Name, m.leastMemoryMiB(m.Type))
		for _, t := range m.Others {
			m.MostPerGPU = min(m.MostPerGPU, p.perGPU(t.GPU.Name, m.leastMemoryMiB(t)))
		}
	}
}

// leastMemoryMiB is the device memory of each GPU of the machine, of what the catalogue and the Node say the less.
func (m *Machine) leastMemoryMiB(t *catalog.InstanceType) int64 {
	mib := t.GPU.UsableMiB()
	if m.Node != nil {
		mib = min(mib, memoryMiB(m.Node.Labels, t))
	}
	return mib
}

// hasOrGets is how many replicas a machine has that exposes so many: those that it was just told to expose are on their way. more is how many each GPU could
// get in addition; none while the machine does not expose what it promised.
func (m *Machine) hasOrGets(exposed int64, now time.Time) (replicas, more int64) {
	if at := TimeOf(m.Claim.Annotations[v1alpha1.ReplicasRaisedAnnotation]); !at.IsZero() && now.Before(at.Add(raising)) && at.Before(now.Add(raising)) {
		exposed = max(exposed, m.Promise.Replicas())
	}
	if exposed >= m.Promise.Replicas() {
		more = max(0, m.MostPerGPU-m.Promise.ReplicasPerGPU)
	}
	return exposed + more*m.Promise.GPUs, more
}

// TimeOf is the time that an annotation holds; the zero time for what is none.
func TimeOf(value string) time.Time {
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return time.Time{}
	}
	return t
}

// Promised is what the machine of a launch is to expose. Where the cloud may make another machine than the one that was chosen, that is as many GPUs as each has,
// and as many replicas of each: enough for the pods, which each of them holds. Where the class leaves a range it is no more than they need.
func (v *View) Promised(launch planner.Launch) (gpus, perGPU int64) {
	o := v.Offerings[launch.Offering]
	sharing := v.Pools[v.Snapshot.Offerings[launch.Offering].Pool].Class.Spec.Sharing
	gpus, most := o.Type.GPU.Count, o.ReplicasPerGPU
	least := min(most, sharing.ReplicasFor(o.Type.GPU.Name))
	for _, i := range launch.Alternatives {
		other := v.Offerings[i]
		gpus, most, least = min(gpus, other.Type.GPU.Count), min(most, other.ReplicasPerGPU), min(least, sharing.ReplicasFor(other.Type.GPU.Name))
	}
	if gpus <= 0 {
		return gpus, most
	}
	return gpus, max(least, min(most, ceil(v.Replicas(launch.Pods), gpus)))
}

// Replicas is how many replicas pods of the view ask for together.
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
