package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// admissions finds the offerings and nodes that admit each class. Classes with the same demands on nodes, taints and volumes share one result.
type admissions struct {
	view  *View
	rooms []room
	// first is the index of each pool's first offering.
	first          []int
	karpenterPools func() []karpenterPool
	known          map[string]*admission
}

// admission holds the places where the pods of a class may go.
type admission struct {
	// demand is what the pods require of nodes.
	demand           records.Demand
	offerings, nodes []int
	// shallow are nodes that would admit the pods if fewer pods shared their GPUs.
	shallow []int
	// pools are those with offerings that admit the pods. They include pools that refuse the pods' number of replicas.
	pools []*Pool
	// whyNot has the reason why each of the other pools does not admit the pods. Pools whose taints are tolerated come first: the user probably means one
	// of them, and the message may be truncated.
	whyNot []string
	// unready has the messages of pools that would probably admit the pods, but whose machines are unknown at the moment, for example during an outage.
	unready []string
	// karpenterPool is the NodePool from which Karpenter could serve the pods, or "" if there is none.
	karpenterPool string
	// whyNotKarpenter has, for each of Karpenter's pools with the GPU resource that cannot serve the pods, what differs.
	whyNotKarpenter []string
	// largest is the largest memory of a replica, in bytes, among offerings and nodes whose replicas have too little for the pods. It is 0 if there are none.
	largest int64
	// short has the reasons why machines of capacity blocks leave before the pods have to end.
	short map[string]bool
	// unfit has the reasons why GPUs of the pools and nodes that admit the pods cannot satisfy the pods' claim.
	unfit map[string]bool
}

// isOurs reports whether Karve serves the pods of a class. It is false if only Karpenter can serve them. If that is unknown, Karve reports why it does not.
func (a *admission) isOurs(w *waitingClass) bool {
	return len(a.pools) > 0 || a.karpenterPool == "" || facts.TooLarge(w.pod()) != ""
}

func (a *admissions) ofClass(w *waitingClass) *admission {
	demand := w.demand
	key, onNodes := w.asks, w.onNodes
	if w.volumes != nil && w.volumes.Problem == "" {
		demand.Places = w.volumes.Places
		volumes := w.volumes.Key()
		key, onNodes = key+volumes, onNodes+volumes
	}
	if w.gpuMemory > 0 {
		key += "\x00memory " + strconv.FormatInt(w.gpuMemory, 10)
	}
	if known := a.known[key]; known != nil {
		return known
	}
	found := a.findPlaces(w.shape, &demand, onNodes)
	a.known[key] = found
	return found
}

// findPlaces returns where pods of a shape with the demand may go. onNodes is equal only for equal demands on the names, labels and taints of nodes.
func (a *admissions) findPlaces(of *shape, demand *records.Demand, onNodes string) *admission {
	found := &admission{demand: *demand, short: map[string]bool{}, unfit: map[string]bool{}, karpenterPool: karpenterPoolServing(a.karpenterPools, demand.Pod, of.gpu, of.claim)}
	a.addNodes(found, of, onNodes)
	var others []string
	for i := range a.view.Pools {
		pool := &a.view.Pools[i]
		offerings, err := pool.admittingOfferings(demand, of.gpu)
		if err != nil {
			if why := fmt.Sprintf("NodePool %s: %s", pool.NodePool.Name, err); pool.isProbablyMeant(demand, of.gpu) {
				found.addRefusal(pool, why)
			} else {
				others = append(others, why)
			}
			continue
		}
		found.pools = append(found.pools, pool)
		if of.claim == nil && !facts.IsSlot(of.gpu) && pool.refusesReplicas(demand, of.gpu) { // records.SlotFault refuses several slots in one container.
			continue
		}
		for _, j := range offerings {
			a.addOfferings(found, of, pool, a.first[i]+j)
		}
	}
	if len(found.pools) == 0 && found.karpenterPool == "" && of.claim == nil {
		found.whyNotKarpenter = whyKarpenterCannot(a.karpenterPools(), demand, of.gpu)
	}
	slices.Sort(found.offerings)
	found.whyNot = append(found.whyNot, others...)
	return found
}

func (a *admissions) addNodes(found *admission, of *shape, onNodes string) {
	demand := &found.demand
	for i := range a.rooms {
		room := &a.rooms[i]
		switch {
		case !room.exposes(of.gpu, demand.Requests) || room.memo.refusesDemand(onNodes, demand):
		case !found.hasMemoryOrNote(room.replicaMemory(), of.gpuMemory) || !found.fitsOrNote(room.whyUnfit(of.claim)):
		case room.holdsShape(of):
			found.nodes = append(found.nodes, i)
		default:
			found.shallow = append(found.shallow, i)
		}
	}
}

