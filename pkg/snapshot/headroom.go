package snapshot

import (
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/schedule"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// headroomPriority is the priority of headroom.
const headroomPriority = math.MinInt32

// maxReservePods is the maximum number of pods of one headroom, as the API allows for replicas.
const maxReservePods = 10_000

// HeadroomClasses returns the classes of the headroom.
func (v *View) HeadroomClasses() []planner.Class {
	classes := make([]planner.Class, len(v.Reserves))
	for i := range v.Reserves {
		classes[i] = v.Reserves[i].Class
	}
	return classes
}

// WantsHeadroom reports whether any CapacityBuffer or GPUNodeClass requests headroom, now or at other times.
func WantsHeadroom(c *facts.Cluster) bool {
	return len(c.Buffers) > 0 || slices.ContainsFunc(c.GPUNodeClasses, func(class v1alpha1.GPUNodeClass) bool { return len(class.Spec.Headroom) > 0 })
}

// classReserves returns the headroom of GPUNodeClasses at the current time.
func (v *View) classReserves(c *facts.Cluster, first []int) []Reserve {
	var reserves []Reserve
	for i := range v.Pools {
		pool := &v.Pools[i]
		if pool.Class == nil || !pool.NodePool.DeletionTimestamp.IsZero() {
			continue
		}
		n := headroomAt(pool.Class, c.Now)
		if n == 0 {
			continue
		}
		class := planner.Class{Priority: headroomPriority, Pods: placeholderNames("headroom/"+pool.NodePool.Name, n), Nodes: v.nodesForHeadroom(pool)}
		for j := range pool.Offerings {
			if o := &pool.Offerings[j]; o.instances == nil || o.exposes(pool.Resource(), nil) {
				class.Offerings = append(class.Offerings, first[i]+j)
			}
		}
		class.Requests, class.GPUMemoryBytes = pool.ReplicaShare()
		reserves = append(reserves, Reserve{Pool: i, Class: class})
	}
	return reserves
}

// placeholderNames returns n names, at most maxReservePods, that no pods have.
func placeholderNames(what string, n int32) []string {
	names := make([]string, min(n, maxReservePods))
	for i := range names {
		names[i] = fmt.Sprintf("%s/%05d", what, i)
	}
	return names
}

// nodesForHeadroom returns the nodes of a pool that admit pods which tolerate only the taints of its template.
func (v *View) nodesForHeadroom(pool *Pool) []int {
	pod := &corev1.Pod{}
	for _, taint := range pool.NodePool.Spec.Template.Spec.Taints {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key: taint.Key, Operator: corev1.TolerationOpEqual, Value: taint.Value, Effect: taint.Effect,
		})
	}
	d := records.DemandOf(pod)
	var nodes []int
	for i := range v.rooms {
		r := &v.rooms[i]
		if r.machine != nil && r.machine.Pool() == pool.NodePool.Name && slices.Contains(r.resources(), pool.Resource()) && d.Untolerated(r.taints, facts.KeepsPodsAway) == nil {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// reservedTenths is the part of a replica's share that headroom reserves, in tenths. A machine may have slightly less than the catalog says, and would
// otherwise always lack one replica of headroom.
const reservedTenths = 9

// ReplicaShare returns the CPU, memory and device memory that headroom reserves with each replica: nine tenths of the smallest share per replica among the
// pool's offerings. The device memory is in bytes.
func (p *Pool) ReplicaShare() (planner.Resources, int64) {
	slots := p.Class.Spec.Sharing.MemorySlots()
	least, memory := planner.Resources{MilliCPU: math.MaxInt64, MemoryBytes: math.MaxInt64}, int64(math.MaxInt64)
	part := func(least *int64, has, replicas int64) { *least = min(*least, has/replicas*reservedTenths/10) }
	for i := range p.Offerings {
		free := p.Offerings[i].Free()
		if !slots.IsZero() {
			free.Replicas = slots.CapacityMiB(p.Offerings[i].Type.GPU.UsableMiB()) / slots.SizesMiB[len(slots.SizesMiB)-1] * p.Offerings[i].Type.GPU.Count
		}
		if free.Replicas <= 0 {
			continue
		}
		part(&least.MilliCPU, free.MilliCPU, free.Replicas)
		part(&least.MemoryBytes, free.MemoryBytes, free.Replicas)
		if has, ok := records.OfferOf(p.Offerings[i].instances, p.Resource()); ok {
			part(&memory, records.ReplicaMiB(has)*facts.BytesPerMiB, 1)
			continue
		}
		t := p.Offerings[i].Type
		part(&memory, t.GPU.UsableMiB()*facts.BytesPerMiB, max(1, p.Offerings[i].ReplicasPerGPU))
	}
	if memory == math.MaxInt64 {
		least, memory = planner.Resources{}, 0
	}
	least.Pods, least.Replicas = 1, 1
	if !slots.IsZero() && memory > 0 {
		memory = slots.SizesMiB[len(slots.SizesMiB)-1] * facts.BytesPerMiB
	}
	return least, memory
}

// headroomAt returns how many replicas a class keeps free in each of its pools at a time. It ignores invalid entries.
func headroomAt(class *v1alpha1.GPUNodeClass, now time.Time) int32 {
	var most int32
	for i := range class.Spec.Headroom {
		if held, err := headroomApplies(&class.Spec.Headroom[i], now); err == nil && held {
			most = max(most, class.Spec.Headroom[i].Replicas)
		}
	}
	return most
}

// HeadroomError returns the first error in the headroom of a class, or nil if all entries are valid. Invalid entries reserve nothing.
func HeadroomError(class *v1alpha1.GPUNodeClass) error {
	for i := range class.Spec.Headroom {
		if _, err := headroomApplies(&class.Spec.Headroom[i], time.Time{}); err != nil {
			return fmt.Errorf("spec.headroom[%d].%w", i, err)
		}
	}
	return nil
}

// headroomApplies reports whether a headroom applies at a time. Schedules work as in Karpenter's disruption budgets.
func headroomApplies(h *v1alpha1.Headroom, now time.Time) (bool, error) {
	if h.Schedule == "" && h.Duration == "" {
		return true, nil
	}
	starts, err := schedule.Parse(h.Schedule, time.UTC)
	if err != nil {
		return false, fmt.Errorf("schedule: %w", err)
	}
	duration, err := time.ParseDuration(h.Duration)
	if err != nil {
		return false, fmt.Errorf("duration: %w", err)
	}
	return starts.Open(now, duration), nil
}
