package records

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Devices returns the GPUs or MIG instances of the machine if it has the given type.
func (m *Machine) Devices(t *catalog.InstanceType) claims.Devices {
	return DevicesOf(t, m.Promise)
}

// DevicesOf returns the GPUs or MIG instances of a machine with the type and the promise.
func DevicesOf(t *catalog.InstanceType, p facts.Promise) claims.Devices {
	memory := int64(0)
	if t.GPU.UsableKnown() {
		memory = t.GPU.UsableMiB()
	}
	d := claims.Devices{Kind: claims.Kind{Driver: nodecontract.DriverOf(p.Backend), Whole: p.Whole(), Model: t.GPU.Name, Profile: p.MIG.Profile, Resource: string(p.Resource)}}
	d.Count, d.Replicas, d.MemoryMiB = Divide(p.MIG, t.GPU.Count, p.ReplicasPerGPU, memory)
	return d
}

// GPUMiB returns the device memory of each GPU of the machine, or of each of their MIG instances, in MiB. It is 0 if it is unknown.
func (m *Machine) GPUMiB() int64 {
	var labels map[string]string
	if m.Node != nil {
		labels = m.Node.Labels
	}
	_, _, mib := Divide(m.Promise.MIG, 1, 1, MemoryMiB(labels, m.Type))
	return mib
}

// FreshGPUs returns GPUs that are not in use.
func FreshGPUs(count, replicas, memoryMiB int64) []planner.GPU {
	if count <= 0 {
		return nil
	}
	return slices.Repeat([]planner.GPU{{Replicas: replicas, MemoryBytes: memoryMiB * facts.BytesPerMiB}}, int(count))
}

// Hold subtracts what a pod uses from the GPUs. The API does not say which GPU a pod uses, so it assumes the choice of karve-node: each replica goes to the
// GPU with the most free replicas, then the one with the most free memory, then the first one. It assumes that a pod that requests memory uses one GPU, as
// far as that GPU has replicas, and returns this GPU. For other pods it returns -1.
func Hold(gpus []planner.GPU, replicas, memoryBytes int64) int {
	of := -1
	if on := roomiest(gpus); on >= 0 && memoryBytes > 0 && replicas > 0 {
		here := min(gpus[on].Replicas, replicas)
		gpus[on].Replicas -= here
		gpus[on].MemoryBytes = max(0, gpus[on].MemoryBytes-memoryBytes)
		replicas -= here
		of = on
	}
	takeEvenly(gpus, replicas)
	return of
}

// takeEvenly has the same result as taking replicas one by one, each from the GPU with the most free replicas, but its cost does not depend on their number.
// It first lowers all GPUs to the level at which the last replicas are taken, and then takes those.
func takeEvenly(gpus []planner.GPU, replicas int64) {
	order := make([]int, len(gpus))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(gpus[j].Replicas, gpus[i].Replicas) })
	// All GPUs in order[:n], which are above the level, are lowered to it.
	for n := 1; n <= len(order) && replicas > 0; n++ {
		level, next := gpus[order[n-1]].Replicas, int64(0)
		if n < len(order) {
			next = gpus[order[n]].Replicas
		}
		down := min(level-next, replicas/int64(n))
		for _, i := range order[:n] {
			gpus[i].Replicas = level - down
		}
		if replicas -= down * int64(n); down == level-next {
			continue
		}
		rest := slices.Clone(order[:n])
		slices.SortFunc(rest, func(i, j int) int {
			return cmp.Or(cmp.Compare(gpus[j].MemoryBytes, gpus[i].MemoryBytes), cmp.Compare(i, j))
		})
		for _, i := range rest[:replicas] {
			gpus[i].Replicas--
		}
		return
	}
}

// roomiest returns the GPU from which the next replica is taken, or -1 if no GPU has a free replica.
func roomiest(gpus []planner.GPU) int {
	best := -1
	for i, g := range gpus {
		if g.Replicas > 0 && (best < 0 || cmp.Or(cmp.Compare(g.Replicas, gpus[best].Replicas), cmp.Compare(g.MemoryBytes, gpus[best].MemoryBytes)) > 0) {
			best = i
		}
	}
	return best
}

// Divide returns the number of units of a machine that pods can hold, the number of replicas of a unit, and its memory in MiB. The units are the GPUs,
// or their MIG instances. If instances have several profiles, the memory is that of the largest.
func Divide(mig nodecontract.MIG, gpus, perGPU, memoryMiB int64) (count, perUnit, unitMiB int64) {
	switch {
	case mig.Mixed():
		for _, of := range mig.Instances(gpus) {
			unitMiB = max(unitMiB, of.MemoryMiB)
		}
		return mig.InstancesOf(gpus), mig.PerInstance(), unitMiB
	case mig.Count < 1:
		return gpus, perGPU, memoryMiB
	}
	return gpus * mig.Count, perGPU / mig.Count, mig.MemoryMiB
}

