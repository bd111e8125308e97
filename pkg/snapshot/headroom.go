package snapshot

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/robfig/cron/v3"
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
)

// Reserve is headroom of one kind: pods of one class, which are named after what asks for it.
type Reserve struct {
	// Pool is the index of the pool that it is counted to: of several that could serve it the heaviest.
	Pool  int
	Class planner.Class
	// waiting is what the class was made of; nil where that is a number of replicas.
	waiting *waitingClass
}

// lowest is the priority of headroom.
const lowest = math.MinInt32

// maxReserve is how many pods a headroom may stand for, as the API has it for replicas.
const maxReserve = 10_000

// HeadroomClasses are the classes of what is kept free.
func (v *View) HeadroomClasses() []planner.Class {
	classes := make([]planner.Class, len(v.Reserves))
	for i := range v.Reserves {
		classes[i] = v.Reserves[i].Class
	}
	return classes
}

// WantsHeadroom says whether anything asks for headroom, now or at other times.
func (c *Cluster) WantsHeadroom() bool {
	return len(c.Buffers) > 0 || slices.ContainsFunc(c.GPUNodeClasses, func(class v1alpha1.GPUNodeClass) bool { return len(class.Spec.Headroom) > 0 })
}

// reserved is the headroom that is to be kept at present.
func (v *View) reserved(c *Cluster, first []int) []Reserve {
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
		class := planner.Class{Priority: lowest, Pods: namesOf("headroom/"+pool.NodePool.Name, n), Nodes: v.roomsOf(pool)}
		for j := range pool.Offerings {
			class.Offerings = append(class.Offerings, first[i]+j)
		}
		class.Requests, class.GPUMemoryBytes = pool.ReplicaShare()
		reserves = append(reserves, Reserve{Pool: i, Class: class})
	}
	return reserves
}

// namesOf are names that no pods have.
func namesOf(what string, n int32) []string {
	names := make([]string, min(n, maxReserve))
	for i := range names {
		names[i] = fmt.Sprintf("%s/%05d", what, i)
	}
	return names
}

// roomsOf are the nodes of a pool that take pods which tolerate what its template says, and no more.
func (v *View) roomsOf(pool *Pool) []int {
	pod := &corev1.Pod{}
	for _, taint := range pool.NodePool.Spec.Template.Spec.Taints {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key: taint.Key, Operator: corev1.TolerationOpEqual, Value: taint.Value, Effect: taint.Effect,
		})
	}
	d := demandOf(pod)
	var nodes []int
	for i := range v.rooms {
		r := &v.rooms[i]
		if r.machine != nil && r.machine.Pool() == pool.NodePool.Name && r.gpu == pool.Resource() && d.untolerated(r.taints, keepsPodsAway) == nil {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// shareTenths is how much of a replica's share is kept free: a machine may have a little less than its kind is known to have, and would then be one replica
// short for good.
const shareTenths = 9

// ReplicaShare is what a pod of the pool can count on to go with a replica that is kept free, CPU, memory and device memory: nine tenths of what the machine that
// has the least for each replica has.
func (p *Pool) ReplicaShare() (planner.Resources, int64) {
	least, memory := planner.Resources{MilliCPU: math.MaxInt64, MemoryBytes: math.MaxInt64}, int64(math.MaxInt64)
	part := func(least *int64, has, replicas int64) { *least = min(*least, has/replicas*shareTenths/10) }
	for i := range p.Offerings {
		free := p.Offerings[i].Free()
		if free.Replicas <= 0 {
			continue
		}
		part(&least.MilliCPU, free.MilliCPU, free.Replicas)
		part(&least.MemoryBytes, free.MemoryBytes, free.Replicas)
		t := p.Offerings[i].Type
		part(&memory, t.GPU.UsableMiB()*bytesPerMiB, max(1, p.Offerings[i].ReplicasPerGPU))
	}
	if memory == math.MaxInt64 {
		least, memory = planner.Resources{}, 0
	}
	least.Pods, least.Replicas = 1, 1
	return least, memory
}

// headroomAt is how many replicas a class keeps free in each of its pools at a time. Entries that cannot be read keep none.
func headroomAt(class *v1alpha1.GPUNodeClass, now time.Time) int32 {
	var most int32
	for i := range class.Spec.Headroom {
		if held, err := holds(&class.Spec.Headroom[i], now); err == nil && held {
			most = max(most, class.Spec.Headroom[i].Replicas)
		}
	}
	return most
}

// HeadroomError says what in the headroom of a class cannot be read, of which nothing is kept; nil where all can.
func HeadroomError(class *v1alpha1.GPUNodeClass) error {
	for i := range class.Spec.Headroom {
		if _, err := holds(&class.Spec.Headroom[i], time.Time{}); err != nil {
			return fmt.Errorf("spec.headroom[%d].%w", i, err)
		}
	}
	return nil
}

// holds says whether a headroom is kept at a time, as Karpenter says it of a disruption budget.
func holds(h *v1alpha1.Headroom, now time.Time) (bool, error) {
	if h.Schedule == "" && h.Duration == "" {
		return true, nil
	}
	schedule, err := cron.ParseStandard("TZ=UTC " + h.Schedule)
	if err != nil {
		return false, fmt.Errorf("schedule: %w", err)
	}
	duration, err := time.ParseDuration(h.Duration)
	if err != nil {
		return false, fmt.Errorf("duration: %w", err)
	}
	next := schedule.Next(now.UTC().Add(-duration))
	return !next.IsZero() && !next.After(now), nil // Never, for a day that no month has.
}
