package planner

import "slices"

// Composed is the first plan of a snapshot, and one that is composed of the loads that its relaxation knows.
func Composed(s Snapshot) (first, composed Plan) {
	p := compile(s)
	h := &hunt{side: half{ctx: newMixer(p, newEffort(1<<30, nil)), base: newSolution(p), met: &met{}}}
	h.side.ctx.fill(h.side.base, h.side.ctx.alone)
	h.side.best = h.side.base.clone()
	h.side.ctx.buy(h.side.best, h.side.ctx.alone, slices.Clone(p.limits))
	first = planOf(p, h.side.best)
	h.columns(1<<20, 1<<20)
	h.compose(1 << 20)
	return first, planOf(p, h.side.best)
}

// MostOnGPUs is what a machine of the first offering holds that is worth most, when the pods of the k-th shape are worth worths[k] each: by trying
// every load, by combining loads of single GPUs with so many parts, and the bound of that. It reports whether the machine is combined at all.
func MostOnGPUs(s Snapshot, worths []int64, parts int) (most, found, upper int64, ok bool) {
	p := compile(s)
	if len(p.offers) == 0 {
		return 0, 0, 0, false
	}
	c := &p.offers[0].capacity
	k := newKnapsack(p, c)
	g := newGPURelaxation(p, k)
	if g == nil || !g.combines {
		return 0, 0, 0, false
	}
	values, demand := worths[:len(p.shapes)], p.demand()
	l := newLattice(p, demand)
	for a := range l.states {
		if l.holds(p, c, a) {
			most = max(most, worth(values, l.loads[a]))
		}
	}
	x := pricer{k, g}
	x.knapsack.price(values, demand)
	g.bound(values, demand, 0)
	var out priced
	upper = x.combine(values, demand, parts, 0, &out, &combination{})
	return most, out.value, upper, true
}

// LaunchedParts fills the machine of the first offering in so many ways, and launches each load where all but one of its pods wait. It returns how many of
// these parts are not found GPUs for, as they are looked for, and the first of which anything was lost: it neither waits nor is launched for on GPUs.
func LaunchedParts(s Snapshot, ways int) (without int, lost []int32) {
	p := compile(s)
	m := newMixer(p, newEffort(0, nil))
	var choice sequence
	for range ways {
		whole := make(load, len(p.shapes))
		m.room.fill(p, &p.offers[0].capacity, whole)
		for range 400 {
			k := choice.below(len(whole))
			whole[k] += m.room.add(p, &p.offers[0].capacity, k, min(1, p.demand()[k]-whole[k]))
		}
		if !m.holds(0, whole) {
			continue
		}
		for k := range whole {
			if whole[k] == 0 {
				continue
			}
			part := slices.Clone(whole)
			part[k]--
			if !m.holds(0, part) {
				without++
			}
			s := newSolution(p)
			s.left = slices.Clone(part)
			m.launch(s, column{0, whole}, 1, slices.Clone(p.limits))
			for _, x := range s.machines {
				if s.left.add(x.load, 1); !m.holds(x.offer, x.load) {
					return without, part
				}
			}
			if !slices.Equal(s.left, part) {
				return without, part
			}
		}
	}
	return without, nil
}
