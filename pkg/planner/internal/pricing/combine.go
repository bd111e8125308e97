package pricing

import (
	"cmp"
	"math/bits"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// Combination finds the most valuable load of a machine with several equal GPUs by combining patterns, the loads of one GPU. It is scratch space that
// is used for one machine after the other.
//
// At the duals of the relaxation, the value of a pattern has an upper bound. The slack of a pattern is its distance from that bound. A load is worth
// less than the bound of the relaxation by the slack of all its patterns and the price of what they leave unused. A load that is worth more than the
// floor therefore consists of patterns with little total slack. These are enumerated, and joined for twice as many GPUs in each step. Dominated ones
// are dropped, like labels in shortest paths with resource constraints. If there are too many, those with the most slack are left out, and the bound
// includes their possible worth.
type Combination struct {
	relaxation *gpuRelaxation
	items      []combined
	shared     []int // the dimensions that all GPUs share and that can run out
	limits     [maxPlanes]int64
	planes     []plane

	// byMemory and byReplicas bound the slack that the items from an index on can use up in the free part of a GPU.
	byMemory, byReplicas table

	scarce scarce
	parts  [][]subload // of one GPU, of two, of four
	picks  []int32     // the items of patterns, one pattern after another
	stairs [][2]int64
	joined [][2]int32 // the parts of one step to join
	found  []subload
	most   int   // the maximum number of parts of one step
	open   int64 // the least slack of what was left out
	steps  int

	places []int32 // scratch of sort
}

// plane is one set of prices of the shared resources and of scarce pods, with the upper bounds on the value of one GPU and of the machine at these prices.
type plane struct {
	paid        [amount.Dims]int64
	scarcity    []int64 // of each shape
	most, upper int64
}

// combined is an item, the slack that one of its pods uses up at each plane, and its size in the units of the tables, rounded down.
type combined struct {
	item            *item
	gain            [maxPlanes]int64
	memory, replica int
	pod             pods // one pod of it, if its pods are scarce
}

// subload is the load of some of the GPUs. It joins the parts a and b of the previous step. For one GPU, it is the picks from a to b.
type subload struct {
	value int64
	use   amount.Vector
	slack [maxPlanes]int64
	pods  pods
	a, b  int32
}

const (
	// maxPlanes is the maximum number of sets of prices. A part is dropped if it is not useful at one of them.
	maxPlanes = 4
	// memoryUnits and replicaUnits are the maximum numbers of units into which the tables divide a GPU.
	memoryUnits  = 256
	replicaUnits = 64
	// keepParts, walkParts and joinParts are multiples of the intended number of parts. keepParts limits the parts before dominated ones are dropped,
	// walkParts the patterns of one GPU that are started, and joinParts the pairs that are examined.
	keepParts = 3
	walkParts = 40
	joinParts = 400
)

// table is a one-dimensional knapsack: the maximum gain of the items from the i-th on in a number of units.
type table struct {
	units int
	gain  []int64
}

func (t *table) at(i, free int) int64 { return t.gain[i*(t.units+1)+free] }

func (t *table) fill(units int, items []combined, size func(*combined) int) {
	t.units = units
	n := (len(items) + 1) * (units + 1)
	t.gain = slices.Grow(t.gain[:0], n)[:n]
	clear(t.gain[len(items)*(units+1):])
	for i := range slices.Backward(items) {
		it := &items[i]
		row := t.gain[i*(units+1) : (i+1)*(units+1)]
		copy(row, t.gain[(i+1)*(units+1):])
		gain, w := it.gain[0], size(it)
		switch {
		case gain <= 0:
		case w == 0:
			all := amount.MulDiv(gain, int64(it.item.most), 1)
			for m := range row {
				row[m] = amount.Saturating(row[m], all)
			}
		default:
			for m := w; m <= units; m++ {
				row[m] = max(row[m], amount.Saturating(row[m-w], gain))
			}
		}
	}
}

// combine searches for loads of a machine that are worth more than the floor, at the worths and prices of the last call of Bound. It returns the loads
// found, the best first, and an upper bound on the value of any load. It does not check constraints of the whole machine nor, if very many shapes are
// scarce, the demand for all of them. The caller has to check the loads.
func (c *Combination) combine(g *gpuRelaxation, values []int64, demand pack.Load, floor int64, most int) (loads []pack.Load, upper int64) {
	c.relaxation, c.steps, c.most = g, 0, most
	c.planes = c.relaxation.best(maxPlanes)
	upper = c.planes[0].upper
	if upper <= floor {
		return nil, floor
	}
	c.limit(floor)
	c.open = upper - floor
	c.prepare(values, demand)
	c.enumerate()
	last := bits.Len(uint(c.relaxation.count)) - 2
	for i := range last {
		c.double(i)
	}
	best := c.finish(c.parts[last], floor)
	for _, p := range slices.Backward(c.found) {
		l := make(pack.Load, len(values))
		c.unfold(last, p.a, l)
		c.unfold(last, p.b, l)
		loads = append(loads, l)
	}
	return loads, max(best, upper-c.open)
}

// limit sets the slack from which on parts are useless for a floor.
func (c *Combination) limit(floor int64) {
	for j, p := range c.planes {
		c.limits[j] = p.upper - floor
	}
}

func (c *Combination) prepare(values []int64, demand pack.Load) {
	gpu := &c.relaxation.whole.capacity.Gpus[0]
	c.items, c.shared = c.items[:0], c.shared[:0]
	for i := range c.relaxation.whole.items {
		it := &c.relaxation.whole.items[i]
		it.most = min(it.fits, demand[it.shape])
		if values[it.shape] <= 0 || it.most == 0 {
			continue
		}
		x := combined{item: it}
		x.item.value = values[it.shape]
		for j, p := range c.planes {
			x.gain[j] = x.item.value - p.scarcity[it.shape]
			for d, w := range it.scaled {
				if p.paid[d] > 0 && w > 0 {
					x.gain[j] -= amount.MulDiv(p.paid[d], w, unit)
				}
			}
		}
		x.memory = int(amount.MulDiv(it.request[amount.GPUMemory], memoryUnits, gpu.MemoryBytes))
		if r := it.request[amount.Replicas]; r > 0 {
			x.replica = int(amount.MulDiv(r, min(replicaUnits, gpu.Replicas), gpu.Replicas))
		}
		c.items = append(c.items, x)
	}
	slices.SortStableFunc(c.items, func(a, b combined) int {
		return cmp.Compare(b.item.request[amount.GPUMemory], a.item.request[amount.GPUMemory])
	})
	for _, d := range []int{amount.CPU, amount.Memory, amount.Ephemeral, amount.Pods} {
		if slices.ContainsFunc(c.items, func(x combined) bool { return x.item.request[d] > 0 }) {
			c.shared = append(c.shared, d)
		}
	}
	c.scarce.begin()
	for i := range c.items {
		x := &c.items[i]
		if demand[x.item.shape] < x.item.filled {
			x.pod = c.scarce.add(demand[x.item.shape])
		}
	}
	c.byMemory.fill(memoryUnits, c.items, func(x *combined) int { return x.memory })
	c.byReplicas.fill(int(min(replicaUnits, gpu.Replicas)), c.items, func(x *combined) int { return x.replica })
	c.steps += len(c.items) * memoryUnits / 10
}

// enumerate makes the parts of one GPU: all patterns with less slack than the limit. If there are too many, it halves the limit until there are not.
func (c *Combination) enumerate() {
	if len(c.parts) == 0 {
		c.parts = append(c.parts, nil)
	}
	var none subload
	for j, p := range c.planes {
		none.slack[j] = p.most
	}
	e := enumeration{combination: c, counts: make([]int32, len(c.items))}
	for e.below = c.limits[0]; ; e.below /= 2 {
		c.parts[0], c.picks = c.parts[0][:0], c.picks[:0]
		e.gpu, e.looks = c.relaxation.whole.capacity.Gpus[0], walkParts*c.most
		if e.below == 0 || e.from(0, none, c.byMemory.units, c.byReplicas.units) {
			break
		}
		c.open = min(c.open, e.below/2)
	}
	c.shared = slices.DeleteFunc(c.shared, func(d int) bool {
		var most int64
		for i := range c.parts[0] {
			most = max(most, c.parts[0][i].use[d])
		}
		return most <= c.relaxation.whole.capacity.Free[d]/int64(c.relaxation.count)
	})
	c.parts[0] = c.undominated(c.parts[0])
}

// enumeration enumerates patterns depth first.
type enumeration struct {
	combination *Combination
	below       int64       // the least slack that is too much
	looks       int         // how many patterns may still be started
	gpu         planner.GPU // what is left of it
	counts      []int32
	stack       []int32
}

// from records a pattern and continues with all patterns that have more of the items from the i-th on. It returns false if there are too many.
func (e *enumeration) from(i int, p subload, memory, replicas int) bool {
	if !e.note(p) {
		return false
	}
	ok := true
	for ; i < len(e.combination.items) && ok; i++ {
		x := &e.combination.items[i]
		if x.memory > memory || x.replica > replicas || e.counts[i] == x.item.most || !pack.GpuHolds(&e.gpu, x.item.of) {
			continue
		}
		m, r := memory-x.memory, replicas-x.replica
		if p.slack[0]-x.gain[0]-min(e.combination.byMemory.at(i, m), e.combination.byReplicas.at(i, r)) >= e.below {
			continue
		}
		next, fits := p, true
		next.value += x.item.value
		next.pods.add(&x.pod)
		for _, d := range e.combination.shared {
			next.use[d] += x.item.request[d]
			fits = fits && next.use[d] <= e.combination.relaxation.whole.capacity.Free[d]
		}
		if !fits {
			continue
		}
		for j := range e.combination.planes {
			next.slack[j] -= x.gain[j]
		}
		pack.TakeGPU(&e.gpu, x.item.of, 1)
		e.counts[i]++
		e.stack = append(e.stack, int32(i))
		ok = e.from(i, next, m, r)
		e.stack = e.stack[:len(e.stack)-1]
		e.counts[i]--
		pack.TakeGPU(&e.gpu, x.item.of, -1)
	}
	return ok
}

// note adds the pattern of the stack as a part if it is useful. It returns false if too many patterns were started or kept.
func (e *enumeration) note(p subload) bool {
	e.combination.steps++
	if e.looks--; e.looks < 0 {
		return false
	}
	if p.slack[0] >= e.below || !e.combination.useful(&p) {
		return true
	}
	if len(e.combination.parts[0]) == keepParts*e.combination.most {
		return false
	}
	p.a = int32(len(e.combination.picks))
	e.combination.picks = append(e.combination.picks, e.stack...)
	p.b = int32(len(e.combination.picks))
	e.combination.parts[0] = append(e.combination.parts[0], p)
	return true
}

func (c *Combination) useful(p *subload) bool {
	for j := range c.planes {
		if p.slack[j] >= c.limits[j] {
			return false
		}
	}
	return true
}

// undominated drops dominated parts, and sorts the others by slack. A dominating part is worth no less and uses no more of anything. Parts are examined in
// order of value, the greatest first, with the resource use of the earlier ones kept as a staircase. If more than two dimensions can run out, it only sorts.
func (c *Combination) undominated(parts []subload) []subload {
	c.steps += len(parts)
	kept := parts
	switch {
	case c.scarce.any():
		kept = c.unlike(parts)
	case len(c.shared) <= 2:
		x, y := amount.CPU, amount.CPU
		if len(c.shared) > 0 {
			x, y = c.shared[0], c.shared[len(c.shared)-1]
		}
		c.sort(parts, func(a, b *subload) int {
			if a.value != b.value {
				return cmp.Compare(b.value, a.value)
			}
			return cmp.Or(cmp.Compare(a.use[x], b.use[x]), cmp.Compare(a.use[y], b.use[y]), cmp.Compare(a.a, b.a), cmp.Compare(a.b, b.b))
		})
		kept, c.stairs = parts[:0], c.stairs[:0]
		for i := range parts {
			if c.step(parts[i].use[x], parts[i].use[y]) {
				kept = append(kept, parts[i])
			}
		}
	}
	c.sort(kept, func(a, b *subload) int { return cmp.Compare(a.slack[0], b.slack[0]) })
	return kept
}

// sort sorts parts stably. Parts are large, so it sorts their indices first.
func (c *Combination) sort(parts []subload, compare func(a, b *subload) int) {
	c.places = c.places[:0]
	for i := range parts {
		c.places = append(c.places, int32(i))
	}
	slices.SortFunc(c.places, func(i, j int32) int {
		if d := compare(&parts[i], &parts[j]); d != 0 {
			return d
		}
		return cmp.Compare(i, j)
	})
	for from := range parts {
		// This is one cycle of the permutation.
		first, at := parts[from], from
		for i := int(c.places[at]); i != from; i = int(c.places[at]) {
			parts[at], c.places[at] = parts[i], int32(at)
			at = i
		}
		parts[at], c.places[at] = first, int32(at)
	}
}

// unlike is undominated if some shapes are scarce. A dominating part also uses no more of the scarce pods.
func (c *Combination) unlike(parts []subload) []subload {
	c.sort(parts, func(a, b *subload) int {
		if a.value != b.value {
			return cmp.Compare(b.value, a.value)
		}
		return cmp.Or(cmp.Compare(a.a, b.a), cmp.Compare(a.b, b.b))
	})
	kept := parts[:0]
	for i := range parts {
		replaced := false
		for j := len(kept) - 1; j >= max(0, len(kept)-maxCompared) && !replaced; j-- {
			replaced = c.dominates(&kept[j], &parts[i])
		}
		if !replaced {
			kept = append(kept, parts[i])
		}
	}
	c.steps += len(parts) * maxCompared / 10
	return kept
}

// maxCompared is the number of parts that a part is compared with.
const maxCompared = 50

// dominates reports whether by uses no more of what is shared than p, and has at most as many pods of each scarce shape.
func (c *Combination) dominates(by, p *subload) bool {
	for _, d := range c.shared {
		if by.use[d] > p.use[d] {
			return false
		}
	}
	return c.scarce.under(&by.pods, &p.pods)
}

// step adds a resource use to the staircase. It returns false if the staircase has one that is no larger in both dimensions.
func (c *Combination) step(x, y int64) bool {
	at, _ := slices.BinarySearchFunc(c.stairs, x, func(s [2]int64, x int64) int {
		if s[0] <= x {
			return -1
		}
		return 1
	})
	if at > 0 && c.stairs[at-1][1] <= y {
		return false
	}
	to := at
	for to < len(c.stairs) && c.stairs[to][1] >= y {
		to++
	}
	if at > 0 && c.stairs[at-1][0] == x {
		at--
	}
	c.stairs = slices.Replace(c.stairs, at, to, [2]int64{x, y})
	return true
}

// double makes the parts of twice as many GPUs as those of the i-th step.
func (c *Combination) double(i int) {
	if len(c.parts) < i+2 {
		c.parts = append(c.parts, nil)
	}
	for below := c.limits[0]; ; below /= 2 {
		if below == 0 || c.pairs(i, below) {
			break
		}
		c.open = min(c.open, below/2)
	}
	parts := slices.Grow(c.parts[i+1][:0], len(c.joined))
	for _, x := range c.joined {
		parts = append(parts, c.join(c.parts[i], x[0], x[1]))
	}
	c.parts[i+1] = c.undominated(parts)
}

// pairs finds the pairs of parts of the i-th step whose total slack is less than below. It returns false if there are too many.
func (c *Combination) pairs(i int, below int64) bool {
	from := c.parts[i]
	c.joined = c.joined[:0]
	looks := joinParts * c.most
	defer func() { c.steps += joinParts*c.most - looks }()
	for a := range from {
		for b := a; b < len(from) && from[a].slack[0]+from[b].slack[0] < below; b++ {
			if looks--; looks < 0 {
				return false
			}
			if !c.fit(&from[a], &from[b]) {
				continue
			}
			if len(c.joined) == keepParts*c.most {
				return false
			}
			c.joined = append(c.joined, [2]int32{int32(a), int32(b)})
		}
	}
	return true
}

// finish joins halves of the machine, raises the floor to the best value found, and returns it.
func (c *Combination) finish(halves []subload, floor int64) int64 {
	c.found = c.found[:0]
	looks := joinParts * c.most
	for a := range halves {
		if looks < 0 {
			c.open = min(c.open, 2*halves[a].slack[0])
			break
		}
		for b := a; b < len(halves) && halves[a].slack[0]+halves[b].slack[0] < c.limits[0]; b++ {
			looks--
			if halves[a].value+halves[b].value <= floor || !c.fit(&halves[a], &halves[b]) {
				continue
			}
			if len(c.found) > keepMore {
				c.found = slices.Delete(c.found, 0, 1)
			}
			c.found = append(c.found, c.join(halves, int32(a), int32(b)))
			floor = halves[a].value + halves[b].value
			c.limit(floor)
		}
	}
	c.steps += joinParts*c.most - looks
	return floor
}

// fit reports whether two parts fit together on the machine and may still be useful.
func (c *Combination) fit(a, b *subload) bool {
	for _, d := range c.shared {
		if b.use[d] > c.relaxation.whole.capacity.Free[d]-a.use[d] {
			return false
		}
	}
	for j := range c.planes {
		if a.slack[j]+b.slack[j] >= c.limits[j] {
			return false
		}
	}
	return c.scarce.has(&a.pods, &b.pods)
}

func (c *Combination) join(from []subload, a, b int32) subload {
	x, y := &from[a], &from[b]
	p := subload{value: x.value + y.value, a: a, b: b}
	for j := range c.planes {
		p.slack[j] = x.slack[j] + y.slack[j]
	}
	p.pods = x.pods
	p.pods.add(&y.pods)
	for _, d := range c.shared {
		p.use[d] = x.use[d] + y.use[d]
	}
	return p
}

// unfold adds the pods of a part of the i-th step to a load.
func (c *Combination) unfold(i int, at int32, l pack.Load) {
	p := &c.parts[i][at]
	if i == 0 {
		for _, x := range c.picks[p.a:p.b] {
			l[c.items[x].item.shape]++
		}
		return
	}
	c.unfold(i-1, p.a, l)
	c.unfold(i-1, p.b, l)
}
