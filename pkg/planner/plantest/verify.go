package plantest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// verifySteps bounds each search of Verify.
const verifySteps = 3_000_000

// Verify derives the bound of a plan from its proof again, in exact arithmetic. It checks that no machine holds more of a cover's worth than the cover states,
// and that no machines at a price below the bound satisfy all covers. It shares no code with the planner, and is slow. A plan without a proof must launch
// nothing, or its price must equal its bound.
func Verify(s planner.Snapshot, p planner.Plan) error {
	if p.Proof == nil {
		if p.Bound != 0 && p.Bound != p.Price {
			return fmt.Errorf("the bound %d has no proof", p.Bound)
		}
		return nil
	}
	v := verifier{s: planner.LimitsAsStocks(s), placed: make([]int64, len(s.Classes)), known: map[string]*big.Int{}}
	class := map[string]int{}
	for i, c := range s.Classes {
		for _, pod := range c.Pods {
			class[pod] = i
		}
	}
	for _, x := range p.Placements {
		for _, pod := range x.Pods {
			v.placed[class[pod]]++
		}
	}
	for _, x := range p.Launches {
		for _, pod := range x.Pods {
			v.placed[class[pod]]++
		}
	}
	return v.proof(*p.Proof, nil, p.Bound)
}

type verifier struct {
	s      planner.Snapshot
	placed []int64             // pods by class
	known  map[string]*big.Int // what the checked covers require
}

// proof checks a proof for the plans that launch the given numbers of machines.
func (v *verifier) proof(p planner.Proof, counts []number, bound planner.MicroUSD) error {
	if x := p.Split; x != nil {
		if x.Few < 0 || len(x.Offerings) == 0 {
			return errors.New("a split that counts nothing")
		}
		if err := v.proof(x.AtMost, and(counts, number{x.Offerings, 0, int64(x.Few)}), bound); err != nil {
			return fmt.Errorf("at most %d: %w", x.Few, err)
		}
		if err := v.proof(x.More, and(counts, number{x.Offerings, int64(x.Few) + 1, math.MaxInt64}), bound); err != nil {
			return fmt.Errorf("more than %d: %w", x.Few, err)
		}
		return nil
	}
	var needs []*big.Int
	for i, c := range p.Covers {
		need, err := v.cover(c)
		if err != nil {
			return fmt.Errorf("cover %d: %w", i, err)
		}
		needs = append(needs, need)
	}
	return v.cheaper(p, needs, counts, bound)
}

// most returns how many machines of an offering what is left of the stocks suffices for. If left is nil, all is left.
func (v *verifier) most(offering int, left []int64) int64 {
	n := int64(math.MaxInt64)
	for _, d := range v.s.Offerings[offering].Draws {
		if left == nil {
			n = min(n, v.s.Stocks[d.Stock].Left/d.Amount)
		} else {
			n = min(n, left[d.Stock]/d.Amount)
		}
	}
	return n
}

// cover checks the statement of a cover about each machine, and returns the worth that launches must hold.
func (v *verifier) cover(c planner.Cover) (*big.Int, error) {
	key := fmt.Sprint(c.Worth, c.Most, c.Nodes)
	if need := v.known[key]; need != nil {
		return need, nil
	}
	need := new(big.Int)
	for i, n := range v.placed {
		if c.Worth[i] < 0 {
			return nil, fmt.Errorf("class %d has a negative worth", i)
		}
		need.Add(need, new(big.Int).Mul(big.NewInt(n), big.NewInt(c.Worth[i])))
	}
	for i, n := range v.s.Nodes {
		l := v.loading(c.Worth, newSpot(v.s, n.Free, n.GPUs, n.Quotas), c.Nodes[i], func(class planner.Class) bool { return slices.Contains(class.Nodes, i) })
		if err := l.exceeded(); err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		need.Sub(need, big.NewInt(c.Nodes[i]))
	}
	for i, o := range v.s.Offerings {
		limits := v.s.Pools[o.Pool].Remaining
		if v.most(i, nil) == 0 {
			continue
		}
		if o.Unavailable != nil || v.s.Pools[o.Pool].Closed != nil || !count(&limits, o.Physical) {
			continue
		}
		// More than the need of all machines together has no effect.
		most := big.NewInt(c.Most[i])
		if most.Cmp(need) >= 0 {
			continue
		}
		l := v.loading(c.Worth, Empty(v.s, i), c.Most[i], func(class planner.Class) bool { return slices.Contains(class.Offerings, i) })
		if err := l.exceeded(); err != nil {
			return nil, fmt.Errorf("offering %d, %s: %w", i, o.InstanceType, err)
		}
	}
	v.known[key] = need
	return need, nil
}

