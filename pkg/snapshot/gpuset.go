package snapshot

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
)

// The kubelet takes pods in any order, and asks the agent for the devices of one container after the other, without saying which pod it is. The agent takes
// each replica from the GPU with the most free replicas. So on a machine with several GPUs, nobody can plan on which of them a pod with device memory will be,
// and the containers of a pod may be on several.
//
// What holds in any order is the number of replicas: with at most k times as many in use as there are GPUs, the GPU that gets the next one then has at most k.
// If k pods fit on a GPU, each with the device memory of the largest, every GPU has the memory for what it holds. k is the depth of the machine. A pod counts
// with all of its memory on each GPU on which it may have a replica.
//
// For the planner, such a machine has one GPU with all replicas and memory, and admits the pods of which k fit on a GPU. A machine to launch is offered with
// each depth that the waiting pods need. The depth of a node follows from its pods and from those that it was launched for.

// maxDepths is the maximum number of depths at which an offering is offered. Pods of other depths use the next smaller one.
const maxDepths = 4

// gpuSet is a set of equal GPUs, or MIG instances, of which the agent chooses. It is zero for a machine on which it has no choice.
type gpuSet struct {
	count int64
	// each is what each GPU has when no pod uses it.
	each planner.GPU
}

// gpuSetOf returns the set of GPUs that no pod uses. GPUs without room do not count.
func gpuSetOf(gpus []planner.GPU) gpuSet {
	gpus = slices.DeleteFunc(slices.Clone(gpus), func(g planner.GPU) bool { return g.Replicas == 0 })
	if len(gpus) < 2 || gpus[0].MemoryBytes == 0 {
		return gpuSet{}
	}
	return gpuSet{int64(len(gpus)), gpus[0]}
}

// depth returns how many pods may share a GPU if the largest states an amount of device memory, in bytes.
func (s gpuSet) depth(largest int64) int64 {
	if largest <= 0 {
		return s.each.Replicas
	}
	return max(1, min(s.each.Replicas, s.each.MemoryBytes/largest))
}

// memory returns the device memory that each pod may state at a depth.
func (s gpuSet) memory(depth int64) int64 { return s.each.MemoryBytes / depth }

// gpu returns the GPUs at a depth as one, less the replicas that pods hold.
func (s gpuSet) gpu(depth, held int64) planner.GPU {
	return planner.GPU{Replicas: max(0, s.count*depth-held), MemoryBytes: s.count * depth * s.memory(depth)}
}

// agentChooses reports whether the machines of a backend with these slots have GPUs of which the agent chooses. The scheduler chooses those of DRA drivers, and a
// slot is on the GPU for which it was made.
func agentChooses(backend string, slots nodecontract.Slots) bool {
	return nodecontract.DriverOf(backend) == "" && slots.IsZero()
}

// gpuSet returns the GPUs of which the agent chooses on a machine of the offering.
func (o *Offering) gpuSet(p *Pool) gpuSet {
	if !agentChooses(p.Class.Spec.Sharing.PromisedBackend(), o.Share.Slots) || o.instances != nil {
		return gpuSet{}
	}
	return gpuSetOf(fresh(divided(o.Share.MIG, o.Type.GPU.Count, o.ReplicasPerGPU, o.Type.GPU.UsableMiB())))
}

// states reports whether the agent's choice of GPUs matters to a shape: it states device memory, other than in a claim or as slots.
func (s *shape) states() bool {
	return s.gpuMemory > 0 && s.gpu != "" && s.claim == nil && !isSlot(s.gpu)
}

// replicas returns the number of replicas that pods of the shape request.
func (s *shape) replicas() int64 { return replicasIn(s.demand.requests, s.gpu) }

// deepen adds the offerings at the depths that the shapes need. An offering at its own number of replicas is there already, and suffices for pods with one
// replica.
func (v *View) deepen(shapes []*shape) {
	shapes = slices.DeleteFunc(slices.Clone(shapes), func(s *shape) bool { return !s.states() })
	v.deeper = map[int][]int{}
	if len(shapes) == 0 {
		return
	}
	for at := range v.Offerings {
		o, pool := v.Offerings[at], &v.Pools[v.Snapshot.Offerings[at].Pool]
		s := o.gpuSet(pool)
		for _, depth := range s.depths(shapes, o.Resource()) {
			deep := *o
			deep.depth, deep.gpus = depth, s
			v.deeper[at] = append(v.deeper[at], len(v.Offerings))
			as := v.Snapshot.Offerings[at]
			as.Free, as.GPUs, as.Choice = deep.Free(), deep.GPUs(), deep.choice()
			v.Offerings, v.Snapshot.Offerings = append(v.Offerings, &deep), append(v.Snapshot.Offerings, as)
		}
	}
}

