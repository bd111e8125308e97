package snapshot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/robfig/cron/v3"
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
)

// Headroom is what is kept free for pods that may come: what a plan for those that are there leaves, with classes of pods that are not, and a plan for
// them. It is made after that plan and of its leavings, so no pod that is there goes without for it, and none moves.
type Headroom struct {
	// View has no pods. Its snapshot is what Plan was made for, and its nodes are those of the cluster and then the launches for the pods that are there.
	View
	Plan planner.Plan
	// started are the nodes, by index, on which pods start at once.
	started []bool
}

// Reserve is the headroom of one pool, in replicas.
type Reserve struct {
	// Wanted is how many are to be free, Free how many of them are, and Coming how many will be when the machines have started that are on their way.
	Wanted, Free, Coming int64
	// Refused is why there is nothing for the rest; nil where there is no rest.
	Refused *planner.Refusal
}

// reserve is headroom of one kind: pods of one class, which are named after what asks for it.
type reserve struct {
	// pool is the index of the pool that it is counted to: of several that could serve it the heaviest.
	pool  int
	class planner.Class
	// waiting is what the class was made of; nil where that is a number of replicas.
	waiting *waitingClass
}

// lowest is the priority of headroom.
const lowest = math.MinInt32

// maxReserve is how many pods a headroom may stand for, as the API has it for replicas.
const maxReserve = 10_000

// Headroom plans for what is to be kept free once the pods that are there are served.
func (v *View) Headroom(served planner.Plan, search planner.Search) Headroom {
	h := Headroom{View: *v}
	h.Pods, h.Classes = nil, nil
	if len(v.reserves) == 0 {
		return h
	}
	turns := v.turns(served)
	plan := func(turns [][]int) (planner.Snapshot, planner.Plan) {
		return search.Spare(v.Snapshot, served, v.givingWay(served), turns)
	}
	h.Snapshot, h.Plan = plan(turns)
	for k := len(turns) - 1; k > 0; k-- {
		node := turns[k][0]
		if !h.uses(node) || v.idlePrice(node) < 2*v.cheapest() {
			continue
		}
		without := slices.Delete(slices.Clone(turns), k, k+1)
		left, other := plan(without)
		if len(other.Unplaced) <= len(h.Plan.Unplaced) && v.cost(h.Plan)-v.cost(other) >= v.idlePrice(node)/2 {
			h.Snapshot, h.Plan, turns = left, other, without
		}
	}
	h.started = make([]bool, len(h.Nodes))
	for i := range v.rooms {
		h.started[i] = !v.rooms[i].starting
	}
	return h
}

// idlePrice is what an idle machine costs.
func (v *View) idlePrice(node int) planner.MicroUSD {
	return planner.MicroUSD(v.rooms[node].machine.MicroUSDPerHour())
}

// cost is what headroom costs: what is launched for it, and the idle machines that stay for it.
func (v *View) cost(plan planner.Plan) planner.MicroUSD {
	price := plan.Price
	for _, p := range plan.Placements {
		if p.Node < len(v.rooms) && v.rooms[p.Node].machine != nil && v.rooms[p.Node].machine.Unused() {
			price += v.idlePrice(p.Node)
		}
	}
	return price
}

// cheapest is the price of the cheapest machine.
func (v *View) cheapest() planner.MicroUSD {
	least := planner.MicroUSD(math.MaxInt64 / 2)
	for i := range v.Snapshot.Offerings {
		least = min(least, v.Snapshot.Offerings[i].Price)
	}
	return least
}

// uses says whether headroom is on a node.
func (h *Headroom) uses(node int) bool {
	return slices.ContainsFunc(h.Plan.Placements, func(p planner.Placement) bool { return p.Node == node })
}

// HeadroomClasses are the classes of what is kept free.
func (v *View) HeadroomClasses() []planner.Class {
	classes := make([]planner.Class, len(v.reserves))
	for i := range v.reserves {
		classes[i] = v.reserves[i].class
	}
	return classes
}

