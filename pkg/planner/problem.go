package planner

import (
	"cmp"
	"slices"
)

// maxPrice is the dearest machine that is planned with, a million dollars an hour; together with the number of pods
// that memory can hold it keeps every sum of prices within an int64.
const maxPrice = 1 << 40

// problem is a snapshot in the order that decisions are made in: everything sorted by name or by size, never by its index, so
// that shuffling a snapshot changes nothing; what cannot be used is gone, what cannot be told apart is merged.
type problem struct {
	snapshot Snapshot
	shapes   []shape
	offers   []offer
	nodes    []node
	// limits is what each pool of the snapshot may still launch; limited whether any of them is finite.
	limits  []usage
	limited bool
	// refused are the pods that are not planned for at all, with their reason.
	refused []Unplaced
}

// shape is all pods with the same requests that the same usable offerings and nodes can hold: classes that differ only
// in what makes no difference here share one.
type shape struct {
	request vec
	pods    []podRef
	// launchable is whether any usable offering can hold one pod, were there no limits.
	launchable bool
}

type podRef struct {
	name  string
	class int
}

// offer is a usable offering: it exists, its pool is open, the cloud has it, and some shape fits.
type offer struct {
	index int
	pool  int
	price int64
	free  vec
	uses  usage
	// fits is, by shape, how many of its pods alone the machine holds; 0 where it is not admitted.
	fits []int32
}

// node is an existing machine with room for some shape.
type node struct {
	index int
	free  vec
	fits  []int32
}

// compile prepares a snapshot. It accepts anything: what [Validate] would refuse is left out or refused, pod by pod.
func compile(s Snapshot) *problem {
	p := &problem{snapshot: s}
	for _, pool := range s.Pools {
		left := usageOf(pool.Remaining)
		p.limits = append(p.limits, left)
	}
	offers := usableOfferings(s)
	nodes := usableNodes(s)
	p.addShapes(s, offers, nodes)
	p.addFits(s, offers, nodes)
	p.dropDominated()
	for _, o := range p.offers {
		if !p.limits[o.pool].unlimited() {
			p.limited = true
		}
	}
	return p
}

// usableOfferings returns the indices of the offerings that can be launched at present, in stable order.
func usableOfferings(s Snapshot) []int {
	var out []int
	for i, o := range s.Offerings {
		if o.Pool < 0 || o.Pool >= len(s.Pools) || o.Price <= 0 || o.Price > maxPrice ||
			o.Unavailable != nil || s.Pools[o.Pool].Closed != nil || vecOf(o.Free).negative() {
			continue
		}
		if uses := usageOf(o.Physical); slices.Min(uses[:]) < 0 {
			continue
		}
		if limits := usageOf(s.Pools[o.Pool].Remaining); !limits.admits(usageOf(o.Physical)) {
			continue
		}
		out = append(out, i)
	}
	slices.SortFunc(out, func(i, j int) int { return compareOfferings(s, i, j) })
	return out
}

// compareOfferings is the stable order of offerings: by what they are called, and by what they are where names repeat.
func compareOfferings(s Snapshot, i, j int) int {
	a, b := s.Offerings[i], s.Offerings[j]
	fa, fb := vecOf(a.Free), vecOf(b.Free)
	ua, ub := usageOf(a.Physical), usageOf(b.Physical)
	return cmp.Or(
		cmp.Compare(s.Pools[a.Pool].Name, s.Pools[b.Pool].Name),
		cmp.Compare(a.InstanceType, b.InstanceType),
		cmp.Compare(a.Zone, b.Zone),
		cmp.Compare(a.CapacityType, b.CapacityType),
		cmp.Compare(a.Price, b.Price),
		slices.Compare(fa[:], fb[:]),
		slices.Compare(ua[:], ub[:]),
		cmp.Compare(i, j),
	)
}

