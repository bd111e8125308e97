package plugin

import (
	"cmp"
	"maps"
	"slices"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/nodecontract"
)

// target is the desired resource of a GPU and its number of replicas, which is 1 for an unshared GPU.
type target struct {
	uuid     string
	resource string
	replicas int
	// slots are the slots of memory of the GPU. If they are not nil, it has no resource and no replicas.
	slots *slotted
}

func (t target) resources() []string {
	if t.slots == nil {
		return []string{t.resource}
	}
	var names []string
	for _, size := range t.slots.sizes() {
		names = append(names, nodecontract.SlotResource(size))
	}
	return names
}

// idSet holds device IDs by resource.
type idSet map[string]map[string]bool

func (s idSet) add(resource, id string) {
	if s[resource] == nil {
		s[resource] = map[string]bool{}
	}
	s[resource][id] = true
}

func (s idSet) has(resource, id string) bool { return s[resource][id] }

// layout returns the devices of each resource that the kubelet should know. settling reports whether they differ from the targets because of devices
// that pods still hold. The targets are in the order of the GPUs' indices, and so are the returned devices.
//
// Devices that pods hold always stay, because a restarted kubelet does not admit a pod again if its device is gone. In addition, a GPU offers as many
// replicas as are missing to its target. It is never shared and exclusive at the same time. Free slots of memory stay if keepSlots is true.
func layout(targets []target, listed, inUse idSet, keepSlots bool) (offered map[string][]string, settling bool) {
	byGPU := map[string][]held{}
	for resource, ids := range inUse {
		for id := range ids {
			_, n, replica := alloc.Parse(id)
			byGPU[alloc.UUID(id)] = append(byGPU[alloc.UUID(id)], held{resource: resource, id: id, n: n, replica: replica})
		}
	}
	own := make(map[string]string, len(targets))
	for _, t := range targets {
		if t.slots == nil {
			own[t.uuid] = t.resource
		}
	}
	known := map[string][]string{}
	for resource, ids := range listed {
		for id := range ids {
			if uuid := alloc.UUID(id); own[uuid] == resource {
				known[uuid] = append(known[uuid], id)
			}
		}
	}
	offered = map[string][]string{}
	for _, t := range targets {
		for _, resource := range t.resources() {
			if _, ok := offered[resource]; !ok {
				offered[resource] = nil
			}
		}
		if t.slots != nil {
			settling = offerSlots(t, byGPU[t.uuid], listed, keepSlots, offered) || settling
		} else {
			settling = offer(t, byGPU[t.uuid], known[t.uuid], offered) || settling
		}
		delete(byGPU, t.uuid)
	}
	// For GPUs that are gone, only held devices stay listed. They will be unhealthy.
	for _, uuid := range slices.Sorted(maps.Keys(byGPU)) {
		settling = offer(target{uuid: uuid}, byGPU[uuid], nil, offered) || settling
	}
	return offered, settling
}

type held struct {
	resource, id string
	n            int
	replica      bool
}

// offer adds the devices of one GPU.
func offer(t target, held []held, known []string, offered map[string][]string) (settling bool) {
	slices.SortFunc(held, compareHeld)
	slices.SortFunc(known, alloc.CompareIDs)
	exclusive, own := false, map[string]bool{}
	for _, h := range held {
		_, _, slot := alloc.Slot(h.id)
		exclusive = exclusive || !h.replica || slot // A pod without a slot cannot share a GPU that has slots.
		if h.resource != t.resource || h.replica != (t.replicas > 1) {
			settling = true
		}
		if h.resource == t.resource {
			own[h.id] = true
		} else {
			offered[h.resource] = append(offered[h.resource], h.id)
		}
	}
	free := t.replicas - len(held)
	switch {
	case t.replicas == 1:
		if len(held) == 0 {
			own[t.uuid] = true
		}
	case exclusive || t.replicas < 1:
		// No device is free until the pod that holds the whole GPU is gone.
	default:
		settling = settling || free < 0
		fill(own, t.uuid, free, known)
	}
	ids := slices.SortedFunc(maps.Keys(own), alloc.CompareIDs)
	if len(ids) > 0 {
		offered[t.resource] = append(offered[t.resource], ids...)
	}
	return settling
}

// fill adds replicas of a GPU. It prefers those that the kubelet already knows, so that a reload of the same configuration changes nothing.
func fill(own map[string]bool, uuid string, free int, known []string) {
	add := func(id string) {
		if free > 0 && !own[id] {
			own[id] = true
			free--
		}
	}
	for _, id := range known {
		if _, _, replica := alloc.Parse(id); replica {
			add(id)
		}
	}
	for n := 0; free > 0; n++ {
		add(alloc.ID(uuid, n))
	}
}

func compareHeld(a, b held) int {
	return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(a.n, b.n), cmp.Compare(a.id, b.id))
}
