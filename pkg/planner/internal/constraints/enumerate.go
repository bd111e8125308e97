package constraints

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
)

const (
	// enumerable is the maximum number of pods for which all plans are tried.
	enumerable = 24
	// maxTries limits the places that are tried for all of these pods: some hundredths of a second. A search with less effort than usual tries one for each
	// stepsPerTry steps. A finished plan counts as checkTries of them.
	maxTries, stepsPerTry, checkTries = 40_000, 17, 20
)

// enumerate tries all plans for few pods under rules, by branch and bound over the place of each pod. It returns the best plan, which may be the given one,
// and whether no other is better. Rules among few pods are where the heuristics fail most: which class yields on a machine, and who goes first.
func (a *arranger) enumerate(s planner.Snapshot, plan planner.Plan) (planner.Plan, bool) {
	if pods := pack.CountPods(s); pods > enumerable || plan.Price == plan.Bound && len(plan.Unplaced) == 0 || !OnlyPrice(s) || a.stopped() {
		return plan, false
	}
	e := newEnumeration(s, plan, int(min(maxTries, a.solver.Steps/stepsPerTry)))
	e.place(0, pack.Cost{})
	if e.found == nil {
		return plan, e.tries > 0
	}
	// The pods without a place are planned once more in the room that is left, for their reasons.
	g := NewPartial(s)
	g.Fix(*e.found)
	rest := (&arranger{solver: a.solver, given: g.Snapshot, moves: a.moves}).arrange(g.Snapshot)
	g.Fix(rest)
	g.Plan.Unplaced = rest.Unplaced
	return g.Plan, e.tries > 0
}

// enumeration is a plan in progress, and the best one so far.
type enumeration struct {
	planner.Snapshot
	// offerings are the usable ones, the cheapest first.
	offerings []int
	// pods are in the order in which they get their places, with the class of each. at is the place of each, or -1 for none, and on its GPU there.
	pods    []string
	class   []int
	at, on  []int
	places  []place
	left    pack.Limits
	tallies []tally
	best    pack.Cost
	// found is the best plan that is better than the given one, without reasons for the pods that have no place.
	found *planner.Plan
	// tries is how many places may still be tried.
	tries int
}

// place is a machine: the nodes of the snapshot come first, then the machines to launch.
type place struct {
	index   int // of the node or the offering
	free    amount.Vector
	gpus    []planner.GPU
	quotas  []int64
	domains []int
}

// tally counts the placed pods of a rule by domain. The first entry is for places without a domain.
type tally struct {
	rule
	counted, asking, both []int64
}

func newEnumeration(s planner.Snapshot, plan planner.Plan, tries int) *enumeration {
	e := &enumeration{
		Snapshot: s, offerings: pack.UsableOfferings(s), left: pack.LimitsOf(s), tries: tries,
		best: pack.Cost{Left: int64(len(plan.Unplaced)), Price: int64(plan.Price), Machines: int64(len(plan.Launches))},
	}
	slices.SortStableFunc(e.offerings, func(i, j int) int {
		return cmp.Or(cmp.Compare(s.Offerings[i].Price, s.Offerings[j].Price), pack.CompareOfferings(s, i, j))
	})
	for i, n := range s.Nodes {
		e.places = append(e.places, e.newPlace(i, n.Free, n.GPUs, n.Quotas, n.Domains))
	}
	order := pack.ClassOrder(s)
	slices.SortStableFunc(order, func(i, j int) int { // Those that fit in the fewest places first.
		return cmp.Compare(len(s.Classes[i].Offerings)+len(s.Classes[i].Nodes), len(s.Classes[j].Offerings)+len(s.Classes[j].Nodes))
	})
	for _, c := range order {
		for _, pod := range s.Classes[c].Pods {
			e.pods, e.class = append(e.pods, pod), append(e.class, c)
		}
	}
	e.at, e.on = make([]int, len(e.pods)), make([]int, len(e.pods))
	for _, r := range newProblem(s).rules {
		n := 1 + r.domains
		if r.Topology == planner.PerNode {
			n = 1 + len(s.Nodes) + len(e.pods)
		}
		t := tally{r, make([]int64, n), make([]int64, n), make([]int64, n)}
		for d := range n - 1 {
			if r.Kind != planner.Apart { // The pods that are there already have taken the place from the classes.
				t.counted[d+1] = r.present(d)
			}
		}
		e.tallies = append(e.tallies, t)
	}
	return e
}

