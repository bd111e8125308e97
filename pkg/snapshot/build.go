// Package snapshot translates facts and records into the plain values of a planner.Snapshot: pools with their offerings, rooms on nodes, classes of pods, and
// the rules between them. It has no client, no clock and no log.
package snapshot

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// View is a planner.Snapshot together with the objects that it was made from.
type View struct {
	planner.Snapshot
	// Pools has the same indices as Snapshot.Pools.
	Pools []Pool
	// Offerings has the same indices as Snapshot.Offerings.
	Offerings []*Offering
	// Machines are all machines of Karve's pools, except canaries.
	Machines []records.Machine
	// canaries are the machines that test images.
	canaries []records.Machine
	// Pods has the pods that the planner places, by their names in the snapshot: pending pods, and pods on machines that are leaving.
	Pods map[string]*corev1.Pod
	// Postponed has the pending pods that are left to a later round, by name.
	Postponed []*corev1.Pod
	// strange are pending pods of this round that no pool of Karve can serve.
	strange []*corev1.Pod
	// leftTo has Karpenter's own NodePool that serves each of them.
	leftTo  map[*corev1.Pod]string
	shapeOf func(*corev1.Pod) *shape
	// grouping has the groups of the pods.
	grouping *grouping
	// longer is, by class, how many times as long pods take on the fastest machine that they may have as on one whose GPUs they have to themselves. It is nil if no
	// pod states its throughput.
	longer []slowness
	// slow has, by index, the offerings that are copies of others at the price of work, and how slow pods may be there.
	slow map[int]slowness
	// rooms has the same indices as Snapshot.Nodes.
	rooms []room
	// deeper has the offerings at other depths by the index of the offering.
	deeper map[int][]int
	// shallow has the nodes on which too many pods may share a GPU for the pods of a class, at the indices of Snapshot.Classes.
	shallow [][]int
	// Requested are the ProvisioningRequests that are not over, the oldest first.
	Requested []*Requested
	// Reserves are the headroom to keep free.
	Reserves []Reserve
	// keys has the shortened shape keys of Snapshot.Classes, at the same indices. keyOf returns the key of a pod.
	keys  []string
	keyOf func(*corev1.Pod) string
	// mismatches are the machines whose labels do not admit waiting pods for which they were launched, by the name of the GPUNodeClass.
	mismatches map[string][]v1alpha1.NodeMismatch
	// cluster is the input of the view.
	cluster *facts.Cluster
	// broken reports whether a machine did not start in time.
	broken func(*records.Machine) bool
}

// Now returns the time for which the view was made.
func (v *View) Now() time.Time { return v.cluster.Now }

// Decided reports whether the launch of a machine has an outcome: it started, it is broken, or it is leaving.
func (v *View) Decided(m *records.Machine) bool {
	return m.Started() || m.Leaving() || v.broken != nil && v.broken(m)
}

// Build returns the view of a cluster.
func Build(c *facts.Cluster) View {
	v := look(c)
	v.fill(nil, nil)
	return v
}

// look returns a view without a snapshot.
func look(c *facts.Cluster) View {
	if c.Index == nil { // All readers share one index.
		indexed := *c
		indexed.Index = c.Indexed()
		c = &indexed
	}
	v := View{
		Pools: Pools(c), Machines: records.Machines(c), canaries: records.Canaries(c), cluster: c,
		broken: func(m *records.Machine) bool { return m.Broken(c.Now, c.ReplicasTimeout) },
	}
	v.shareGPUs()
	return v
}

