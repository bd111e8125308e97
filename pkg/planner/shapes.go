package planner

import (
	"cmp"
	"slices"
)

// addShapes merges the classes into shapes, in the order of their first pods, and refuses what is blocked or malformed.
func (p *problem) addShapes(s Snapshot) {
	offerAt, nodeAt := p.places(s)
	shares := p.shares(s)
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
		sh := shape{request: vecOf(class.Requests), pods: pods, apart: shares[c]}
		sh.request[dimGPUMemory] = class.GPUMemoryBytes
		sound := p.take(&sh, class.Quotas)
		switch {
		case class.Blocked != nil:
			p.refuse(pods, *class.Blocked)
			continue
		case !sound || sh.request.negative():
			p.refuse(pods, Refusal{ReasonUnsupported, "requests less than nothing of a resource: correct its requests"})
			continue
		case len(pods) == 0:
			continue
		}
		key := p.shapeKey(&sh, class, offerAt, nodeAt)
		if i, ok := byKey[key]; ok {
			p.shapes[i].pods = append(p.shapes[i].pods, pods...)
			p.ofClass[c] = i
			continue
		}
		byKey[key], p.ofClass[c] = len(p.shapes), len(p.shapes)
		p.shapes = append(p.shapes, sh)
	}
	for i := range p.shapes {
		slices.SortFunc(p.shapes[i].pods, func(a, b podRef) int { return cmp.Compare(a.name, b.name) })
		if p.shapes[i].states() {
			p.byGPU = append(p.byGPU, i)
		}
	}
	slices.SortStableFunc(p.byGPU, func(i, j int) int {
		a, b := &p.shapes[i].request, &p.shapes[j].request
		return cmp.Or(cmp.Compare(b[dimGPUMemory], a[dimGPUMemory]), cmp.Compare(b[dimReplicas], a[dimReplicas]))
	})
}

// shapeOf returns the shape that the pods of a class of the snapshot are part of; nil where none of them is planned for.
func (p *problem) shapeOf(class int) *shape {
	if k, ok := p.ofClass[class]; ok {
		return &p.shapes[k]
	}
	return nil
}

// take notes what a pod of a shape takes of quotas, and reports whether none of it is less than nothing.
func (p *problem) take(sh *shape, amounts []Amount) bool {
	for _, x := range amounts {
		if x.Count < 0 {
			return false
		}
		if x.Count == 0 || x.Quota < 0 || x.Quota >= len(p.quotaAt) {
			continue
		}
		q := p.quotaAt[x.Quota]
		if i := slices.IndexFunc(sh.quotas, func(y Amount) bool { return y.Quota == q }); i >= 0 {
			sh.quotas[i].Count = saturating(sh.quotas[i].Count, x.Count)
			continue
		}
		sh.quotas = append(sh.quotas, Amount{Quota: q, Count: x.Count})
	}
	return true
}

// shares returns, by class, how it belongs to the rules that keep pods apart on machines, and counts those. A rule that a class only
// wishes for does not bind it.
func (p *problem) shares(s Snapshot) [][]share {
	out := make([][]share, len(s.Classes))
	of := func(c int) *share {
		if n := len(out[c]); n > 0 && out[c][n-1].rule == p.aparts {
			return &out[c][n-1]
		}
		out[c] = append(out[c], share{rule: p.aparts})
		return &out[c][len(out[c])-1]
	}
	for r, rule := range s.Rules {
		if rule.Kind != Apart || rule.Topology != PerNode {
			continue
		}
		for _, c := range rule.Classes {
			if c >= 0 && c < len(out) && !slices.ContainsFunc(s.Classes[c].Wishes, func(w Wish) bool { return w.Rule == r }) {
				of(c).asks = true
			}
		}
		for _, c := range rule.Counted {
			if c >= 0 && c < len(out) {
				of(c).counted = true
			}
		}
		p.aparts++
	}
	return out
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

// shapeKey spells out what makes a difference between classes: what a pod takes, from whom it is kept apart, and which offers and nodes
// can hold one.
func (p *problem) shapeKey(sh *shape, class Class, offerAt, nodeAt []int) string {
	key := make([]byte, 0, 128)
	number := func(x int64) {
		for shift := 0; shift < 64; shift += 8 {
			key = append(key, byte(x>>shift))
		}
	}
	for _, x := range sh.request {
		number(x)
	}
	number(int64(len(sh.quotas)))
	for _, x := range sh.quotas {
		number(int64(x.Quota))
		number(x.Count)
	}
	number(int64(len(sh.apart)))
	for _, x := range sh.apart {
		sides := int64(0)
		if x.asks {
			sides++
		}
		if x.counted {
			sides += 2
		}
		number(int64(x.rule)*4 + sides)
	}
	mark := func(count int, indices, at []int, of func(int) *capacity) {
		set := make([]byte, (count+7)/8)
		for _, i := range indices {
			if i >= 0 && i < len(at) && at[i] >= 0 && of(at[i]).alone(sh, 1) > 0 {
				set[at[i]/8] |= 1 << (at[i] % 8)
			}
		}
		key = append(key, set...)
	}
	mark(len(p.offers), class.Offerings, offerAt, func(i int) *capacity { return &p.offers[i].capacity })
	mark(len(p.nodes), class.Nodes, nodeAt, func(i int) *capacity { return &p.nodes[i].capacity })
	return string(key)
}