// loading searches for a load of one machine that is worth more than the cover states.
type loading struct {
	verifier *verifier
	worth    []int64
	most     *big.Int
	classes  []int // the classes to load, in descending order of worth per room
	spot     Spot
	steps    int
}

func (v *verifier) loading(worth []int64, spot Spot, most int64, admitted func(planner.Class) bool) *loading {
	l := &loading{verifier: v, worth: worth, most: big.NewInt(most), spot: spot, steps: verifySteps}
	for i, c := range v.s.Classes {
		if worth[i] > 0 && v.placed[i] > 0 && admitted(c) && len(spot.With(v.s, i)) > 0 {
			l.classes = append(l.classes, i)
		}
	}
	density := func(i int) *big.Rat {
		size := new(big.Rat)
		asks, has := sizes(v.s.Classes[i].Requests, v.s.Classes[i].GPUMemoryBytes), l.spot.sizes()
		for d := range asks {
			if asks[d] > 0 {
				size.Add(size, big.NewRat(asks[d], has[d]))
			}
		}
		if size.Sign() == 0 {
			size.SetInt64(1)
		}
		return size.Quo(new(big.Rat).SetInt64(worth[i]), size)
	}
	slices.SortStableFunc(l.classes, func(i, j int) int { return density(j).Cmp(density(i)) })
	return l
}

func sizes(r planner.Resources, device int64) [6]int64 {
	return [6]int64{r.MilliCPU, r.MemoryBytes, r.EphemeralBytes, r.Pods, r.Replicas, device}
}

// sizes returns the remaining amount of each resource. Device memory is that of all GPUs.
func (p Spot) sizes() [6]int64 {
	var device int64
	for _, g := range p.gpus {
		device += g.MemoryBytes
	}
	return sizes(p.free, device)
}

var errUnsettled = errors.New("the search was too long to tell")

func (l *loading) exceeded() error {
	return l.try(0, l.spot, l.placedOf(0), new(big.Int))
}

func (l *loading) placedOf(i int) int64 {
	if i == len(l.classes) {
		return 0
	}
	return l.verifier.placed[l.classes[i]]
}

// try adds one pod of the i-th class, of which left pods remain, or continues with the next class.
func (l *loading) try(i int, spot Spot, left int64, value *big.Int) error {
	if value.Cmp(l.most) > 0 {
		return fmt.Errorf("holds %v, not %v at most", value, l.most)
	}
	if i == len(l.classes) {
		return nil
	}
	if new(big.Int).Add(value, l.bound(i, spot, left)).Cmp(l.most) <= 0 {
		return nil
	}
	if l.steps--; l.steps < 0 {
		return errUnsettled
	}
	if left > 0 {
		more := new(big.Int).Add(value, big.NewInt(l.worth[l.classes[i]]))
		for _, after := range spot.With(l.verifier.s, l.classes[i]) {
			if err := l.try(i, after, left-1, more); err != nil {
				return err
			}
		}
	}
	return l.try(i+1, spot, l.placedOf(i+1), value)
}

