package snapshot

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// With backend DRA, the scheduler gives a pod the first GPUs of the node that have room for its claims' requests, and it takes the pods in any order.
// On a machine with several GPUs, a set of pods can fit in one order and not in another. A plan must fit in every order.
//
// A GPU with R replicas refuses a pod that requests at most r of them only after others have taken at least R-r+1. So if each pod weighs the fraction
// that it takes of that amount, the pods on a GPU that refuses weigh at least 1. The same holds for device memory. A pod finds a GPU in any order if
// the other pods of a machine weigh less than the number of GPUs of the machine. A pod that requests n different GPUs finds them if the others weigh
// less than that number minus n-1. A pod whose GPUs need not differ finds them one after the other, as several pods would. This is a sum over the pods
// of a machine, so it is a quota.
//
// MIG instances count as GPUs here. Instances that are not shared need no quota: each is free or taken, so their number decides.

// gpuKind is a kind of machine with several shared GPUs or MIG instances: their number, and the replicas and memory of each.
type gpuKind struct{ count, replicas, memoryMiB int64 }

func (k gpuKind) String() string {
	return fmt.Sprintf("GPUs that pods get in any order (%d with %d replicas and %d MiB)", k.count, k.replicas, k.memoryMiB)
}

// devices returns the GPUs or MIG instances of the machine in a pool.
func (o *Offering) devices(p *Pool) claims.Devices {
	return records.DevicesOf(o.Type, facts.Promise{Backend: p.Class.Spec.Sharing.PromisedBackend(), MIG: o.Share.MIG, ReplicasPerGPU: o.ReplicasPerGPU, Resource: corev1.ResourceName(o.Share.Resource)})
}

// gpuKind returns the kind of the offering's machines. It returns false if they have one GPU, devices that are not shared, or a device plugin.
func (o *Offering) gpuKind(p *Pool) (gpuKind, bool) { //nolint:unparam // As that of room.
	count, replicas, memory := records.Divide(o.Share.MIG, o.Type.GPU.Count, o.ReplicasPerGPU, o.Type.GPU.UsableMiB())
	if !p.Class.Spec.Sharing.UsesDRA() || count < 2 || replicas < 2 {
		return gpuKind{}, false
	}
	return gpuKind{count, replicas, memory}, true
}

// gpuKind returns the kind of the room's machine. It returns false if the machine has one GPU, devices that are not shared, or a device plugin, or if
// its type is not known yet.
func (r *room) gpuKind() (gpuKind, bool) {
	m := r.machine
	if m == nil || m.Type == nil || nodecontract.DriverOf(m.Promise.Backend) == "" {
		return gpuKind{}, false
	}
	count, replicas, memory := records.Divide(m.Promise.MIG, m.Type.GPU.Count, m.Promise.ReplicasPerGPU, records.MemoryMiB(r.labels, m.Type))
	if count < 2 || replicas < 2 {
		return gpuKind{}, false
	}
	for _, t := range m.Others {
		if t.GPU.Count != m.Type.GPU.Count || t.GPU.UsableMiB() != m.Type.GPU.UsableMiB() {
			return gpuKind{}, false
		}
	}
	return gpuKind{count, replicas, memory}, true
}

// gpuShare is a pod's share of GPUs: the request in ask, multiplied by times.
type gpuShare struct {
	times int64
	ask   *claims.Ask
}

// oneReplica is what the scheduler requests at a time for a pod without a claim.
var oneReplica = &claims.Ask{Sets: []claims.Set{{{GPUs: 1, Replicas: 1}}}}

// shareOf returns the share of a pod that requests a number of replicas. A pod without a claim takes one replica after the other.
func shareOf(claim *claims.Ask, replicas int64) gpuShare {
	if claim == nil {
		return gpuShare{replicas, oneReplica}
	}
	return gpuShare{1, claim}
}

// takesMachine reports whether a pod has a machine to itself.
func (k gpuKind) takesMachine(s gpuShare) bool { return s.ask.Alone(k.replicas, k.memoryMiB) }

// gpuOrder has the weights of pods on machines of a kind.
type gpuOrder struct {
	kind gpuKind
	// fullGPU is the weight that fills a GPU. perReplica is the weight of a replica, and perUnit that of a unit of device memory of unitBytes bytes.
	fullGPU, perReplica, perUnit, unitBytes int64
	// minWeight is the smallest weight of a set of GPUs that one of the coming pods requests.
	minWeight int64
}

// newGPUOrder returns the weights for the pods in coming. all also has pods that exist or may come at other times.
func newGPUOrder(kind gpuKind, coming, all []gpuShare) *gpuOrder {
	var sets []claims.Set
	for _, s := range coming {
		if !kind.takesMachine(s) {
			sets = append(sets, s.ask.Sets...)
		}
	}
	var most claims.Share
	for _, s := range slices.Concat(sets...) {
		most.Replicas, most.MemoryBytes = max(most.Replicas, s.Replicas), max(most.MemoryBytes, s.MemoryBytes)
	}
	replicaStep, memoryStep := int64(0), int64(0)
	for _, pod := range all {
		for _, s := range slices.Concat(pod.ask.Sets...) {
			replicaStep, memoryStep = greatestDivisor(replicaStep, s.Replicas), greatestDivisor(memoryStep, s.MemoryBytes)
		}
	}
	// What the pods on a GPU have taken is a multiple of the steps.
	refusing := roundUp(kind.replicas-most.Replicas+1, replicaStep)
	o := &gpuOrder{kind: kind, fullGPU: refusing, perReplica: 1}
	if most.MemoryBytes > 0 {
		units := roundUp(kind.memoryMiB*facts.BytesPerMiB-most.MemoryBytes+1, memoryStep) / memoryStep
		o.fullGPU, o.perReplica, o.perUnit, o.unitBytes = refusing*units, units, refusing, memoryStep
	}
	for _, set := range sets {
		if weight, _ := o.setWeight(set); o.minWeight == 0 || weight < o.minWeight {
			o.minWeight = weight
		}
	}
	o.minWeight = max(1, o.minWeight) // It is 0 if all pods have machines to themselves.
	return o
}