// fill sets the snapshot of a view. If going is not nil, the snapshot is what remains without those machines, and it includes no machines that are
// still to start. settled pods stay unless they are moved; fill returns their classes. Pods that Karve does not serve have none.
func (v *View) fill(going []string, settled moving) map[*corev1.Pod]int {
	c, asIs := v.cluster, going != nil
	v.Pods = map[string]*corev1.Pod{}
	first := v.offer(c)
	rooms := roomsOf(c, v.Machines)
	if asIs {
		rooms = slices.DeleteFunc(rooms, func(r room) bool { return r.starting })
		v.closeAll()
	}
	v.Nodes = slices.Grow(v.Nodes, len(rooms))
	for i := range rooms {
		v.Nodes = append(v.Nodes, rooms[i].node)
	}
	v.rooms = rooms
	shapes, storage := newShapes(c), records.StorageOf(c)
	others := newShapes(c) // The selections of the shapes are fixed once pods have been looked up with them.
	v.keyOf = func(pod *corev1.Pod) string { return others.of(pod).short }
	moving := movingOf(v.Machines, func(m *records.Machine) bool { return !asIs || m.Lost() || slices.Contains(going, m.Claim.Name) })
	running := newRunning(c, shapes, moving) // Before the classes, because they depend on which terms of running pods match.
	admissions := &admissions{view: v, rooms: rooms, first: first, stock: sync.OnceValue(func() []stockPool { return stockPoolsOf(c) }), known: map[string]*admission{}}
	mismatches := v.newMismatches()
	var waiting []*waitingClass
	classes := map[*corev1.Pod]int{}
	asked := maps.Clone(moving)
	maps.Copy(asked, settled)
	groups := newGrouping(c, newNominating(c, v.Machines), moving, settled)
	planned, later := waitingClasses(c, shapes, storage, groups, asked, v.starts())
	v.grouping = groups
	planned = append(planned, v.requested(c, shapes, storage)...)
	v.Postponed, v.shapeOf = later, shapes.turn
	asking := bufferShapes(c, shapes)
	for _, w := range planned {
		asking = append(asking, w.shape)
	}
	v.deepen(asking)
	v.setRooms(asking)
	for i := range v.Pools {
		v.Snapshot.Pools[i].MinValues = v.minValues(&v.Pools[i])
	}
	for _, w := range planned {
		c.BeginVisit("Pod", w.pod())
		a := admissions.of(w)
		if w.request == nil && !a.ours(w) {
			v.leave(w.pods, a.stock)
			continue
		}
		class := v.newClass(w, a, mismatches)
		for _, pod := range w.pods {
			if settled[pod] {
				classes[pod] = len(v.Classes)
				continue
			}
			class.Pods = append(class.Pods, facts.PodName(pod))
			v.Pods[facts.PodName(pod)] = pod
		}
		v.Classes, v.shallow = append(v.Classes, class), append(v.shallow, a.shallow)
		v.keys = append(v.keys, w.short)
		waiting = append(waiting, w)
	}
	c.EndVisit()
	v.addGroups(waiting)
	v.groupRequests()
	rules := v.rules(rooms, running, waiting)
	for i := range waiting {
		c.BeginVisit("Pod", waiting[i].pod())
		rules.place(i)
	}
	c.EndVisit()
	if !asIs {
		v.Reserves = append(v.reserved(c, first), v.buffered(c, shapes, admissions, mismatches)...)
	}
	v.quotas(c, rooms, waiting, storage)
	v.limitProbes()
	v.priceWork(waiting)
	return classes
}

// newClass returns the class of waiting pods, without the pods.
func (v *View) newClass(w *waitingClass, a *admission, mismatches *mismatches) planner.Class {
	class := planner.Class{
		Requests: facts.RequestsOf(w.pod(), w.gpu), Offerings: slices.Clone(a.offerings), Nodes: slices.Clone(a.nodes), Blocked: a.blocked(w),
		Unserved: a.unserved(), GPUMemoryBytes: w.gpuMemory, Priority: schedulinghelper.PodPriority(w.pod()),
	}
	if w.expendable {
		class.Offerings, class.Unserved = nil, &planner.Refusal{Reason: planner.ReasonPriority, Message: fmt.Sprintf(
			"no machine is launched for its priority %d, which is below settings.priorityCutoff %d: raise its priority, or wait for free room", class.Priority, *v.cluster.PriorityCutoff)}
	}
	v.awaitCorrection(&class, a, mismatches.of(w, a))
	if class.Blocked == nil && w.group != nil && !w.alone {
		class.Blocked = w.group.refusal()
	}
	if w.request != nil {
		v.request(&class, w, a)
	}
	return class
}

// leave records pods that only a NodePool of Karpenter's serves.
func (v *View) leave(pods []*corev1.Pod, stock string) {
	v.strange = append(v.strange, pods...)
	if v.leftTo == nil {
		v.leftTo = map[*corev1.Pod]string{}
	}
	for _, pod := range pods {
		v.leftTo[pod] = stock
	}
}

// LeftToKarpenter returns the pending pods that one of Karpenter's own NodePools serves and none of Karve's, with its name.
func (v *View) LeftToKarpenter() map[*corev1.Pod]string { return v.leftTo }

// MachineOn returns the machine of a node of the snapshot, or nil if the node is not Karve's.
func (v *View) MachineOn(node int) *records.Machine {
	if node >= len(v.rooms) {
		return nil
	}
	return v.rooms[node].machine
}

// Starting reports whether a node of the snapshot has not started yet.
func (v *View) Starting(node int) bool { return v.rooms[node].starting }

// PoolNamed returns the pool with a name, or nil if there is none.
func (v *View) PoolNamed(name string) *Pool {
	for i := range v.Pools {
		if v.Pools[i].NodePool.Name == name {
			return &v.Pools[i]
		}
	}
	return nil
}