func (e *enumeration) newPlace(index int, free planner.Resources, gpus []planner.GPU, quotas []planner.Amount, domains []int) place {
	x := place{index: index, free: amount.VectorOf(free), gpus: gpus, domains: domains, quotas: make([]int64, len(e.Quotas))}
	for q := range e.Quotas {
		x.quotas[q] = e.Quotas[q].Each
	}
	for _, a := range quotas {
		x.quotas[a.Quota] = a.Count
	}
	return x
}

// place tries all places for the pods from the k-th on.
func (e *enumeration) place(k int, cost pack.Cost) {
	if e.tries--; e.tries <= 0 || !cost.Less(e.best) {
		return
	}
	if k == len(e.pods) {
		e.tries -= checkTries
		if plan := e.plan(cost); check.Plan(e.Snapshot, plan) == nil {
			e.best, e.found = cost, &plan
		}
		return
	}
	// Pods of one class are interchangeable, so none goes before the place of the previous one.
	from, class := 0, e.class[k]
	if k > 0 && e.class[k-1] == class {
		from = e.at[k-1]
	}
	if from >= 0 {
		for _, v := range e.Classes[class].Nodes {
			if v >= from {
				e.join(k, v, cost)
			}
		}
		for v := max(from, len(e.Nodes)); v < len(e.places); v++ {
			if slices.Contains(e.Classes[class].Offerings, e.places[v].index) {
				e.join(k, v, cost)
			}
		}
		e.launch(k, cost)
	}
	e.at[k], e.on[k] = -1, -1
	e.place(k+1, pack.Cost{Left: cost.Left + 1, Price: cost.Price, Machines: cost.Machines})
}

// launch tries a new machine of each offering for the k-th pod.
func (e *enumeration) launch(k int, cost pack.Cost) {
	for _, i := range e.offerings {
		o := &e.Offerings[i]
		charge := pack.ChargeOf(*o)
		if !slices.Contains(e.Classes[e.class[k]].Offerings, i) || !e.left.Admits(&charge) {
			continue
		}
		e.left.Launch(&charge)
		e.places = append(e.places, e.newPlace(i, o.Free, o.GPUs, o.Quotas, o.Domains))
		e.join(k, len(e.places)-1, pack.Cost{Left: cost.Left, Price: cost.Price + int64(o.Price), Machines: cost.Machines + 1})
		e.places = e.places[:len(e.places)-1]
		e.left.GiveBack(&charge)
	}
}

// join tries a place for the k-th pod, with each GPU that differs from the others, and goes on with the next pod.
func (e *enumeration) join(k, v int, cost pack.Cost) {
	class := &e.Classes[e.class[k]]
	before := e.places[v]
	request := amount.VectorOf(class.Requests)
	if before.free.Fit(request, 1) == 0 || slices.ContainsFunc(class.Quotas, func(a planner.Amount) bool { return before.quotas[a.Quota] < a.Count }) {
		return
	}
	if e.count(e.class[k], v, 1); e.allows(k, v) {
		after := &e.places[v]
		after.free.Take(request, 1)
		if len(class.Quotas) > 0 {
			after.quotas = slices.Clone(before.quotas)
			for _, a := range class.Quotas {
				if after.quotas[a.Quota] != planner.Unlimited {
					after.quotas[a.Quota] -= a.Count
				}
			}
		}
		e.at[k], e.on[k] = v, -1
		if class.GPUMemoryBytes == 0 {
			e.place(k+1, cost)
		}
		for g := range before.gpus {
			if x := before.gpus[g]; class.GPUMemoryBytes > 0 && x.Replicas >= class.Requests.Replicas && x.MemoryBytes >= class.GPUMemoryBytes && !slices.Contains(before.gpus[:g], x) {
				gpus := slices.Clone(before.gpus)
				gpus[g].Replicas -= class.Requests.Replicas
				gpus[g].MemoryBytes -= class.GPUMemoryBytes
				// The next pods change the places, which may be elsewhere in memory then.
				e.places[v].gpus, e.on[k] = gpus, g
				e.place(k+1, cost)
				e.at[k] = v
			}
		}
	}
	e.places[v] = before
	e.count(e.class[k], v, -1)
}