// usableNodes returns the indices of the nodes, the fullest first, so that best fit is the order itself and a name decides
// only between nodes with the same room.
func usableNodes(s Snapshot) []int {
	var out []int
	for i, n := range s.Nodes {
		if !vecOf(n.Free).negative() {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(i, j int) int {
		a, b := vecOf(s.Nodes[i].Free), vecOf(s.Nodes[j].Free)
		return cmp.Or(slices.Compare(a[:], b[:]), cmp.Compare(s.Nodes[i].Name, s.Nodes[j].Name), cmp.Compare(i, j))
	})
	return out
}

// addShapes merges the classes into shapes, in the order of their first pods, and refuses what is blocked or malformed.
func (p *problem) addShapes(s Snapshot, offers, nodes []int) {
	offerAt, nodeAt := positions(len(s.Offerings), offers), positions(len(s.Nodes), nodes)
	seen := map[string]bool{}
	byKey := map[string]int{}
	for _, c := range classOrder(s) {
		class := s.Classes[c]
		pods := make([]podRef, 0, len(class.Pods))
		for _, name := range class.Pods {
			if !seen[name] {
				seen[name] = true
				pods = append(pods, podRef{name, c})
			}
		}
		request := vecOf(class.Requests)
		switch {
		case class.Blocked != nil:
			p.refuse(pods, *class.Blocked)
			continue
		case request.negative():
			p.refuse(pods, Refusal{ReasonUnsupported, "requests less than nothing of a resource: correct its requests"})
			continue
		case len(pods) == 0:
			continue
		}
		key := shapeKey(s, class, request, offerAt, nodeAt)
		if i, ok := byKey[key]; ok {
			p.shapes[i].pods = append(p.shapes[i].pods, pods...)
			continue
		}
		byKey[key] = len(p.shapes)
		p.shapes = append(p.shapes, shape{request: request, pods: pods})
	}
	for i := range p.shapes {
		slices.SortFunc(p.shapes[i].pods, func(a, b podRef) int { return cmp.Compare(a.name, b.name) })
	}
}

func (p *problem) refuse(pods []podRef, why Refusal) {
	for _, pod := range pods {
		p.refused = append(p.refused, Unplaced{Pod: pod.name, Refusal: why})
	}
}

// classOrder returns the indices of the classes by their first pods.
func classOrder(s Snapshot) []int {
	order := make([]int, len(s.Classes))
	first := make([]string, len(s.Classes))
	for i, c := range s.Classes {
		order[i] = i
		if len(c.Pods) > 0 {
			first[i] = slices.Min(c.Pods)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := vecOf(s.Classes[i].Requests), vecOf(s.Classes[j].Requests)
		return cmp.Or(cmp.Compare(first[i], first[j]), slices.Compare(a[:], b[:]))
	})
	return order
}

// positions maps an index of the snapshot to its place in order, -1 where it is not in it.
func positions(n int, order []int) []int {
	at := make([]int, n)
	for i := range at {
		at[i] = -1
	}
	for place, i := range order {
		at[i] = place
	}
	return at
}

// shapeKey spells out what makes a difference between classes: the requests, and which offerings and nodes can hold one pod.
func shapeKey(s Snapshot, class Class, request vec, offerAt, nodeAt []int) string {
	key := make([]byte, 0, 64)
	for _, x := range request {
		for shift := 0; shift < 64; shift += 8 {
			key = append(key, byte(x>>shift))
		}
	}
	mark := func(count int, indices, at []int, free func(int) Resources) {
		set := make([]byte, (count+7)/8)
		for _, i := range indices {
			if i >= 0 && i < len(at) && at[i] >= 0 && vecOf(free(i)).fit(request, 1) > 0 {
				set[at[i]/8] |= 1 << (at[i] % 8)
			}
		}
		key = append(key, set...)
	}
	mark(len(offerAt), class.Offerings, offerAt, func(i int) Resources { return s.Offerings[i].Free })
	mark(len(nodeAt), class.Nodes, nodeAt, func(i int) Resources { return s.Nodes[i].Free })
	return string(key)
}

// addFits fills in the offers and nodes that can hold at least one pod of one shape.
func (p *problem) addFits(s Snapshot, offers, nodes []int) {
	for _, i := range offers {
		o := s.Offerings[i]
		p.offers = append(p.offers, offer{
			index: i, pool: o.Pool, price: int64(o.Price), free: vecOf(o.Free), uses: usageOf(o.Physical),
			fits: make([]int32, len(p.shapes)),
		})
	}
	for _, i := range nodes {
		p.nodes = append(p.nodes, node{index: i, free: vecOf(s.Nodes[i].Free), fits: make([]int32, len(p.shapes))})
	}
	offerAt, nodeAt := positions(len(s.Offerings), offers), positions(len(s.Nodes), nodes)
	for k := range p.shapes {
		sh := &p.shapes[k]
		class := s.Classes[sh.pods[0].class]
		n := int32(len(sh.pods))
		for _, i := range class.Offerings {
			if i >= 0 && i < len(offerAt) && offerAt[i] >= 0 {
				o := &p.offers[offerAt[i]]
				o.fits[k] = o.free.fit(sh.request, n)
				sh.launchable = sh.launchable || o.fits[k] > 0
			}
		}
		for _, i := range class.Nodes {
			if i >= 0 && i < len(nodeAt) && nodeAt[i] >= 0 {
				v := &p.nodes[nodeAt[i]]
				v.fits[k] = v.free.fit(sh.request, n)
			}
		}
	}
	holds := func(fits []int32) bool { return slices.ContainsFunc(fits, func(n int32) bool { return n > 0 }) }
	p.offers = slices.DeleteFunc(p.offers, func(o offer) bool { return !holds(o.fits) })
	p.nodes = slices.DeleteFunc(p.nodes, func(n node) bool { return !holds(n.fits) })
}

// dropDominated removes offers that another one replaces in every plan: it holds whatever they hold, costs no more, and
// counts no more against a limit. Zones and capacity types of one machine mostly fall away here.
func (p *problem) dropDominated() {
	var kept []offer
	for i, o := range p.offers {
		beaten := false
		for j := range p.offers {
			if i != j && p.replaces(j, i) && (!p.replaces(i, j) || j < i) {
				beaten = true
				break
			}
		}
		if !beaten {
			kept = append(kept, o)
		}
	}
	p.offers = kept
}

// replaces reports whether offer a can stand in for offer b wherever b is bought.
func (p *problem) replaces(a, b int) bool {
	x, y := &p.offers[a], &p.offers[b]
	if x.price > y.price {
		return false
	}
	for d := range x.free {
		if x.free[d] < y.free[d] {
			return false
		}
	}
	for k := range x.fits {
		if y.fits[k] > 0 && x.fits[k] == 0 {
			return false
		}
	}
	return p.limits[x.pool].unlimited() || x.pool == y.pool && y.uses.admits(x.uses)
}

// demand returns the number of pods of each shape.
func (p *problem) demand() load {
	d := make(load, len(p.shapes))
	for k := range p.shapes {
		d[k] = int32(len(p.shapes[k].pods))
	}
	return d
}