// depths returns the depths that shapes need, in ascending order.
func (s gpuSet) depths(shapes []*shape, gpu corev1.ResourceName) []int64 {
	if s.count == 0 {
		return nil
	}
	var all []int64
	for _, of := range shapes {
		if of.gpu == gpu && of.gpuMemory <= s.each.MemoryBytes && !s.alone(of.gpuMemory, of.replicas()) {
			all = append(all, s.depth(of.gpuMemory))
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for len(all) > maxDepths {
		all = slices.Delete(all, len(all)/2, len(all)/2+1)
	}
	return all
}

// alone reports whether pods fit without another depth: they have one replica, and as many fit on a GPU as it has replicas. Pods that fit on no GPU count too:
// the planner says why.
func (s gpuSet) alone(memory, replicas int64) bool {
	return memory > s.each.MemoryBytes || replicas <= 1 && memory <= s.memory(s.each.Replicas)
}

// holds reports whether the offering may have pods of a shape.
func (o *Offering) holds(p *Pool, s *shape) bool {
	switch {
	case !s.states():
		return true
	case o.instances != nil:
		return s.holdsOn(o.instances)
	case o.depth > 0:
		return s.gpuMemory <= o.gpus.memory(o.depth)
	}
	all := o.gpuSet(p)
	return all.count == 0 || all.alone(s.gpuMemory, s.replicas())
}

// setRooms makes nodes with several GPUs what the agent can promise of them to pods that state device memory. Nothing changes if no such pods wait.
func (v *View) setRooms(shapes []*shape) {
	byKey := map[string]*shape{}
	for _, s := range shapes {
		if s.states() {
			byKey[s.short] = s
		}
	}
	if len(byKey) == 0 {
		return
	}
	for i := range v.rooms {
		if r := &v.rooms[i]; r.gpus.count > 0 {
			r.depth = r.gpus.depth(v.largestOn(r, byKey))
			gpu := r.gpus.gpu(r.depth, r.held)
			r.node.GPUs, r.node.Free.Replicas = []planner.GPU{gpu}, min(r.node.Free.Replicas, gpu.Replicas)
			v.Nodes[i] = r.node
		}
	}
}

// largestOn returns the largest device memory, in bytes, that a pod of the node states, or a waiting one that the node was launched for.
func (v *View) largestOn(r *room, byKey map[string]*shape) int64 {
	var largest int64
	for _, pod := range r.pods {
		if memory, err := gpuMemory(pod); err == nil && requests(pod, r.gpu).Replicas > 0 {
			largest = max(largest, memory)
		}
	}
	if v.expectsPods(r) {
		for key := range countsOf(r.machine.Claim.Annotations[v1alpha1.PlannedPodsAnnotation]) {
			if s := byKey[key]; s != nil && s.gpu == r.gpu {
				largest = max(largest, s.gpuMemory)
			}
		}
	}
	return largest
}

// holds reports whether the node may have pods of a shape, as far as its depth is concerned.
func (r *room) holds(s *shape) bool {
	if r.instances != nil && s.states() {
		return s.holdsOn(r.instances)
	}
	return r.depth == 0 || !s.states() || s.gpuMemory <= r.gpus.memory(r.depth)
}

// Anywhere reports whether the agent chooses the GPUs of the pods of a launch.
func (o *Offering) Anywhere() bool { return o.depth > 0 || o.instances != nil }

// AnyGPU reports whether the agent chooses the GPUs of the pods that are planned on a node.
func (v *View) AnyGPU(node int) bool {
	return v.rooms[node].depth > 0 || v.rooms[node].instances != nil
}

// Shallow reports whether a node would admit the pods of a class if fewer pods shared its GPUs. statedBytes is the device memory that each pod may state now.
func (v *View) Shallow(class, node int) (statedBytes int64, shallow bool) {
	if !slices.Contains(v.shallow[class], node) {
		return 0, false
	}
	r := &v.rooms[node]
	return r.gpus.memory(r.depth), true
}

func depthChoice(depth int64) string { return fmt.Sprintf("at most %d pods for each GPU", depth) }