// bound returns an upper bound on the worth of the classes from the i-th on. It is the least of the bounds by each resource and by all resources with equal
// weights.
func (l *loading) bound(i int, spot Spot, left int64) *big.Int {
	has := spot.sizes()
	total := l.spot.sizes()
	var least *big.Int
	for d := -1; d < len(has); d++ {
		weigh := func(of [6]int64) *big.Rat {
			out := new(big.Rat)
			for e := range of {
				if total[e] > 0 && (d < 0 || e == d) {
					out.Add(out, big.NewRat(of[e], total[e]))
				}
			}
			return out
		}
		room := weigh(has)
		type part struct{ worth, size *big.Rat }
		var parts []part
		value := new(big.Rat)
		for j := i; j < len(l.classes); j++ {
			c := l.verifier.s.Classes[l.classes[j]]
			n := l.verifier.placed[l.classes[j]]
			if j == i {
				n = left
			}
			worth, size := new(big.Rat).SetInt64(l.worth[l.classes[j]]), weigh(sizes(c.Requests, c.GPUMemoryBytes))
			times := new(big.Rat).SetInt64(n)
			worth.Mul(worth, times)
			if size.Mul(size, times).Sign() == 0 {
				value.Add(value, worth)
				continue
			}
			parts = append(parts, part{worth, size})
		}
		slices.SortFunc(parts, func(a, b part) int {
			return new(big.Rat).Mul(b.worth, a.size).Cmp(new(big.Rat).Mul(a.worth, b.size))
		})
		for _, x := range parts {
			if x.size.Cmp(room) > 0 {
				value.Add(value, room.Mul(room, x.worth).Quo(room, x.size))
				break
			}
			room.Sub(room, x.size)
			value.Add(value, x.worth)
		}
		whole := new(big.Int).Quo(value.Num(), value.Denom())
		if least == nil || whole.Cmp(least) < 0 {
			least = whole
		}
	}
	return least
}

// cheaper returns an error if machines in the given numbers satisfy all covers at a price below the bound.
func (v *verifier) cheaper(p planner.Proof, needs []*big.Int, counts []number, bound planner.MicroUSD) error {
	covers := p.Covers
	b := buying{verifier: v, bound: int64(bound), steps: verifySteps, duals: make([]int64, len(v.s.Stocks))}
	copy(b.duals, p.Duals)
	for _, y := range b.duals {
		if y < 0 {
			return errors.New("the dual of a stock is negative")
		}
	}
	for _, x := range v.s.Stocks {
		b.left = append(b.left, x.Left)
	}
	charged := counts != nil || slices.ContainsFunc(covers, func(c planner.Cover) bool { return c.CutDual != 0 })
	for i, o := range v.s.Offerings {
		b.prices, b.asked = append(b.prices, int64(o.Price)), append(b.asked, int64(o.Price)+b.drawn(i))
	}
	if charged {
		// The machines cost what they draw, and the plan saves all that is left of the stocks.
		b.bound += b.saved()
		b.prices, b.duals = b.asked, make([]int64, len(v.s.Stocks))
	}
	for i, c := range covers {
		if c.CutDual == 0 {
			b.covers, b.needs = append(b.covers, c), append(b.needs, needs[i])
		} else if err := b.take(c, needs[i]); err != nil {
			return fmt.Errorf("cover %d: %w", i, err)
		}
	}
	if counts != nil {
		return b.counted(counts)
	}
	covers = b.covers
	for i := range v.s.Offerings {
		if slices.ContainsFunc(covers, func(c planner.Cover) bool { return c.Most[i] > 0 }) {
			b.offerings = append(b.offerings, i)
		}
	}
	slices.SortStableFunc(b.offerings, func(i, j int) int { return cmp.Compare(b.asked[j], b.asked[i]) })
	return b.try(0, 0, b.needs)
}

type buying struct {
	verifier  *verifier
	covers    []planner.Cover
	needs     []*big.Int
	offerings []int
	prices    []int64 // the remaining prices, by offering
	bound     int64   // the remaining bound
	steps     int
	// duals are those of the stocks, asked are the prices with the worth of what machines draw, and left is what is left of the stocks.
	duals, asked, left []int64
}