// addOfferings adds an offering of a pool, and those that differ from it only in depth, if their GPUs can hold the pods.
func (a *admissions) addOfferings(found *admission, of *shape, pool *Pool, offering int) {
	mps := pool.Class.Spec.Sharing.MPSSettings()
	for _, at := range append([]int{offering}, a.view.deeper[offering]...) {
		o := a.view.Offerings[at]
		if of.deadline > 0 && o.leavesBefore(a.view.Now().Add(of.deadline)) {
			found.short[fmt.Sprintf("the machines of capacity block %s leave at %s", o.Reservation, o.reservation.Leaves.UTC().Format(time.RFC3339))] = true
			continue
		}
		if found.hasMemoryOrNote(records.ReplicaMemory(mps, o.Type.GPU.UsableMiB(), o.ReplicasPerGPU), of.gpuMemory) && found.fitsOrNote(pool.whyUnfit(o, of.claim)) && o.holdsShape(pool, of) {
			found.offerings = append(found.offerings, at)
		}
	}
}

// addRefusal records why a pool does not admit the pods.
func (a *admission) addRefusal(pool *Pool, why string) {
	a.whyNot = append(a.whyNot, why)
	if len(pool.Offerings) == 0 && slices.ContainsFunc(pool.Problems, func(p Problem) bool { return p.Condition == karpv1.ConditionTypeNodeClassReady }) {
		a.unready = append(a.unready, why)
	}
}

// maxInstanceMiB returns the most memory in MiB that a replica of the shape's resource has on machines with instances of several profiles which would
// admit the shape if it stated less device memory. It is 0 if there are none.
func (a *admission) maxInstanceMiB(s *shape) int64 {
	var most int64
	for _, p := range a.pools {
		for i := range p.Offerings {
			if o, ok := records.OfferOf(p.Offerings[i].instances, s.gpu); ok && s.statesMemory() && !s.holdsOn(p.Offerings[i].instances) {
				most = max(most, records.ReplicaMiB(o))
			}
		}
	}
	return most
}

// fitsOrNote reports whether a GPU can satisfy a claim, given the reason why it cannot, or "". It records the reason.
func (a *admission) fitsOrNote(why string) bool {
	if why != "" {
		a.unfit[why] = true
	}
	return why == ""
}

// severalProfiles is why a claim gets no instance of a GPU that has several kinds of them.
const severalProfiles = "its GPUs have MIG instances of several profiles, of which ResourceClaims are not planned: request the resource of a profile"

// whyUnfit returns why the GPU of a machine of the pool cannot satisfy a claim, or "" if it can.
func (p *Pool) whyUnfit(o *Offering, claim *claims.Ask) string {
	switch {
	case claim == nil:
		return ""
	case !p.Class.Spec.Sharing.UsesDRA():
		return fmt.Sprintf("%s %s has backend DevicePlugin", v1alpha1.Kind, p.Class.Name)
	case o.instances != nil:
		return severalProfiles
	}
	return claim.Fits(o.devices(p))
}

// whyUnfit returns why the GPU of the room cannot satisfy a claim, or "" if it can.
func (r *room) whyUnfit(claim *claims.Ask) string {
	switch {
	case claim == nil:
		return ""
	case r.machine == nil || r.machine.Type == nil || nodecontract.DriverOf(r.machine.Promise.Backend) == "":
		return "nodes with device plugins have no devices for ResourceClaims"
	case r.instances != nil:
		return severalProfiles
	}
	kind, _ := r.gpuKind()
	for _, t := range append([]*catalog.InstanceType{r.machine.Type}, r.machine.Others...) {
		devices := r.machine.Devices(t)
		if why := claim.Fits(devices); why != "" {
			return why
		}
		if devices.Count > 1 && devices.Replicas > 1 && kind.count != devices.Count {
			return "the node may get another number of GPUs"
		}
	}
	return ""
}

// hasMemoryOrNote reports whether a pod that requests an amount of device memory fits into a replica with a limit. Both are in bytes, and 0 if there is none.
func (a *admission) hasMemoryOrNote(limit, memory int64) bool {
	if limit == 0 || memory <= limit {
		return true
	}
	a.largest = max(a.largest, limit)
	return false
}

