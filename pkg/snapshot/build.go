package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
)

// View is a planner's snapshot with the objects that it speaks of.
type View struct {
	planner.Snapshot
	// Pools are the pools of Snapshot.Pools, at the same indices.
	Pools []Pool
	// Offerings are the offerings of Snapshot.Offerings, at the same indices.
	Offerings []*Offering
	// Machines are all machines of ours.
	Machines []Machine
	// Pods are the waiting pods by the names that the planner uses.
	Pods map[string]*corev1.Pod
}

// Build makes the planner's snapshot of a cluster.
func Build(c *Cluster) View {
	v := View{Pools: c.Pools(), Machines: c.Machines(), Pods: map[string]*corev1.Pod{}}
	first := v.offer(c)
	rooms := c.rooms(v.Machines)
	for i := range rooms {
		v.Nodes = append(v.Nodes, rooms[i].node)
	}
	shapes, storage := c.shapes(), c.storage()
	running := c.running(shapes) // Before the classes, which differ by whom the terms of running pods find.
	admissions := &admissions{view: &v, rooms: rooms, first: first, stock: sync.OnceValue(c.stockPools), known: map[string]*admission{}}
	var waiting []*waitingClass
	for _, w := range c.waiting(shapes, storage) {
		a := admissions.of(w)
		if !a.ours() {
			continue
		}
		class := planner.Class{
			Requests: requests(w.pod(), w.gpu), Offerings: slices.Clone(a.offerings), Nodes: slices.Clone(a.nodes), Blocked: a.blocked(w),
			GPUMemoryBytes: w.gpuMemory, Priority: schedulinghelper.PodPriority(w.pod()),
		}
		for _, pod := range w.pods {
			class.Pods = append(class.Pods, podName(pod))
			v.Pods[podName(pod)] = pod
		}
		v.Classes = append(v.Classes, class)
		waiting = append(waiting, w)
	}
	rules := v.rules(rooms, running, waiting)
	for i := range waiting {
		rules.place(i)
	}
	v.quotas(c, rooms, waiting, storage)
	v.limitProbes()
	return v
}

// offer adds the pools and their offerings. It returns the index of each pool's first offering.
func (v *View) offer(c *Cluster) []int {
	first := make([]int, len(v.Pools))
	for i := range v.Pools {
		pool := &v.Pools[i]
		v.Snapshot.Pools = append(v.Snapshot.Pools, planner.Pool{
			Name: pool.NodePool.Name, Remaining: v.remaining(pool), Limited: limited(pool), Closed: v.closed(pool, c.Now, c.ReplicasTimeout),
			Weight: weight(pool),
		})
		first[i] = len(v.Offerings)
		for j := range pool.Offerings {
			o := &pool.Offerings[j]
			v.Offerings = append(v.Offerings, o)
			v.Snapshot.Offerings = append(v.Snapshot.Offerings, planner.Offering{
				Pool: i, InstanceType: o.Type.Name, Zone: o.Zone, CapacityType: o.CapacityType,
				Price: planner.MicroUSD(o.MicroUSDPerHour), Free: o.Free(), Physical: o.Physical(), Unavailable: c.refused(pool.Class.Name, o),
				GPUs: o.GPUs(),
			})
		}
	}
	for i := range v.Pools {
		v.Snapshot.Pools[i].MinValues = v.minValues(&v.Pools[i])
	}
	return first
}

// weight is the pool's, which is 0 where it says nothing.
func weight(pool *Pool) int32 {
	if w := pool.NodePool.Spec.Weight; w != nil {
		return *w
	}
	return 0
}

// minValues are the choices that each claim of the pool must leave, by key. The heaviest demand of several for a key counts, as in Karpenter.
func (v *View) minValues(pool *Pool) []planner.MinValues {
	least := map[string]int{}
	for _, req := range pool.NodePool.Spec.Template.Spec.Requirements {
		if req.MinValues != nil {
			key := normalized(req.Key)
			least[key] = max(least[key], *req.MinValues)
		}
	}
	var all []planner.MinValues
	for _, key := range sortedKeys(least) {
		values := make([]string, len(v.Offerings))
		for i, o := range v.Offerings {
			values[i] = o.Labels[key]
		}
		all = append(all, planner.MinValues{Key: key, Min: least[key], Values: values})
	}
	return all
}

// normalized is the present name of a label.
func normalized(key string) string {
	if present, ok := karpv1.NormalizedLabels[key]; ok {
		return present
	}
	return key
}

// admitting are the indices of the pool's offerings that admit the pod, or why there is none.
func (p *Pool) admitting(demand *demand, gpu corev1.ResourceName) ([]int, error) {
	if p.Class == nil {
		return nil, fmt.Errorf("its %s does not exist", v1alpha1.Kind)
	}
	if p.Resource() != gpu {
		return nil, fmt.Errorf("it offers %s", p.Resource())
	}
	var admitting []int
	why := map[string]bool{}
	for i := range p.Offerings {
		if err := demand.refusal(p.NodePool.Spec.Template.Spec.Taints, "", p.Offerings[i].Labels); err != nil {
			why[err.Error()] = true
			continue
		}
		admitting = append(admitting, i)
	}
	switch {
	case len(admitting) > 0:
		return admitting, nil
	case len(p.Offerings) == 0:
		return nil, errors.New("no instance type meets its requirements")
	default:
		return nil, errors.New(strings.Join(sortedKeys(why), ", "))
	}
}

// remaining is what the pool's limits leave; one machine while it is being seen whether the pool is mended.
func (v *View) remaining(pool *Pool) planner.Physical {
	ours := slices.DeleteFunc(slices.Clone(v.Machines), func(m Machine) bool { return m.Pool() != pool.NodePool.Name })
	remaining := pool.remaining(Hardware(ours))
	if probing(pool) {
		remaining.Nodes = min(remaining.Nodes, 1)
	}
	return remaining
}

// closed says why a pool launches nothing at present.
func (v *View) closed(pool *Pool, now time.Time, timeout time.Duration) *planner.Refusal {
	np := pool.NodePool
	if !np.DeletionTimestamp.IsZero() {
		return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf("NodePool %s is being deleted", np.Name)}
	}
	if len(pool.Problems) > 0 {
		p := pool.Problems[0]
		return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf("NodePool %s is not ready (%s): %s", np.Name, p.Reason, p.Message)}
	}
	if healthy := Condition(np.Status.Conditions, v1alpha1.ConditionReplicasHealthy); healthy.IsFalse() {
		return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf("NodePool %s launches nothing at present: %s", np.Name, healthy.Message)}
	}
	for i := range v.Machines {
		m := &v.Machines[i]
		if m.Pool() != np.Name || m.Deleting() {
			continue
		}
		// A broken machine closes the pool from the moment it is one, though its condition may say so a little later.
		if m.Broken(now, timeout) || probing(pool) && m.AwaitsReplicas() {
			return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf(
				"NodePool %s launches nothing more until it is seen whether %s exposes its replicas", np.Name, m.Claim.Name)}
		}
	}
	return nil
}