// ClassOf returns the GPUNodeClass of the pool with a name, or nil if there is no such pool or class.
func (v *View) ClassOf(pool string) *v1alpha1.GPUNodeClass {
	if p := v.PoolNamed(pool); p != nil {
		return p.Class
	}
	return nil
}

// closeAll makes all pools launch nothing.
func (v *View) closeAll() {
	for i := range v.Snapshot.Pools {
		v.Snapshot.Pools[i].Closed = &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: "there is no room on the machines that have started"}
	}
}

// offer adds the pools and their offerings. It returns the index of each pool's first offering.
func (v *View) offer(c *facts.Cluster) []int {
	first, machines := make([]int, len(v.Pools)), v.byPool()
	v.addStocks(c)
	for i := range v.Pools {
		pool := &v.Pools[i]
		v.Snapshot.Pools = append(v.Snapshot.Pools, planner.Pool{
			Name: pool.NodePool.Name, Remaining: v.remaining(pool, machines[pool.NodePool.Name]), Limited: limited(pool),
			Closed: closed(pool, machines[pool.NodePool.Name], c.Now, c.ReplicasTimeout),
			Weight: weight(pool), MaxPremium: maxPremium(pool),
		})
		first[i] = len(v.Offerings)
		for j := range pool.Offerings {
			o := &pool.Offerings[j]
			v.Offerings = append(v.Offerings, o)
			v.Snapshot.Offerings = append(v.Snapshot.Offerings, planner.Offering{
				Pool: i, InstanceType: o.Type.Name, Zone: o.Zone, CapacityType: o.CapacityType,
				Price: planner.MicroUSD(o.MicroUSDPerHour), ListPrice: planner.MicroUSD(o.ListMicroUSDPerHour), Free: o.Free(), Physical: o.Physical(), Unavailable: unavailableAs(c, pool, o),
				GPUs: o.GPUs(), Choice: o.choice(), Draws: v.drawnAt(o.limited),
			})
		}
	}
	return first
}

// weight returns the spec.weight of the pool. The default is 0.
func weight(pool *Pool) int32 {
	if w := pool.NodePool.Spec.Weight; w != nil {
		return *w
	}
	return 0
}

// maxPremium returns the maxPremiumPercent of the GPUNodeClass, in percent.
func maxPremium(pool *Pool) int64 {
	if pool.Class == nil {
		return 0
	}
	return max(0, pool.Class.Spec.Launch.MaxPremium())
}

// choice formats the labels that a pool chooses for a machine, and its MIG instances, as one string.
func (o *Offering) choice() string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(o.CustomLabels)) {
		pairs = append(pairs, key+"="+o.CustomLabels[key])
	}
	if key := o.Share.MIG.Key(); key != "" {
		pairs = append(pairs, key)
	}
	if o.depth > 0 {
		pairs = append(pairs, depthChoice(o.depth))
	}
	return strings.Join(pairs, ",")
}

// minValues returns how many values each NodeClaim of the pool must allow, by key. If a key has several requirements, the largest number applies, as in Karpenter.
func (v *View) minValues(pool *Pool) []planner.MinValues {
	least := map[string]int{}
	for _, req := range pool.NodePool.Spec.Template.Spec.Requirements {
		if req.MinValues != nil {
			key := nodelabels.Current(req.Key)
			least[key] = max(least[key], *req.MinValues)
		}
	}
	var all []planner.MinValues
	for _, key := range slices.Sorted(maps.Keys(least)) {
		values := make([]string, len(v.Offerings))
		for i, o := range v.Offerings {
			values[i] = o.Labels[key]
		}
		all = append(all, planner.MinValues{Key: key, Min: least[key], Values: values})
	}
	return all
}

// OtherResourceError reports that a pool offers another GPU resource than a pod requests.
type OtherResourceError struct {
	Offers []corev1.ResourceName
	Wants  corev1.ResourceName
}

func (e OtherResourceError) Error() string { return "it offers " + joined(e.Offers, ", ") }

func joined(names []corev1.ResourceName, separator string) string {
	var text []string
	for _, name := range names {
		text = append(text, string(name))
	}
	return strings.Join(text, separator)
}

// NotAdmittedError reports why none of a pool's offerings admits a pod.
type NotAdmittedError struct {
	// Causes has one error for each distinct cause, such as an [UntoleratedTaintError], sorted by text.
	Causes []error
}

func (e *NotAdmittedError) Error() string {
	texts := make([]string, len(e.Causes))
	for i, cause := range e.Causes {
		texts[i] = cause.Error()
	}
	return strings.Join(texts, ", ")
}

