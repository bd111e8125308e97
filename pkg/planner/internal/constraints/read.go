package constraints

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// mostPods limits the numbers of pods in a snapshot, so that no sum of them overflows.
const mostPods = 1 << 40

// sanitized returns the snapshot with valid classes and rules: indices are sorted and in range, and each pod occurs once. It removes and returns pods
// for which nothing may be planned.
func sanitized(s planner.Snapshot) (planner.Snapshot, []planner.Unplaced) {
	out := s
	out.Classes = slices.Clone(s.Classes)
	seen := map[string]bool{}
	for c := range out.Classes {
		class := &out.Classes[c]
		class.Offerings, class.Nodes = pack.InRange(class.Offerings, len(s.Offerings)), pack.InRange(class.Nodes, len(s.Nodes))
		class.Preferences = slices.Clone(class.Preferences)
		for i := range class.Preferences {
			w := &class.Preferences[i]
			w.Offerings, w.Nodes = pack.InRange(w.Offerings, len(s.Offerings)), pack.InRange(w.Nodes, len(s.Nodes))
		}
	}
	for _, c := range inNameOrder(s) {
		var pods []string
		for _, pod := range s.Classes[c].Pods {
			if !seen[pod] {
				seen[pod] = true
				pods = append(pods, pod)
			}
		}
		slices.Sort(pods)
		out.Classes[c].Pods = pods
	}
	why := map[int]planner.Refusal{}
	out.Rules = make([]planner.Rule, len(s.Rules))
	for i, r := range s.Rules {
		r.Classes, r.Counted = pack.InRange(r.Classes, len(s.Classes)), pack.InRange(r.Counted, len(s.Classes))
		if !understood(s, r) {
			for _, c := range r.Classes {
				why[c] = planner.Refusal{Reason: planner.ReasonUnsupported, Message: r.Name + " makes no sense as it was read: correct it, or report this"}
			}
			r = planner.Rule{Kind: planner.Apart, Topology: planner.PerNode}
		}
		r.Elsewhere = min(max(0, r.Elsewhere), mostPods)
		r.Present = slices.Clone(r.Present)
		for d := range r.Present {
			r.Present[d] = min(max(0, r.Present[d]), mostPods)
		}
		r.MaxSkew = min(r.MaxSkew, mostPods)
		out.Rules[i] = r
	}
	var refused []planner.Unplaced
	for c := range out.Classes {
		refusal, ok := why[c]
		if b := out.Classes[c].Blocked; b != nil {
			refusal, ok = *b, true
		}
		if ok {
			for _, pod := range out.Classes[c].Pods {
				refused = append(refused, planner.Unplaced{Pod: pod, Refusal: refusal})
			}
			out.Classes[c].Pods = nil
		}
	}
	return out, refused
}

// understood reports whether a rule is valid, so that it can be kept.
func understood(s planner.Snapshot, r planner.Rule) bool {
	switch {
	case r.Topology != planner.PerNode && (r.Topology < 0 || r.Topology >= len(s.Topologies)):
		return false
	case r.Kind == planner.Spread:
		return r.MaxSkew >= 1
	}
	return r.Kind == planner.Together || r.Kind == planner.Apart
}

// inNameOrder returns the indices of the classes in the order of their first pods.
func inNameOrder(s planner.Snapshot) []int {
	order := make([]int, len(s.Classes))
	first := make([]string, len(s.Classes))
	for c := range order {
		order[c] = c
		if len(s.Classes[c].Pods) > 0 {
			first[c] = slices.Min(s.Classes[c].Pods)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(first[a], first[b]) })
	return order
}

// rule is a planner.Rule that is prepared for planning. It has few classes and counted classes, so they are lists and not sets over all classes.
type rule struct {
	planner.Rule
	// constrained are the classes that the rule constrains, sorted by class. The classes that it counts are in Counted.
	constrained []constrained
	// domains is the number of domains, or 0 for PerNode. eligible reports which of them count for Spread. tooFew reports whether they are fewer than
	// MinDomains.
	domains  int
	eligible []bool
	tooFew   bool
}

// constrained is a class that a rule constrains until its pods have given up a number of preferences. If until is math.MaxInt, the rule always binds.
type constrained struct{ class, until int }

// until returns how many preferences pods of a class give up before the rule no longer constrains them. It is 0 if the rule does not constrain them at all.
func (r *rule) until(class int) int {
	if i, ok := slices.BinarySearchFunc(r.constrained, class, func(a constrained, class int) int { return cmp.Compare(a.class, class) }); ok {
		return r.constrained[i].until
	}
	return 0
}

// constrains reports whether the rule constrains pods of a class, possibly only as a preference.
func (r *rule) constrains(class int) bool { return r.until(class) > 0 }

// counts reports whether pods of a class are counted.
func (r *rule) counts(class int) bool {
	_, ok := slices.BinarySearch(r.Counted, class)
	return ok
}