func (t *tally) domain(x *place, v int) int {
	if t.Topology == planner.PerNode {
		return v + 1
	}
	if t.Topology < len(x.domains) {
		return x.domains[t.Topology] + 1
	}
	return 0
}

// count adds a number of pods of a class at a place to the tallies.
func (e *enumeration) count(class, v int, pods int64) {
	for i := range e.tallies {
		t := &e.tallies[i]
		asks, counts := t.constrains(class), t.counts(class)
		if !asks && !counts {
			continue
		}
		d := t.domain(&e.places[v], v)
		if asks {
			t.asking[d] += pods
		}
		if counts {
			t.counted[d] += pods
		}
		if asks && counts {
			t.both[d] += pods
		}
	}
}

// allows reports whether the first pods, with the k-th one at a place, keep all rules that the pods after it cannot mend.
func (e *enumeration) allows(k, v int) bool {
	for i := range e.tallies {
		t := &e.tallies[i]
		asks := t.constrains(e.class[k])
		d := t.domain(&e.places[v], v)
		switch {
		case t.asking[d] == 0 || d == 0 && !asks:
		case d == 0:
			if t.Kind != planner.Apart {
				return false
			}
		case t.Kind == planner.Apart:
			if t.counted[d] > 1 || t.counted[d] == 1 && (t.asking[d] > 1 || t.both[d] == 0) {
				return false
			}
		case t.Kind == planner.Spread:
			if asks && t.eligible != nil && !t.eligible[d-1] || t.lacking(d) > int64(len(e.pods)-k-1) {
				return false
			}
		}
	}
	return true
}

// lacking returns how many more pods the other domains of a spread need before a domain may have those that it has.
func (t *tally) lacking(d int) int64 {
	if t.Topology == planner.PerNode || t.tooFew {
		return max(0, t.counted[d]-t.MaxSkew) * (enumerable + 1)
	}
	n := int64(0)
	for other := 1; other < len(t.counted); other++ {
		if t.eligible[other-1] {
			n += max(0, t.counted[d]-t.MaxSkew-t.counted[other])
		}
	}
	return n
}

// plan returns the plan of the current places.
func (e *enumeration) plan(cost pack.Cost) planner.Plan {
	plan := planner.Plan{Price: planner.MicroUSD(cost.Price)}
	for v := range e.places {
		pods, gpus := e.inside(v)
		switch {
		case v >= len(e.Nodes):
			plan.Launches = append(plan.Launches, planner.Launch{Offering: e.places[v].index, Pods: pods, GPUs: gpus})
		case len(pods) > 0:
			plan.Placements = append(plan.Placements, planner.Placement{Node: v, Pods: pods, GPUs: gpus})
		}
	}
	for k, pod := range e.pods {
		if e.at[k] < 0 {
			plan.Unplaced = append(plan.Unplaced, planner.Unplaced{Pod: pod, Refusal: planner.NextRound})
		}
	}
	return plan
}

// inside returns the pods at a place by name, and their GPUs. The GPUs are nil if no pod has one.
func (e *enumeration) inside(v int) (pods []string, gpus []int) {
	for k, pod := range e.pods {
		if e.at[k] != v {
			continue
		}
		var on []int
		if e.on[k] >= 0 {
			on = []int{e.on[k]}
		}
		pods, gpus = joined(pods, gpus, []string{pod}, on)
	}
	return pods, gpus
}