// drawn returns the worth of what a machine draws.
func (b *buying) drawn(offering int) int64 {
	sum := new(big.Int)
	for _, d := range b.verifier.s.Offerings[offering].Draws {
		x := new(big.Int).Mul(big.NewInt(b.duals[d.Stock]), big.NewInt(d.Amount))
		sum.Add(sum, x.Quo(x, big.NewInt(planner.DualScale)))
	}
	return sum.Int64()
}

// saved returns the worth of what is left of the stocks.
func (b *buying) saved() int64 {
	sum := new(big.Int)
	for i, y := range b.duals {
		x := new(big.Int).Mul(big.NewInt(y), big.NewInt(b.left[i]))
		sum.Add(sum, x.Add(x, big.NewInt(planner.DualScale-1)).Quo(x, big.NewInt(planner.DualScale)))
	}
	return sum.Int64()
}

// take subtracts the dual of a cover from the prices of its machines, and subtracts it from the bound once for each machine that the cover requires.
func (b *buying) take(c planner.Cover, need *big.Int) error {
	if c.CutDual < 0 {
		return errors.New("its dual is negative")
	}
	var most int64
	for i, m := range c.Most {
		if m <= 0 {
			continue
		}
		most = max(most, m)
		if b.prices[i] -= int64(c.CutDual); b.prices[i] <= 0 {
			return fmt.Errorf("nothing is left of the price of offering %d", i)
		}
	}
	if need.Sign() <= 0 || most == 0 {
		return nil
	}
	machines := new(big.Int).Sub(need, big.NewInt(1))
	machines.Quo(machines, big.NewInt(most)).Add(machines, big.NewInt(1))
	b.bound -= machines.Int64() * int64(c.CutDual)
	return nil
}

// remaining reports whether all needs are met, and whether one of them is too expensive to meet with the offerings from the i-th on.
func (b *buying) remaining(i int, price int64, needs []*big.Int) (met, hopeless bool) {
	met = true
	saved := b.saved()
	for r, need := range needs {
		if need.Sign() <= 0 {
			continue
		}
		met = false
		var least *big.Rat
		for _, o := range b.offerings[i:] {
			if m := b.covers[r].Most[o]; m > 0 {
				if x := new(big.Rat).Mul(big.NewRat(b.asked[o], m), new(big.Rat).SetInt(need)); least == nil || x.Cmp(least) < 0 {
					least = x
				}
			}
		}
		if least == nil || least.Cmp(new(big.Rat).SetInt64(b.bound-price-1+saved)) > 0 {
			return false, true
		}
	}
	return met, false
}

func (b *buying) try(i int, price int64, needs []*big.Int) error {
	met, hopeless := b.remaining(i, price, needs)
	if hopeless {
		return nil
	}
	if met {
		if price < b.bound {
			return fmt.Errorf("machines at %d keep all covers, the bound is %d", price, b.bound)
		}
		return nil
	}
	if i == len(b.offerings) {
		return nil
	}
	if b.steps--; b.steps < 0 {
		return errUnsettled
	}
	o := b.offerings[i]
	draw := func(n int64) {
		for _, d := range b.verifier.s.Offerings[o].Draws {
			b.left[d.Stock] -= n * d.Amount
		}
	}
	for n, most := int64(0), b.verifier.most(o, b.left); n <= most && price+n*b.prices[o] < b.bound; n++ {
		rest := make([]*big.Int, len(needs))
		met := true
		for r := range needs {
			rest[r] = new(big.Int).Sub(needs[r], new(big.Int).Mul(big.NewInt(n), big.NewInt(b.covers[r].Most[o])))
			met = met && rest[r].Sign() <= 0
		}
		draw(n)
		err := b.try(i+1, price+n*b.prices[o], rest)
		draw(-n)
		if err != nil {
			return err
		}
		if met {
			break
		}
	}
	return nil
}