// GPUsLeft returns the GPUs of the machine less what its pods use. perGPU is the number of replicas of each GPU, and exposed that of the machine.
func (m *Machine) GPUsLeft(perGPU, exposed int64, labels map[string]string) []planner.GPU {
	gpus, _ := m.gpusHeld(perGPU, exposed, labels)
	return gpus
}

func (m *Machine) gpusHeld(perGPU, exposed int64, labels map[string]string) (left []planner.GPU, on map[*corev1.Pod]int) {
	return GPUsHeld(m.unusedGPUs(perGPU, exposed, labels), m.Pods, m.Promise.Resource)
}

// unusedGPUs returns the GPUs of the machine, or their MIG instances, as if no pod used them.
func (m *Machine) unusedGPUs(perGPU, exposed int64, labels map[string]string) []planner.GPU {
	if offers := m.Promise.Offers(); offers != nil {
		return AsOneGPU(offers, exposed)
	}
	count, perUnit, unitMiB := Divide(m.Promise.MIG, m.Promise.GPUs, perGPU, MemoryMiB(labels, m.Type))
	return usableGPUs(count, perUnit, unitMiB, exposed, m.GPUsCordoned())
}

// GPUSet returns the GPUs of the machine of which the agent chooses.
func (m *Machine) GPUSet(perGPU, exposed int64, labels map[string]string) GPUSet {
	if !AgentChooses(m.Promise.Backend, m.Promise.Slots) || m.Promise.MIG.Mixed() {
		return GPUSet{}
	}
	return GPUSetOf(m.unusedGPUs(perGPU, exposed, labels))
}

// UnmanagedGPUs returns the GPUs of a node that Karve did not launch, as if no pod used them. exposed is the number of replicas that the node reports.
func UnmanagedGPUs(node *corev1.Node, t *catalog.InstanceType, exposed int64) []planner.GPU {
	count, perGPU, cordoned := gpuCount(node.Labels, t, exposed), int64(0), facts.GPUsCordoned(node)
	if cordoned {
		perGPU = facts.NumberIn(node.Labels, nodecontract.GPUReplicasLabel, facts.MaxReplicasPerGPU)
	}
	return usableGPUs(count, perGPU, MemoryMiB(node.Labels, t), exposed, cordoned)
}

// usableGPUs returns the GPUs of a node on which pods can have replicas. exposed is the number of replicas that the node reports, or will report. A node
// may report more than it promised; the planner expects the GPUs to add up to all replicas of the node. If GPUs are cordoned, as many GPUs as
// correspond to the missing replicas have no room. Which ones these are makes no difference to a plan. It returns nil if count is 0.
func usableGPUs(count, perGPU, memoryMiB, exposed int64, cordoned bool) []planner.GPU {
	if count <= 0 {
		return nil
	}
	perGPU = max(perGPU, facts.CeilDiv(exposed, count))
	gpus := FreshGPUs(count, perGPU, memoryMiB)
	if cordoned && perGPU > 0 {
		clear(gpus[count-max(0, count*perGPU-exposed)/perGPU:])
	}
	return gpus
}

// GPUsHeld returns the GPUs less what the pods use, and the GPU that each pod is assumed to use, which is -1 for pods that request no device memory.
func GPUsHeld(gpus []planner.GPU, pods []*corev1.Pod, gpu corev1.ResourceName) (left []planner.GPU, on map[*corev1.Pod]int) {
	if len(gpus) == 0 {
		return nil, nil
	}
	on = map[*corev1.Pod]int{}
	inOrder := slices.Clone(pods)
	slices.SortStableFunc(inOrder, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, pod := range inOrder {
		memory, err := facts.GPUMemory(pod)
		if err != nil {
			memory = 0
		}
		on[pod] = Hold(gpus, facts.RequestsOf(pod, gpu).Replicas, memory)
	}
	return gpus, on
}

// MemoryMiB returns the device memory of each GPU of a node in MiB, from the node's label or else from the catalog. It is 0 if neither has it.
func MemoryMiB(labels map[string]string, t *catalog.InstanceType) int64 {
	if mib := facts.NumberIn(labels, nodecontract.GPUMemoryLabel, catalog.MaxMemoryMiB); mib > 0 {
		return mib
	}
	if t != nil {
		return t.GPU.UsableMiB()
	}
	return 0
}

// gpuCount returns the number of GPUs of a node that Karve did not launch, or 0 if it is unknown. Anyone may have set the label, so the result is at
// most the number of replicas that the kubelet reports: each GPU has at least one.
func gpuCount(labels map[string]string, t *catalog.InstanceType, exposed int64) int64 {
	n := facts.NumberIn(labels, nodecontract.GPUCountLabel, catalog.MaxGPUs)
	if n == 0 && t != nil {
		n = t.GPU.Count
	}
	return min(n, exposed)
}

// GPUsHeld returns the GPU, or MIG instance, of the machine that each of its pods is assumed to use. It is -1 for pods that request no device memory.
func (m *Machine) GPUsHeld() map[*corev1.Pod]int {
	_, on := m.gpusHeld(m.Promise.ReplicasPerGPU, m.Exposed(), m.Node.Labels)
	return on
}
