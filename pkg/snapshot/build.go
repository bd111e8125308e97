package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

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
	first := make([]int, len(v.Pools)) // index of each pool's first offering
	for i := range v.Pools {
		pool := &v.Pools[i]
		v.Snapshot.Pools = append(v.Snapshot.Pools, planner.Pool{
			Name: pool.NodePool.Name, Remaining: v.remaining(pool), Limited: limited(pool), Closed: v.closed(pool, c.Now, c.ReplicasTimeout),
		})
		first[i] = len(v.Offerings)
		for j := range pool.Offerings {
			o := &pool.Offerings[j]
			v.Offerings = append(v.Offerings, o)
			v.Snapshot.Offerings = append(v.Snapshot.Offerings, planner.Offering{
				Pool: i, InstanceType: o.Type.Name, Zone: o.Zone, CapacityType: o.CapacityType,
				Price: planner.MicroUSD(o.MicroUSDPerHour), Free: o.Free(), Physical: o.Physical(), Unavailable: c.refused(pool.Class.Name, o),
			})
		}
	}
	rooms := c.rooms(v.Machines)
	stock := sync.OnceValue(c.stockPools)
	for _, r := range rooms {
		v.Nodes = append(v.Nodes, r.node)
	}
	for _, waiting := range c.waiting() {
		class, ours := v.class(&waiting, rooms, first, stock)
		if !ours {
			continue
		}
		for _, pod := range waiting.pods {
			class.Pods = append(class.Pods, podName(pod))
			v.Pods[podName(pod)] = pod
		}
		v.Classes = append(v.Classes, class)
	}
	v.limitProbes()
	return v
}

// class says where the pods of a class may go. It is not ours when no pool of ours admits them and stock Karpenter can serve them.
func (v *View) class(w *waitingClass, rooms []room, first []int, stock func() []stockPool) (planner.Class, bool) {
	pod := w.pod()
	demand := demandOf(pod)
	class := planner.Class{Requests: requests(pod, w.gpu)}
	for i := range rooms {
		if rooms[i].gpu == w.gpu && demand.refusal(rooms[i].taints, rooms[i].nodeName, rooms[i].labels) == nil {
			class.Nodes = append(class.Nodes, i)
		}
	}
	var admitting []*Pool
	var whyNot []string
	for i := range v.Pools {
		pool := &v.Pools[i]
		offerings, err := pool.admitting(&demand, w.gpu)
		if err != nil {
			whyNot = append(whyNot, fmt.Sprintf("NodePool %s: %s", pool.NodePool.Name, err))
			continue
		}
		admitting = append(admitting, pool)
		if class.Requests.Replicas > 1 && pool.Class.Spec.Sharing.RefusesAboveOne() {
			continue
		}
		for _, j := range offerings {
			class.Offerings = append(class.Offerings, first[i]+j)
		}
	}
	serving := stockServing(stock(), pod, w.gpu)
	if len(admitting) == 0 && serving != "" {
		return planner.Class{}, false
	}
	class.Blocked = blocked(w, admitting, serving, len(class.Nodes) > 0, whyNot)
	return class, true
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