// binds reports whether the rule constrains pods of a class that have given up a number of preferences.
func (r *rule) binds(class, given int) bool { return given < r.until(class) }

// always reports whether the rule constrains pods of a class whatever preferences they give up.
func (r *rule) always(class int) bool { return r.until(class) == math.MaxInt }

// binding reports whether the rule constrains pods of any class whatever preferences they give up.
func (r *rule) binding() bool {
	return slices.ContainsFunc(r.constrained, func(a constrained) bool { return a.until == math.MaxInt })
}

// classes returns the classes that are constrained or counted, sorted.
func (r *rule) classes() []int {
	all := slices.Clone(r.Counted)
	for _, a := range r.constrained {
		all = append(all, a.class)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (r *rule) present(d int) int64 {
	if d < 0 || d >= len(r.Present) {
		return 0
	}
	return r.Present[d]
}

// somewhere returns the number of counted pods that exist already.
func (r *rule) somewhere() int64 {
	n := r.Elsewhere
	for _, x := range r.Present {
		n += x
	}
	return n
}

// problem is a snapshot with its rules, prepared for planning.
type problem struct {
	planner.Snapshot
	rules []rule
	// about is, by class, the indices of the rules that constrain or count its pods, sorted.
	about [][]int
	// order is the classes by their first pods. topologies is the topologies by their keys.
	order      []int
	topologies []int
	// usable reports, by offering, whether it can be launched now.
	usable []bool
	// beginning reports whether the machine for the first pods of a Together rule is being chosen, so that they need not be with others.
	beginning bool
}

func newProblem(s planner.Snapshot) *problem {
	pr := &problem{Snapshot: s, order: inNameOrder(s), usable: make([]bool, len(s.Offerings))}
	for t := range s.Topologies {
		pr.topologies = append(pr.topologies, t)
	}
	slices.SortStableFunc(pr.topologies, func(x, y int) int { return cmp.Compare(s.Topologies[x].Key, s.Topologies[y].Key) })
	for i, o := range s.Offerings {
		pr.usable[i] = o.Pool >= 0 && o.Pool < len(s.Pools) && o.Unavailable == nil && s.Pools[o.Pool].Closed == nil &&
			o.Price > 0 && o.Price <= planner.MaxPrice && !exceeds(o.Physical, s.Pools[o.Pool].Remaining)
	}
	preferences := map[int][]constrained{}
	for c, class := range s.Classes {
		for w, preference := range class.Preferences {
			preferences[preference.Rule] = append(preferences[preference.Rule], constrained{c, w + 1})
		}
	}
	for i := range s.Rules {
		pr.rules = append(pr.rules, pr.read(i, preferences[i]))
	}
	pr.merge()
	pr.about = make([][]int, len(s.Classes))
	for i := range pr.rules {
		for _, c := range pr.rules[i].classes() {
			pr.about[c] = append(pr.about[c], i)
		}
	}
	return pr
}

// read returns a rule with the classes that prefer it.
func (pr *problem) read(i int, preference []constrained) rule {
	r := rule{Rule: pr.Rules[i]}
	for _, c := range r.Classes {
		r.constrained = append(r.constrained, constrained{c, math.MaxInt})
	}
	for _, a := range preference {
		r.constrain(a)
	}
	return pr.withDomains(r)
}

// constrain adds a class to those that the rule constrains, or extends how long it constrains the class.
func (r *rule) constrain(a constrained) {
	i, ok := slices.BinarySearchFunc(r.constrained, a.class, func(x constrained, class int) int { return cmp.Compare(x.class, class) })
	if ok {
		r.constrained[i].until = a.until
		return
	}
	r.constrained = slices.Insert(r.constrained, i, a)
}

// withDomains sets the fields of a rule that come from its topology.
func (pr *problem) withDomains(r rule) rule {
	if r.Topology == planner.PerNode {
		return r
	}
	r.domains = len(pr.Topologies[r.Topology].Domains)
	r.eligible = make([]bool, r.domains)
	for d := range r.eligible {
		r.eligible[d] = r.Eligible == nil
	}
	for _, d := range r.Eligible {
		if d >= 0 && d < r.domains {
			r.eligible[d] = true
		}
	}
	n := 0
	for _, ok := range r.eligible {
		if ok {
			n++
		}
	}
	r.tooFew = int64(n) < r.MinDomains
	return r
}

// merge merges rules with equal requirements for different classes, so that the pods of one are not treated as unrelated to the other.
func (pr *problem) merge() {
	var kept []rule
	known := map[string]int{}
	for _, r := range pr.rules {
		if len(r.constrained) == 0 {
			continue // It does not constrain any pods.
		}
		key := r.key()
		i, ok := known[key]
		if !ok {
			known[key] = len(kept)
			kept = append(kept, r)
			continue
		}
		for _, a := range r.constrained {
			a.until = max(a.until, kept[i].until(a.class))
			kept[i].constrain(a)
		}
		kept[i].Name = min(kept[i].Name, r.Name)
	}
	slices.SortStableFunc(kept, func(x, y rule) int { return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Kind, y.Kind)) })
	pr.rules = kept
}

