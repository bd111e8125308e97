package plugin

import (
	"cmp"
	"maps"
	"slices"

	"karve.sh/karve/pkg/node/alloc"
)

// target is what one GPU is to be: so many replicas of a resource, 1 for the GPU as a whole.
type target struct {
	uuid     string
	resource string
	replicas int
}

// idSet is device ids by resource.
type idSet map[string]map[string]bool

func (s idSet) add(resource, id string) {
	if s[resource] == nil {
		s[resource] = map[string]bool{}
	}
	s[resource][id] = true
}

func (s idSet) has(resource, id string) bool { return s[resource][id] }

// layout says which devices of each resource the kubelet should know, and whether that is not yet what the targets want, because pods hold
// what has to go first. The targets are in the order of the GPUs' indices, and so are the answer's devices.
//
// What pods hold stays, whatever the targets say: the kubelet does not admit a pod again after its own restart when its device is gone. Of
// the rest, a GPU offers as many replicas as are missing to its target, and it never is shared and exclusive at once.
func layout(targets []target, listed, inUse idSet) (offered map[string][]string, settling bool) {
	byGPU := map[string][]held{}
	for resource, ids := range inUse {
		for id := range ids {
			_, n, replica := alloc.Parse(id)
			byGPU[alloc.UUID(id)] = append(byGPU[alloc.UUID(id)], held{resource: resource, id: id, n: n, replica: replica})
		}
	}
	own := make(map[string]string, len(targets))
	for _, t := range targets {
		own[t.uuid] = t.resource
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
		if _, ok := offered[t.resource]; !ok {
			offered[t.resource] = nil
		}
		settling = offer(t, byGPU[t.uuid], known[t.uuid], offered) || settling
		delete(byGPU, t.uuid)
	}
	// GPUs that are gone: only what is held stays listed; it will be unhealthy.
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
	slices.SortFunc(known, compareIDs)
	exclusive, own := false, map[string]bool{}
	for _, h := range held {
		exclusive = exclusive || !h.replica
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
		// Nothing is free until the pod that has the GPU for itself is gone.
	default:
		settling = settling || free < 0
		fill(own, t.uuid, free, known)
	}
	ids := slices.SortedFunc(maps.Keys(own), compareIDs)
	if len(ids) > 0 {
		offered[t.resource] = append(offered[t.resource], ids...)
	}
	return settling
}

// fill adds replicas of a GPU. Those that the kubelet knows already come before others: a reload that changes nothing is to change nothing.
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

func compareIDs(a, b string) int {
	_, n, _ := alloc.Parse(a)
	_, m, _ := alloc.Parse(b)
	return cmp.Or(cmp.Compare(n, m), cmp.Compare(a, b))
}
