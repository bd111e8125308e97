package snapshot

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
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

// gpuSet returns the GPUs of which the agent chooses on a machine of the offering.
func (o *Offering) gpuSet(p *Pool) records.GPUSet {
	if !records.AgentChooses(p.Class.Spec.Sharing.PromisedBackend(), o.Share.Slots) || o.instances != nil {
		return records.GPUSet{}
	}
	return records.GPUSetOf(records.FreshGPUs(records.Divide(o.Share.MIG, o.Type.GPU.Count, o.ReplicasPerGPU, o.Type.GPU.UsableMiB())))
}

// states reports whether the agent's choice of GPUs matters to a shape: it states device memory, other than in a claim or as slots.
func (s *shape) states() bool {
	return s.gpuMemory > 0 && s.gpu != "" && s.claim == nil && !facts.IsSlot(s.gpu)
}

// replicas returns the number of replicas that pods of the shape request.
func (s *shape) replicas() int64 { return facts.ReplicasIn(s.demand.Requests, s.gpu) }

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
		for _, depth := range depths(s, shapes, o.Resource()) {
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
func depths(s records.GPUSet, shapes []*shape, gpu corev1.ResourceName) []int64 {
	if s.Count == 0 {
		return nil
	}
	var all []int64
	for _, of := range shapes {
		if of.gpu == gpu && of.gpuMemory <= s.Each.MemoryBytes && !s.Alone(of.gpuMemory, of.replicas()) {
			all = append(all, s.Depth(of.gpuMemory))
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for len(all) > maxDepths {
		all = slices.Delete(all, len(all)/2, len(all)/2+1)
	}
	return all
}

// holds reports whether the offering may have pods of a shape.
func (o *Offering) holds(p *Pool, s *shape) bool {
	switch {
	case !s.states():
		return true
	case o.instances != nil:
		return s.holdsOn(o.instances)
	case o.depth > 0:
		return s.gpuMemory <= o.gpus.Memory(o.depth)
	}
	all := o.gpuSet(p)
	return all.Count == 0 || all.Alone(s.gpuMemory, s.replicas())
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
		if r := &v.rooms[i]; r.gpus.Count > 0 {
			r.depth = r.gpus.Depth(v.largestOn(r, byKey))
			gpu := r.gpus.GPU(r.depth, r.held)
			r.node.GPUs, r.node.Free.Replicas = []planner.GPU{gpu}, min(r.node.Free.Replicas, gpu.Replicas)
			v.Nodes[i] = r.node
		}
	}
}

// largestOn returns the largest device memory, in bytes, that a pod of the node states, or a waiting one that the node was launched for.
func (v *View) largestOn(r *room, byKey map[string]*shape) int64 {
	var largest int64
	for _, pod := range r.pods {
		if memory, err := facts.GPUMemory(pod); err == nil && facts.RequestsOf(pod, r.gpu).Replicas > 0 {
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
	return r.depth == 0 || !s.states() || s.gpuMemory <= r.gpus.Memory(r.depth)
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
	return r.gpus.Memory(r.depth), true
}

func depthChoice(depth int64) string {
	return fmt.Sprintf("at most %s for each GPU", words.Count(depth, "pod"))
}