// Admits returns why none of the offerings of a pool admits a pod by its resource, taints, labels and volumes. It returns nil if one does, whether or
// not it is large enough. If a change of the pod could help, the error is an [OtherResourceError] or a [NotAdmittedError].
func (v *View) Admits(pool *Pool, pod *corev1.Pod) error {
	demand := records.DemandOf(pod)
	gpu, _ := facts.GPUResource(pod)
	if volumes := records.StorageOf(v.cluster).Of(pod); volumes != nil && volumes.Problem == "" {
		demand.Places = volumes.Places
	}
	_, err := pool.admitting(&demand, gpu)
	return err
}

// StockPool returns the name of the first of Karpenter's own NodePools that could serve a pod, or "" if there is none.
func (v *View) StockPool(pod *corev1.Pod) string {
	gpu, _ := facts.GPUResource(pod)
	return stockServing(func() []stockPool { return stockPoolsOf(v.cluster) }, facts.WithinBounds(pod), gpu, claims.Of(pod))
}

// admitting returns the indices of the pool's offerings that admit the pod, or an error with the reason why there is none.
func (p *Pool) admitting(demand *records.Demand, gpu corev1.ResourceName) ([]int, error) {
	if p.Class == nil {
		return nil, fmt.Errorf("its %s does not exist", v1alpha1.Kind)
	}
	if !p.Serves(gpu) {
		return nil, OtherResourceError{Offers: p.Resources(), Wants: gpu}
	}
	var admitting []int
	why := map[string]error{}
	for i := range p.Offerings {
		if !p.Offerings[i].exposes(gpu, demand.Requests) {
			continue
		}
		if err := demand.Refusal(p.NodePool.Spec.Template.Spec.Taints, "", p.Offerings[i].shown()); err != nil {
			why[err.Error()] = err
			continue
		}
		admitting = append(admitting, i)
	}
	switch {
	case len(admitting) > 0:
		return admitting, nil
	case len(p.Offerings) == 0 && len(p.Problems) > 0:
		return nil, errors.New(p.Problems[0].Message) // The problem is also why its machines are unknown.
	case len(why) == 0:
		return nil, errors.New("no instance type meets its requirements")
	default:
		refused := &NotAdmittedError{}
		for _, text := range slices.Sorted(maps.Keys(why)) {
			refused.Causes = append(refused.Causes, why[text])
		}
		return nil, refused
	}
}

// byPool returns the machines of each pool, without canaries.
func (v *View) byPool() map[string][]*records.Machine {
	all := map[string][]*records.Machine{}
	for i := range v.Machines {
		name := v.Machines[i].Pool()
		all[name] = append(all[name], &v.Machines[i])
	}
	return all
}

// remaining returns what the pool's limits leave beside its machines and canaries.
func (v *View) remaining(pool *Pool, machines []*records.Machine) planner.Physical {
	for i := range v.canaries {
		if v.canaries[i].Pool() == pool.NodePool.Name {
			machines = append(slices.Clip(machines), &v.canaries[i])
		}
	}
	return pool.remaining(records.HardwareOf(slices.Values(machines)))
}

// closed returns why a pool with the machines launches nothing now, or nil if it may launch.
func closed(pool *Pool, machines []*records.Machine, now time.Time, timeout time.Duration) *planner.Refusal {
	np := pool.NodePool
	if !np.DeletionTimestamp.IsZero() {
		return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf("NodePool %s is being deleted", np.Name)}
	}
	if len(pool.Problems) > 0 {
		p := pool.Problems[0]
		return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf("NodePool %s is not ready (%s): %s", np.Name, p.Reason, p.Message)}
	}
	healthy := facts.Condition(np.Status.Conditions, v1alpha1.ConditionReplicasHealthy)
	if healthy.IsFalse() {
		return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf("NodePool %s launches nothing at present: %s", np.Name, healthy.Message)}
	}
	for _, m := range machines {
		if m.Deleting() {
			continue
		}
		// A broken machine closes the pool immediately, even before the condition shows it. A machine that the condition has already counted does not keep
		// the pool closed.
		if m.Fresh(changed(healthy), now, timeout) || pool.Probing() && !m.Started() && !m.Broken(now, timeout) {
			return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf(
				"NodePool %s launches nothing more until it is seen whether %s starts and exposes its replicas", np.Name, m.Claim.Name)}
		}
	}
	return nil
}

// changed returns the transition time of a condition, or the zero time if there is no condition.
func changed(c *status.Condition) time.Time {
	if c == nil {
		return time.Time{}
	}
	return c.LastTransitionTime.Time
}
