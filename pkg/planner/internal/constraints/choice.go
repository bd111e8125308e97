package constraints

import (
	"cmp"
	"fmt"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// solve plans for a snapshot that may have minValues in addition to what the plain solver handles. An offering of a pool with minValues is replaced by
// a variant with alternatives, whose capacity is the minimum over them. So each of them holds what is planned for the variant.
func (a *arranger) solve(s planner.Snapshot) planner.Plan {
	if !slices.ContainsFunc(s.Pools, func(p planner.Pool) bool { return len(p.MinValues) > 0 }) {
		return a.parts(s)
	}
	wide, variants := widened(s)
	plan := a.parts(wide)
	for i := range plan.Launches {
		l := &plan.Launches[i]
		if v := l.Offering - len(s.Offerings); v >= 0 {
			l.Offering, l.Alternatives = variants[v].Offering, variants[v].Alternatives
		}
	}
	return plan
}

// widened returns the snapshot with variants instead of the offerings of pools with minValues. The alternatives of an offering depend on which offerings admit
// the pods, so there is a variant for each such set of offerings.
func widened(s planner.Snapshot) (planner.Snapshot, []alternatives.Variant) {
	out := s
	out.Offerings = slices.Clip(s.Offerings)
	usable := newProblem(planner.Snapshot{Pools: s.Pools, Offerings: s.Offerings, Stocks: s.Stocks}).usable
	var variants []alternatives.Variant
	known := map[string]bool{}
	add := func(v alternatives.Variant, short *planner.Refusal) {
		key := fmt.Sprint(v, short != nil)
		if short != nil {
			key += short.Message
		}
		if known[key] {
			return
		}
		known[key] = true
		variants = append(variants, v)
		o := s.Offerings[v.Offering]
		has, _ := alternatives.Least(s, v.Offering, v.Alternatives)
		o.Free, o.GPUs, o.Quotas = has.Free, has.GPUs, has.Quotas
		o.Physical = alternatives.Greatest(s, v)
		if short != nil {
			o.Unavailable = short
		}
		out.Offerings = append(out.Offerings, o)
	}
	seen := map[string]bool{}
	for _, c := range pack.ClassOrder(s) {
		class := s.Classes[c]
		for p := range s.Pools {
			if len(class.Pods) == 0 || len(s.Pools[p].MinValues) == 0 {
				continue
			}
			holding := slices.DeleteFunc(slices.Clone(class.Offerings), func(i int) bool {
				return s.Offerings[i].Pool != p || !usable[i] || offeredTimes(s, class, i) == 0
			})
			if key := fmt.Sprint(holding); !seen[key] {
				seen[key] = true
				for _, i := range holding {
					others, short := choice(s, i, holding)
					add(alternatives.Variant{Offering: i, Alternatives: others}, short)
				}
			}
		}
	}
	out.Classes = slices.Clone(s.Classes)
	for c := range out.Classes {
		out.Classes[c].Offerings = relisted(s, out.Classes[c].Offerings, usable, variants)
	}
	return out, variants
}

// relisted returns the offerings of a class. It replaces offerings of pools with minValues by those variants of which the class lists all machines.
func relisted(s planner.Snapshot, offerings []int, usable []bool, variants []alternatives.Variant) []int {
	kept := slices.DeleteFunc(slices.Clone(offerings), func(i int) bool {
		return usable[i] && len(s.Pools[s.Offerings[i].Pool].MinValues) > 0
	})
	for v, x := range variants {
		missing := func(i int) bool { _, ok := slices.BinarySearch(offerings, i); return !ok }
		if !missing(x.Offering) && !slices.ContainsFunc(x.Alternatives, missing) {
			kept = append(kept, len(s.Offerings)+v)
		}
	}
	return kept
}

// choice returns the alternatives, the cheapest first, with which an offering satisfies the minValues of its pool, out of the given offerings. If there are
// none, it returns what is missing. It prefers offerings with at least the capacity of the offering, then those that reduce it least. Offerings that draw from
// stocks are no alternatives.
func choice(s planner.Snapshot, offering int, among []int) ([]int, *planner.Refusal) {
	wanted := s.Pools[s.Offerings[offering].Pool].MinValues
	values := make([]map[string]bool, len(wanted))
	gives := func(i, k int) bool {
		v := valueOf(wanted[k], i)
		return v != "" && !values[k][v] && len(values[k]) < wanted[k].Min
	}
	take := func(i int) {
		for k := range wanted {
			if v := valueOf(wanted[k], i); v != "" {
				values[k][v] = true
			}
		}
	}
	for k := range values {
		values[k] = map[string]bool{}
	}
	take(offering)
	order := slices.DeleteFunc(slices.Clone(among), func(i int) bool { return i == offering || len(s.Offerings[i].Draws) > 0 })
	slices.SortStableFunc(order, func(i, j int) int {
		x, y := s.Offerings[i], s.Offerings[j]
		return cmp.Or(cmp.Compare(kept(s, offering, j), kept(s, offering, i)), cmp.Compare(x.Price, y.Price), cmp.Compare(x.InstanceType, y.InstanceType),
			cmp.Compare(x.Zone, y.Zone), cmp.Compare(x.CapacityType, y.CapacityType))
	})
	var alternatives []int
	for _, i := range order {
		for k := range wanted {
			if gives(i, k) {
				alternatives = append(alternatives, i)
				take(i)
				break
			}
		}
	}
	for k, d := range wanted {
		if len(values[k]) < d.Min {
			return nil, &planner.Refusal{Reason: planner.ReasonUnavailable, Message: fmt.Sprintf("NodePool %s asks for a choice of %d values of %s (minValues), and the machines that it can launch for the pod at present have %d: "+
				"lower minValues, or allow more in its requirements", s.Pools[s.Offerings[offering].Pool].Name, d.Min, d.Key, len(values[k]))}
		}
	}
	slices.SortStableFunc(alternatives, func(i, j int) int { return cmp.Compare(s.Offerings[i].Price, s.Offerings[j].Price) })
	return alternatives, nil
}

func valueOf(m planner.MinValues, offering int) string {
	if offering >= len(m.Values) {
		return ""
	}
	return m.Values[offering]
}

// kept returns how much of an offering's capacity is left if the machine may be another offering, in thousandths, for the resource that loses most.
func kept(s planner.Snapshot, offering, other int) int64 {
	const whole = 1000
	n := int64(whole)
	x, y := amount.VectorOf(s.Offerings[offering].Free), amount.VectorOf(s.Offerings[other].Free)
	for d := range x {
		if x[d] > 0 {
			n = min(n, amount.MulDiv(max(0, y[d]), whole, x[d]))
		}
	}
	return n
}
