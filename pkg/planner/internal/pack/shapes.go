package pack

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
)

// addShapes merges the classes into shapes, in the order of their first pods, and refuses blocked ones.
func (p *Problem) addShapes(s planner.Snapshot) {
	offerAt, nodeAt := p.Places(s)
	shares := p.shares(s)
	byKey := map[string]int{}
	for _, c := range ClassOrder(s) {
		class := s.Classes[c]
		pods := make([]podRef, 0, len(class.Pods))
		for _, name := range class.Pods {
			pods = append(pods, podRef{name, c})
		}
		sh := Shape{Request: amount.VectorOf(class.Requests), Pods: pods, apart: shares[c]}
		sh.Request[amount.GPUMemory] = class.GPUMemoryBytes
		for _, x := range class.Quotas {
			if x.Count > 0 {
				sh.quotas = append(sh.quotas, planner.Amount{Quota: p.quotaAt[x.Quota], Count: x.Count})
			}
		}
		if class.Blocked != nil {
			for _, pod := range pods {
				p.Refused = append(p.Refused, planner.Unplaced{Pod: pod.Name, Refusal: *class.Blocked})
			}
		}
		if class.Blocked != nil || len(pods) == 0 {
			continue
		}
		key := p.shapeKey(&sh, class, offerAt, nodeAt)
		if i, ok := byKey[key]; ok {
			p.Shapes[i].Pods = append(p.Shapes[i].Pods, pods...)
			p.ofClass[c] = i
			continue
		}
		byKey[key], p.ofClass[c] = len(p.Shapes), len(p.Shapes)
		p.Shapes = append(p.Shapes, sh)
	}
	for i := range p.Shapes {
		slices.SortFunc(p.Shapes[i].Pods, func(a, b podRef) int { return cmp.Compare(a.Name, b.Name) })
		if p.Shapes[i].States() {
			p.byGPU = append(p.byGPU, i)
		}
	}
	slices.SortStableFunc(p.byGPU, func(i, j int) int {
		a, b := &p.Shapes[i].Request, &p.Shapes[j].Request
		return cmp.Or(cmp.Compare(b[amount.GPUMemory], a[amount.GPUMemory]), cmp.Compare(b[amount.Replicas], a[amount.Replicas]))
	})
}

// ShapeOf returns the shape of the pods of a class of the snapshot. It returns nil if none of them is planned for.
func (p *Problem) ShapeOf(class int) *Shape {
	if k, ok := p.ofClass[class]; ok {
		return &p.Shapes[k]
	}
	return nil
}

// shares returns, by class, its relation to the rules that keep pods apart on machines, and counts these rules. A rule does not bind a class that only
// prefers it.
func (p *Problem) shares(s planner.Snapshot) [][]share {
	out := make([][]share, len(s.Classes))
	of := func(c int) *share {
		if n := len(out[c]); n > 0 && out[c][n-1].rule == p.aparts {
			return &out[c][n-1]
		}
		out[c] = append(out[c], share{rule: p.aparts})
		return &out[c][len(out[c])-1]
	}
	for r, rule := range s.Rules {
		if rule.Kind != planner.Apart || rule.Topology != planner.PerNode {
			continue
		}
		for _, c := range rule.Classes {
			if !slices.ContainsFunc(s.Classes[c].Preferences, func(w planner.Preference) bool { return w.Rule == r }) {
				of(c).asks = true
			}
		}
		for _, c := range rule.Counted {
			of(c).counted = true
		}
		p.aparts++
	}
	return out
}

// CountPods returns the number of pods of a snapshot.
func CountPods(s planner.Snapshot) int {
	n := 0
	for _, c := range s.Classes {
		n += len(c.Pods)
	}
	return n
}

// ClassOrder returns the indices of the classes in the order of their first pods.
func ClassOrder(s planner.Snapshot) []int {
	order := make([]int, len(s.Classes))
	first := make([]string, len(s.Classes))
	for i, c := range s.Classes {
		order[i] = i
		if len(c.Pods) > 0 {
			first[i] = slices.Min(c.Pods)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := amount.VectorOf(s.Classes[i].Requests), amount.VectorOf(s.Classes[j].Requests)
		return cmp.Or(cmp.Compare(first[i], first[j]), slices.Compare(a[:], b[:]))
	})
	return order
}

// shapeKey encodes what distinguishes shapes: what a pod uses, the rules that keep it apart from others, and the offers and nodes that can hold it.
func (p *Problem) shapeKey(sh *Shape, class planner.Class, offerAt, nodeAt []int) string {
	key := make([]byte, 0, 128)
	number := func(x int64) {
		for shift := 0; shift < 64; shift += 8 {
			key = append(key, byte(x>>shift))
		}
	}
	for _, x := range sh.Request {
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
	mark := func(count int, indices, at []int, of func(int) *Capacity) {
		set := make([]byte, (count+7)/8)
		for _, i := range indices {
			if at[i] >= 0 && of(at[i]).Alone(sh, 1) > 0 {
				set[at[i]/8] |= 1 << (at[i] % 8)
			}
		}
		key = append(key, set...)
	}
	mark(len(p.Offers), class.Offerings, offerAt, func(i int) *Capacity { return &p.Offers[i].Capacity })
	mark(len(p.Nodes), class.Nodes, nodeAt, func(i int) *Capacity { return &p.Nodes[i].Capacity })
	return string(key)
}