// key returns a string that is equal for rules with equal requirements.
func (r *rule) key() string {
	present := trimmed(r.Present)
	key := make([]byte, 0, 64+4*len(r.Counted)+len(r.eligible)+8*len(present))
	key = fmt.Appendf(key, "%s %d %d %t %d ", r.Kind, r.Topology, r.MaxSkew, r.tooFew, r.Elsewhere)
	for _, c := range r.Counted {
		key = binary.LittleEndian.AppendUint32(key, uint32(c))
	}
	key = append(key, ' ')
	for _, ok := range r.eligible {
		key = append(key, byte(truth(ok)))
	}
	for _, n := range present {
		key = binary.LittleEndian.AppendUint64(key, uint64(n))
	}
	return string(key)
}

// trimmed returns counts without the zeros at the end, which have no meaning.
func trimmed(xs []int64) []int64 {
	for len(xs) > 0 && xs[len(xs)-1] == 0 {
		xs = xs[:len(xs)-1]
	}
	return xs
}

// domain returns the domain of a machine in a topology, or -1 if it has none.
func (pr *problem) domain(domains []int, topology int) int {
	if topology < 0 || topology >= len(domains) || domains[topology] >= len(pr.Topologies[topology].Domains) {
		return -1
	}
	return max(-1, domains[topology])
}

// labeled returns the offerings and nodes of a class that have the labels which its rules require whatever preferences it gives up.
func (pr *problem) labeled(class int) (offerings, nodes []int) {
	lacks := func(domains []int) bool {
		return slices.ContainsFunc(pr.about[class], func(i int) bool {
			r := &pr.rules[i]
			if r.Topology == planner.PerNode || !r.always(class) || r.Kind == planner.Apart {
				return false
			}
			d := pr.domain(domains, r.Topology)
			return d < 0 || r.Kind == planner.Spread && !r.eligible[d]
		})
	}
	for _, i := range pr.Classes[class].Offerings {
		if !lacks(pr.Offerings[i].Domains) {
			offerings = append(offerings, i)
		}
	}
	for _, i := range pr.Classes[class].Nodes {
		if !lacks(pr.Nodes[i].Domains) {
			nodes = append(nodes, i)
		}
	}
	return offerings, nodes
}

// exceeds reports whether the usage of a machine exceeds what remains of the limits.
func exceeds(p, remaining planner.Physical) bool {
	return p.MilliCPU > remaining.MilliCPU || p.MemoryBytes > remaining.MemoryBytes || p.GPUs > remaining.GPUs || p.Replicas > remaining.Replicas ||
		p.Nodes > remaining.Nodes
}

// offeredTimes returns an upper bound on the number of pods of a class that a machine of an offering holds.
func offeredTimes(s planner.Snapshot, c planner.Class, offering int) int64 {
	o := s.Offerings[offering]
	return times(s, c, o.Free, o.GPUs, o.Quotas)
}

// TimesOnNode returns an upper bound on the number of pods of a class that fit on a node.
func TimesOnNode(s planner.Snapshot, c planner.Class, n planner.Node) int64 {
	return times(s, c, n.Free, n.GPUs, n.Quotas)
}

// times returns how many pods of a class fit into what is free if they are alone. It is [Unlimited] if they request nothing.
func times(s planner.Snapshot, c planner.Class, free planner.Resources, gpus []planner.GPU, quotas []planner.Amount) int64 {
	n := planner.Unlimited
	fit := func(has, asks int64) {
		switch {
		case has < 0 || asks < 0:
			n = 0
		case asks > 0:
			n = min(n, has/asks)
		}
	}
	r := c.Requests
	fit(free.MilliCPU, r.MilliCPU)
	fit(free.MemoryBytes, r.MemoryBytes)
	fit(free.EphemeralBytes, r.EphemeralBytes)
	fit(free.Pods, r.Pods)
	fit(free.Replicas, r.Replicas)
	for _, q := range c.Quotas {
		if q.Quota >= 0 && q.Quota < len(s.Quotas) && q.Count > 0 {
			fit(max(0, alternatives.QuotaOf(s, quotas, q.Quota)), q.Count)
		}
	}
	if c.GPUMemoryBytes > 0 {
		var each int64
		for _, g := range gpus {
			k := max(0, g.MemoryBytes) / c.GPUMemoryBytes
			if r.Replicas > 0 {
				k = min(k, max(0, g.Replicas)/r.Replicas)
			}
			each = min(each+min(k, mostPods), mostPods)
		}
		n = min(n, each)
	}
	return n
}