// greatestDivisor returns the greatest common divisor. 0 is a multiple of every number.
func greatestDivisor(a, b int64) int64 {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// roundUp returns the smallest multiple of step that is at least n.
func roundUp(n, step int64) int64 { return (n + step - 1) / step * step }

// setWeight returns the weight of a set, and the number of its GPUs.
func (o *gpuOrder) setWeight(set claims.Set) (weight, gpus int64) {
	for _, s := range set {
		one := amount.Times(s.Replicas, o.perReplica)
		if o.unitBytes > 0 {
			one = max(one, amount.Times(s.MemoryBytes/o.unitBytes, o.perUnit))
		}
		weight, gpus = amount.Add(weight, amount.Times(s.GPUs, min(one, o.fullGPU))), amount.Add(gpus, s.GPUs)
	}
	return weight, gpus
}

// quotaOf returns the quota of a machine with this number of GPUs in service.
func (o *gpuOrder) quotaOf(gpus int64) int64 { return gpus*o.fullGPU + o.minWeight - 1 }

// weightOf returns what a pod takes of the quota. It is at most the quota of an empty machine with enough GPUs.
func (o *gpuOrder) weightOf(s gpuShare) int64 {
	empty := o.quotaOf(o.kind.count)
	if o.kind.takesMachine(s) {
		return empty
	}
	total := int64(0)
	for _, set := range s.ask.Sets {
		weight, gpus := o.setWeight(set)
		total = amount.Add(total, amount.Add(weight, amount.Times(gpus-1, o.fullGPU)))
	}
	if s.ask.Total().GPUs <= o.kind.count {
		total = min(total, empty)
	}
	return amount.Times(s.times, total)
}

// gpuOrders returns the weights for each kind of machine on which pods with claims are planned. Without such pods, the number of replicas decides
// alone.
func (v *View) gpuOrders(rooms []room, waiting []*waitingClass) map[gpuKind]*gpuOrder {
	coming, all := map[gpuKind][]gpuShare{}, map[gpuKind][]gpuShare{}
	claimed := map[gpuKind]bool{}
	if !haveClaims(waiting) {
		return nil
	}
	kinds := make([]gpuKind, len(v.Offerings))
	for i, o := range v.Offerings {
		kinds[i], _ = o.gpuKind(&v.Pools[v.Snapshot.Offerings[i].Pool])
	}
	for i, w := range waiting {
		share := shareOf(w.claim, v.Classes[i].Requests.Replicas)
		of := map[gpuKind]bool{}
		for _, j := range v.Classes[i].Offerings {
			of[kinds[j]] = true
		}
		for _, j := range v.Classes[i].Nodes {
			kind, _ := rooms[j].gpuKind()
			of[kind] = true
		}
		for kind := range of {
			if kind.count > 0 && share.times > 0 {
				coming[kind], all[kind] = append(coming[kind], share), append(all[kind], share)
				claimed[kind] = claimed[kind] || w.claim != nil
			}
		}
	}
	for i := range rooms {
		if kind, ok := rooms[i].gpuKind(); ok && claimed[kind] {
			all[kind] = append(all[kind], rooms[i].gpuShares()...)
		}
	}
	orders := map[gpuKind]*gpuOrder{}
	for kind := range claimed {
		if claimed[kind] {
			orders[kind] = newGPUOrder(kind, coming[kind], all[kind])
		}
	}
	return orders
}

func haveClaims(waiting []*waitingClass) bool {
	for _, w := range waiting {
		if w.claim != nil && w.claim.Refusal == "" {
			return true
		}
	}
	return false
}

// gpuShares returns the shares of the pods on the node, and of DaemonSet pods that will start there.
func (r *room) gpuShares() []gpuShare {
	var all []gpuShare
	for _, pod := range r.pods {
		if n := facts.RequestsOf(pod, r.gpu).Replicas; n > 0 {
			all = append(all, shareOf(claims.Of(pod), n))
		}
	}
	for _, d := range r.daemons {
		if n := facts.ReplicasIn(d.Requests, r.gpu); n > 0 {
			all = append(all, shareOf(nil, n))
		}
	}
	return all
}

// quotaLeft returns the remaining quota of the machine of a room.
func (o *gpuOrder) quotaLeft(r *room) int64 {
	gpus := o.kind.count
	if r.machine.Node != nil && !r.starting {
		gpus = min(gpus, r.machine.Exposed()/max(1, o.kind.replicas)) // The others are out of service.
	}
	left := o.quotaOf(gpus)
	for _, s := range r.gpuShares() {
		left = amount.Sub(left, o.weightOf(s))
	}
	return left
}