// replicaMemory returns the device memory in bytes that a process in a replica of the room may allocate, or 0 if there is no limit.
func (r *room) replicaMemory() int64 {
	if r.machine == nil {
		return 0
	}
	return records.ReplicaMemory(r.machine.Promise.MPS, records.MemoryMiB(r.labels, r.machine.Type), r.machine.Promise.ReplicasPerGPU)
}

// blockedRefusal returns why nothing may be planned for the class at all, or nil if it may.
func (a *admission) blockedRefusal(w *waitingClass) *planner.Refusal {
	if w.claim != nil && w.claim.Refusal != "" {
		return &planner.Refusal{Reason: planner.ReasonUnsupported, Message: w.claim.Refusal}
	}
	if why := facts.TooLarge(w.pod()); why != "" {
		return &planner.Refusal{Reason: planner.ReasonUnsupported, Message: why}
	}
	if w.fault != nil && w.impossibleRefusal() == nil {
		return w.fault
	}
	if len(a.pools) == 0 && len(a.nodes) == 0 {
		return a.noPoolRefusal(w)
	}
	if len(a.pools) > 0 && a.karpenterPool != "" {
		ours := a.pools[0].NodePool.Name
		return &planner.Refusal{Reason: planner.ReasonLeftToKarpenter, Message: fmt.Sprintf(
			"NodePool %s, which Karpenter serves, could take it as well as %s, so it is left to Karpenter: "+
				"add a nodeSelector %s: %s to the pod, or a taint to NodePool %s", a.karpenterPool, ours, karpv1.NodePoolLabelKey, ours, a.karpenterPool)}
	}
	if rule := facts.Unsupported(w.pod()); rule != "" {
		return &planner.Refusal{Reason: planner.ReasonUnsupported, Message: fmt.Sprintf(
			"uses %s, which Karve does not plan for yet, so nothing is launched for it: remove it, or serve the pod from a NodePool of Karpenter's own", rule)}
	}
	if refusal := w.impossibleRefusal(); refusal != nil {
		return refusal
	}
	if w.wrong != nil {
		return &planner.Refusal{Reason: planner.ReasonUnsupported, Message: w.wrong.Error()}
	}
	if refusal := w.volumes.Refusal(); refusal != nil {
		return refusal
	}
	if len(a.pools) == 0 {
		return nil
	}
	if len(a.offerings) == 0 && len(a.nodes) == 0 && len(a.short) > 0 {
		return &planner.Refusal{Reason: planner.ReasonUnavailable, Message: fmt.Sprintf("may run for %s (activeDeadlineSeconds), and %s: lower it, or allow other capacity",
			w.deadline, strings.Join(slices.Sorted(maps.Keys(a.short)), ", "))}
	}
	return a.tooLargeRefusal(w)
}

// noOfferingRefusal returns a refusal if no offering admits the pods but pools that probably would are not ready, or nil otherwise.
func (a *admission) noOfferingRefusal() *planner.Refusal {
	if len(a.pools) > 0 || len(a.unready) == 0 {
		return nil
	}
	return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: "nothing can be launched at present: " + strings.Join(a.unready, "; ")}
}

func (a *admission) noPoolRefusal(w *waitingClass) *planner.Refusal {
	if refusal := w.volumes.Refusal(); refusal != nil && len(a.whyNot) == 0 {
		return refusal
	}
	if refusal := a.noOfferingRefusal(); refusal != nil {
		return refusal
	}
	why := a.whyNot
	if len(why) == 0 {
		why = []string{"there is none"}
		if len(a.whyNotKarpenter) == 0 {
			why = []string{"there is none; create one"}
		}
	}
	return &planner.Refusal{Reason: planner.ReasonNoPool, Message: fmt.Sprintf("asks for %s, and no NodePool with a %s serves it: %s", w.gpu, v1alpha1.Kind, strings.Join(slices.Concat(why, a.whyNotKarpenter), "; "))}
}

// impossibleRefusal returns a refusal if the pods request more of a resource than any machine has, or nil otherwise.
func (s *shape) impossibleRefusal() *planner.Refusal {
	for _, name := range slices.Sorted(maps.Keys(s.demand.Requests)) {
		if facts.AmountOf(s.demand.Requests, name) >= amount.Max {
			return &planner.Refusal{Reason: planner.ReasonTooLarge, Message: fmt.Sprintf("requests %s of %s, which is more than any machine has: correct its requests", amount.Text(s.demand.Requests[name]), name)}
		}
	}
	return nil
}