// givingWay are the classes of the reserves, less those of pools whose limits leave out pods that wait: what the headroom has there would be theirs.
func (v *View) givingWay(served planner.Plan) []planner.Class {
	classes := v.HeadroomClasses()
	class := map[string]*planner.Class{}
	for i := range v.Classes {
		for _, pod := range v.Classes[i].Pods {
			class[pod] = &v.Classes[i]
		}
	}
	for _, u := range served.Unplaced {
		c := class[u.Pod]
		if u.Reason != planner.ReasonLimitReached || c == nil {
			continue
		}
		for i := range classes {
			pool := v.reserves[i].pool
			if classes[i].Blocked == nil && slices.ContainsFunc(c.Offerings, func(o int) bool { return v.Snapshot.Offerings[o].Pool == pool }) {
				classes[i].Blocked = &planner.Refusal{Reason: planner.ReasonLimitReached, Message: fmt.Sprintf(
					"gives way to pods that wait, such as %s: a limit of NodePool %s leaves them no room; raise it", u.Pod, v.Pools[pool].NodePool.Name)}
			}
		}
	}
	return classes
}

// turns are the nodes in the order in which headroom is looked for on them. Machines that stay for their pods come first, all in one turn. Of those that hold
// none, and that may go where the headroom does not need them, each has a turn: those first that have started, are not about to go, and cost the least. One that
// costs so much that others can be launched for half of it has none.
func (v *View) turns(served planner.Plan) [][]int {
	serves := map[int]bool{}
	for _, p := range served.Placements {
		serves[p.Node] = true
	}
	var busy, idle []int
	for i := range v.rooms {
		if m := v.rooms[i].machine; m == nil || serves[i] || !m.Unused() {
			busy = append(busy, i)
		} else {
			idle = append(idle, i)
		}
	}
	rank := func(r *room) int {
		switch {
		case r.starting:
			return 2
		case HasTaint(r.machine.Node, v1alpha1.DisruptingTaintKey):
			return 1
		}
		return 0
	}
	slices.SortStableFunc(idle, func(i, j int) int {
		a, b := &v.rooms[i], &v.rooms[j]
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(v.idlePrice(i), v.idlePrice(j)),
			cmp.Compare(a.machine.Claim.Name, b.machine.Claim.Name))
	})
	turns := [][]int{busy}
	for _, i := range idle {
		turns = append(turns, []int{i})
	}
	return turns
}

// Keeps are the nodes that the headroom needs, by the names that the planner uses.
func (h *Headroom) Keeps() map[string]bool {
	keeps := map[string]bool{}
	for _, p := range h.Plan.Placements {
		if p.Node < len(h.rooms) {
			keeps[h.rooms[p.Node].node.Name] = true
		}
	}
	return keeps
}

// Of is the headroom of a pool; false where it is to have none.
func (h *Headroom) Of(pool string) (Reserve, bool) {
	var r Reserve
	replicas := map[string]int64{}
	for _, reserve := range h.reserves {
		if h.Pools[reserve.pool].NodePool.Name != pool {
			continue
		}
		for _, pod := range reserve.class.Pods {
			replicas[pod] = reserve.class.Requests.Replicas
			r.Wanted += reserve.class.Requests.Replicas
		}
	}
	count := func(n *int64, pods []string) {
		for _, pod := range pods {
			*n += replicas[pod]
		}
	}
	for _, p := range h.Plan.Placements {
		if h.started[p.Node] {
			count(&r.Free, p.Pods)
		} else {
			count(&r.Coming, p.Pods)
		}
	}
	for _, l := range h.Plan.Launches {
		count(&r.Coming, l.Pods)
	}
	for _, u := range h.Plan.Unplaced {
		if replicas[u.Pod] > 0 && r.Refused == nil {
			r.Refused = &u.Refusal
		}
	}
	return r, r.Wanted > 0
}

// WantsHeadroom says whether anything asks for headroom, now or at other times.
func (c *Cluster) WantsHeadroom() bool {
	return len(c.Buffers) > 0 || slices.ContainsFunc(c.GPUNodeClasses, func(class v1alpha1.GPUNodeClass) bool { return len(class.Spec.Headroom) > 0 })
}

// reserved is the headroom that is to be kept at present.
func (v *View) reserved(c *Cluster, first []int) []reserve {
	var reserves []reserve
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
		reserves = append(reserves, reserve{pool: i, class: class})
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