// tooLargeRefusal returns a refusal if the pods request something that no machine of the pools that admit them provides, or nil otherwise.
func (a *admission) tooLargeRefusal(w *waitingClass) *planner.Refusal {
	if len(a.nodes) == 0 {
		if refusal := cmp.Or(a.missingResourceRefusal(w), a.smallGPURefusal(w)); refusal != nil {
			return refusal
		}
	}
	if replicas := a.pools[0].Class.Spec.Sharing.RefusedReplicas(facts.MostInOne(w.pod(), w.gpu), w.replicas()); replicas > 1 && len(a.offerings) == 0 {
		return aboveOneRefusal(a.pools[0].Class, replicas)
	}
	return nil
}

// missingResourceRefusal returns a refusal if the pods request an extended resource besides the GPU that no machine of the pools has, or nil otherwise.
func (a *admission) missingResourceRefusal(w *waitingClass) *planner.Refusal {
	for _, name := range slices.Sorted(maps.Keys(w.demand.Requests)) {
		has := func(o Offering) bool {
			_, instances := records.OfferOf(o.instances, name)
			return instances || o.Type.Extended[string(name)] > 0
		}
		if !facts.IsExtended(name, w.gpu) || facts.ValueOf(w.demand.Requests, name) == 0 ||
			slices.ContainsFunc(a.pools, func(p *Pool) bool { return slices.ContainsFunc(p.Offerings, has) }) {
			continue
		}
		return &planner.Refusal{Reason: planner.ReasonTooLarge, Message: fmt.Sprintf(
			"asks for %s besides %s, which no machine of NodePool %s has: remove the request", name, w.gpu, a.pools[0].NodePool.Name)}
	}
	return nil
}

// smallGPURefusal returns a refusal if no GPU of the pools has what the pods request of it, or nil if one has.
func (a *admission) smallGPURefusal(w *waitingClass) *planner.Refusal {
	if len(a.offerings) > 0 {
		return nil
	}
	states := resource.NewQuantity(w.gpuMemory, resource.BinarySI)
	if a.largest > 0 {
		return &planner.Refusal{Reason: planner.ReasonTooLarge, Message: fmt.Sprintf(
			"states %s of device memory, and a replica of %s %s has at most %s with MPS: lower %s, or give replicas more memory with fewer replicas or spec.sharing.mps.memoryOvercommitPercent",
			states, v1alpha1.Kind, a.pools[0].Class.Name, resource.NewQuantity(a.largest, resource.BinarySI), v1alpha1.GPUMemoryAnnotation)}
	}
	if most := a.maxInstanceMiB(w.shape); most > 0 {
		return &planner.Refusal{Reason: planner.ReasonTooLarge, Message: fmt.Sprintf(
			"states %s of device memory, and a replica of %s has at most %s on GPUs with instances of several profiles: request a larger instance, or lower %s",
			states, w.gpu, resource.NewQuantity(most*facts.BytesPerMiB, resource.BinarySI), v1alpha1.GPUMemoryAnnotation)}
	}
	if w.claim != nil {
		return &planner.Refusal{Reason: planner.ReasonUnsupported, Message: "has a ResourceClaim that no GPU of its NodePools would have: " + strings.Join(slices.Sorted(maps.Keys(a.unfit)), "; ")}
	}
	return nil
}

// aboveOneRefusal returns the refusal of pods that request more replicas than a GPUNodeClass allows.
func aboveOneRefusal(class *v1alpha1.GPUNodeClass, replicas int64) *planner.Refusal {
	var message string
	switch sharing := &class.Spec.Sharing; {
	case sharing.Strategy == v1alpha1.StrategyMPS:
		message = fmt.Sprintf("asks for %d replicas in one container, and %s %s shares GPUs with MPS, where a container has one: ask for one, or use a NodePool with another strategy", replicas, v1alpha1.Kind, class.Name)
	case sharing.UsesDRA():
		message = fmt.Sprintf("asks for %d replicas, and %s %s has backend %s, with which the scheduler gives each replica of a container another GPU: ask for one, or use a NodePool with backend DevicePlugin",
			replicas, v1alpha1.Kind, class.Name, sharing.Backend)
	default:
		message = fmt.Sprintf("asks for %d replicas in one container, and %s %s refuses more than one: ask for one, since more do not give more GPU time, or set spec.sharing.requestsAboveOne to Allow",
			replicas, v1alpha1.Kind, class.Name)
	}
	return &planner.Refusal{Reason: planner.ReasonRequestsAboveOne, Message: message}
}
