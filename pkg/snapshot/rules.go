package snapshot

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// rules builds the rules of a snapshot. Terms with the same demand on the same places share one rule.
type rules struct {
	view    *View
	rooms   []room
	running *running
	// waiting are the classes of the snapshot, with the same indices.
	waiting []*waitingClass
	// topologies has the index of each topology by label. domains has, for each topology, the index of each domain by value.
	topologies map[string]int
	domains    []map[string]int
	// made has the index of each rule by its content.
	made map[string]int
	// foundBy has the waiting classes that each selection matches.
	foundBy map[string][]int
	// eligibility caches the eligible domains of spread terms by eligibleKey.
	eligibility map[string][]int
	// roomOf has the index of each room by the name of its node.
	roomOf map[string]int
}

func (v *View) newRules(rooms []room, running *running, waiting []*waitingClass) *rules {
	r := &rules{
		view: v, rooms: rooms, running: running, waiting: waiting, topologies: map[string]int{}, made: map[string]int{}, roomOf: map[string]int{},
		foundBy: map[string][]int{}, eligibility: map[string][]int{},
	}
	for i, w := range waiting {
		for _, n := range w.matched {
			key := running.selections.keys[n]
			r.foundBy[key] = append(r.foundBy[key], i)
		}
	}
	for i := range rooms {
		if rooms[i].nodeName != "" {
			r.roomOf[rooms[i].nodeName] = i
		}
	}
	asked := map[string]bool{}
	for _, w := range waiting {
		for _, part := range [][]term{w.requiredTerms(), w.terms.affinity, w.terms.spread} {
			for i := range part {
				if !part[i].perNode() {
					asked[part[i].key] = true
				}
			}
		}
	}
	values := r.valuesOf(asked)
	for _, key := range slices.Sorted(maps.Keys(asked)) {
		r.addTopology(key, values[key])
	}
	if len(r.domains) == 0 {
		return r
	}
	for i := range v.Nodes {
		v.Nodes[i].Domains = r.domainsOf(rooms[i].labels)
	}
	for i := range v.Offerings {
		v.Snapshot.Offerings[i].Domains = r.domainsOf(v.Offerings[i].Labels)
	}
	return r
}

// addTopology adds a label with all values that nodes have or could have. Nodes that admit no pending pods also count: pods may run there, and the
// scheduler counts their domains for topology spread.
func (r *rules) addTopology(key string, values map[string]bool) {
	topology := planner.Topology{Key: key, Domains: slices.Sorted(maps.Keys(values))}
	index := make(map[string]int, len(values))
	for i, value := range topology.Domains {
		index[value] = i
	}
	r.topologies[key] = len(r.view.Topologies)
	r.domains = append(r.domains, index)
	r.view.Topologies = append(r.view.Topologies, topology)
}

// valuesOf returns the values of labels that nodes have or could have.
func (r *rules) valuesOf(asked map[string]bool) map[string]map[string]bool {
	values := map[string]map[string]bool{}
	note := func(labels map[string]string) {
		for key, value := range labels {
			if !asked[key] {
				continue
			}
			if values[key] == nil {
				values[key] = map[string]bool{}
			}
			values[key][value] = true
		}
	}
	if len(asked) == 0 {
		return values
	}
	for s := range r.running.index.Sites() {
		note(s.Node.Labels)
	}
	for i := range r.rooms {
		note(r.rooms[i].labels)
	}
	for _, o := range r.view.Offerings {
		note(o.Labels)
	}
	return values
}

func (r *rules) domainsOf(labels map[string]string) []int {
	domains := make([]int, len(r.domains))
	for i, topology := range r.view.Topologies {
		domains[i] = -1
		if value, ok := labels[topology.Key]; ok {
			domains[i] = r.domains[i][value]
		}
	}
	return domains
}

// placeClass limits the class to the places that its terms and the running pods allow, independent of the rest of the plan, and adds its rules and
// preferences. If no place is left, it blocks the class.
func (r *rules) placeClass(class int) {
	c, w := &r.view.Classes[class], r.waiting[class]
	if c.Blocked != nil || len(c.Offerings)+len(c.Nodes) == 0 {
		return
	}
	required := w.requiredTerms()
	for i := range required {
		t := &required[i]
		if t.kind == planner.Apart || t.perNode() {
			continue
		}
		offered := len(c.Offerings) > 0
		if r.keepPlaces(c, func(_ string, labels map[string]string) bool { _, ok := labels[t.key]; return ok }); offered && len(c.Offerings) == 0 {
			c.NoOffering = &planner.Refusal{Reason: planner.ReasonRule, Message: fmt.Sprintf("%s: no machine that could be launched has that label", t.name())}
		}
		if len(c.Offerings)+len(c.Nodes) == 0 {
			c.Blocked = &planner.Refusal{Reason: planner.ReasonRule, Message: fmt.Sprintf("%s: no machine that admits the pod has that label", t.name())}
			return
		}
	}
	offered := len(c.Offerings) > 0
	avoided := r.running.avoided(w.matched, slices.DeleteFunc(slices.Clone(w.terms.required), func(t term) bool { return t.kind != planner.Apart }))
	if r.keepPlaces(c, func(node string, labels map[string]string) bool { return !avoided.holds(node, labels) }); len(c.Offerings)+len(c.Nodes) == 0 {
		c.Blocked = &planner.Refusal{Reason: planner.ReasonRule, Message: fmt.Sprintf(
			"podAntiAffinity, its own or that of pods that run, keeps it out of every place (%s)", avoided.String())}
		return
	}
	if r.keepFromDaemons(c, w); len(c.Offerings)+len(c.Nodes) == 0 {
		c.Blocked = &planner.Refusal{Reason: planner.ReasonRule, Message: "podAntiAffinity, its own or that of a DaemonSet, parts it from a DaemonSet's pods, which run on " +
			"every machine that admits it: narrow its selector, or keep the DaemonSet off those machines"}
		return
	}
	if offered && len(c.Offerings) == 0 {
		c.NoOffering = &planner.Refusal{Reason: planner.ReasonRule, Message: "podAntiAffinity, its own, that of pods that run or that of a DaemonSet, keeps it off every machine that could be launched"}
	}
	for i := range required {
		r.addRule(class, &required[i], false)
	}
	r.addPreferences(class)
}

// keepFromDaemons removes the class's machines that will run a DaemonSet pod with which the class may not share a machine.
func (r *rules) keepFromDaemons(c *planner.Class, w *waitingClass) {
	if !r.running.mayAvoidDaemons(w) {
		return
	}
	repelled := func(daemons []*records.Demand, labels map[string]string) bool {
		return slices.ContainsFunc(daemons, func(d *records.Demand) bool { return r.running.isRepelledBy(w, d.Pod, labels) })
	}
	limitPlaces(c, func(i int) bool { return !repelled(r.view.Offerings[i].daemons, r.view.Offerings[i].Labels) },
		func(i int) bool { return !repelled(r.rooms[i].daemons, r.rooms[i].labels) })
}

// keepPlaces limits the class to the places for which good is true. The node name is "" for a machine that does not exist yet.
func (r *rules) keepPlaces(c *planner.Class, good func(node string, labels map[string]string) bool) {
	limitPlaces(c, func(i int) bool { return good("", r.view.Offerings[i].Labels) },
		func(i int) bool { return good(r.rooms[i].nodeName, r.rooms[i].labels) })
}

// limitPlaces limits the class to the offerings and nodes for which the functions return true.
func limitPlaces(c *planner.Class, offering, node func(i int) bool) {
	c.Offerings = slices.DeleteFunc(c.Offerings, func(i int) bool { return !offering(i) })
	c.Nodes = slices.DeleteFunc(c.Nodes, func(i int) bool { return !node(i) })
	if len(c.Offerings) == 0 {
		c.Offerings = nil
	}
	if len(c.Nodes) == 0 {
		c.Nodes = nil
	}
}

// addRule adds the class to the rule for one of its terms and returns the index of the rule. It returns -1 if the rule would restrict nothing. A preference
// has its own rule, even if other terms require the same.
func (r *rules) addRule(class int, t *term, preference bool) int {
	rule := planner.Rule{
		Kind: t.kind, Name: t.name(), Topology: planner.PerNode, Counted: r.countedClasses(t), MaxSkew: t.maxSkew, MinDomains: t.minDomains,
	}
	if !t.perNode() {
		rule.Topology = r.topologies[t.key]
	}
	if t.kind == planner.Apart && len(rule.Counted) == 0 {
		return -1 // Rules do not cover what running pods forbid.
	}
	if t.kind != planner.Apart {
		rule.Present, rule.Elsewhere = r.countRunning(class, t)
	}
	if t.kind == planner.Spread {
		if len(rule.Counted) == 0 && rule.Present == nil {
			return -1
		}
		rule.Eligible = r.eligible(class, t)
	}
	if preference && t.kind == planner.Together && len(rule.Counted) == 0 && rule.Present == nil {
		return -1 // No pod matches the preference.
	}
	id := fmt.Sprintf("%+v %t", rule, preference)
	index, ok := r.made[id]
	if !ok {
		index = len(r.view.Rules)
		r.made[id] = index
		r.view.Rules = append(r.view.Rules, rule)
	}
	if classes := &r.view.Rules[index].Classes; len(*classes) == 0 || (*classes)[len(*classes)-1] != class { // Classes are added in order.
		*classes = append(*classes, class)
	}
	return index
}

// countedClasses returns the indices of the waiting classes whose pods count for a term.
func (r *rules) countedClasses(t *term) []int {
	if t.nothing {
		return nil
	}
	if t.group != nil {
		var classes []int
		for i, w := range r.waiting {
			if w.group == t.group {
				classes = append(classes, i)
			}
		}
		return classes
	}
	return slices.Clone(r.foundBy[t.selection])
}

// countRunning counts the running pods that count for a term, by domain or by node of the snapshot. It is nil if there are none. elsewhere is the number of such
// pods on nodes that the snapshot does not have or, for an affinity, on nodes without the term's label that have the label of another required affinity
// term.
func (r *rules) countRunning(class int, t *term) (present []int64, elsewhere int64) {
	if t.nothing {
		return nil, 0
	}
	size := len(r.view.Nodes)
	if !t.perNode() {
		size = len(r.view.Topologies[r.topologies[t.key]].Domains)
	}
	var count []int64
	for s, n := range r.runningByNode(t) {
		node := s.Node
		if !r.waiting[class].countsOn(t, node.Name, nodelabels.Labels{Known: node.Labels}, node.Spec.Taints) {
			continue
		}
		at, ok := r.domainOf(t, node)
		switch {
		case ok:
			if count == nil {
				count = make([]int64, size)
			}
			count[at] += n
		case t.perNode(), t.kind == planner.Together && t.group == nil && r.waiting[class].followsPodsOn(node):
			elsewhere += n
		}
	}
	return count, elsewhere
}

// runningByNode returns the number of running pods that count for a term, by node.
func (r *rules) runningByNode(t *term) map[*facts.Site]int64 {
	if t.group == nil {
		return r.running.countByNode(t.selection)
	}
	counts := map[*facts.Site]int64{}
	for _, pod := range t.group.bound {
		if s := r.running.index.Site(pod.Spec.NodeName); s != nil {
			counts[s]++
		}
	}
	return counts
}

// requiredTerms returns the required terms of the class, with that of its group.
func (w *waitingClass) requiredTerms() []term {
	if w.group == nil || w.group.topology == "" {
		return w.terms.required
	}
	return append(slices.Clip(w.terms.required), term{kind: planner.Together, field: "topology of " + w.group.name, key: w.group.topology, group: w.group})
}

// followsPodsOn reports whether a node is in a domain of any of the class's required affinity terms. The scheduler exempts the first pod of a group from its
// affinity only if it finds no matching pods for any of the terms.
func (w *waitingClass) followsPodsOn(node *corev1.Node) bool {
	return slices.ContainsFunc(w.terms.required, func(t term) bool {
		_, ok := node.Labels[t.key]
		return t.kind == planner.Together && ok
	})
}

// domainOf returns the index of the domain of a node. It returns false if the node has none.
func (r *rules) domainOf(t *term, node *corev1.Node) (int, bool) {
	if t.perNode() {
		i, ok := r.roomOf[node.Name]
		return i, ok
	}
	value, ok := node.Labels[t.key]
	return r.domains[r.topologies[t.key]][value], ok
}

// countsOn reports whether pods on a node with the labels and taints count for a term of the class. For spread terms, the scheduler ignores nodes that lack
// the label of one of the pod's spread terms. Machines that do not exist yet have the name "", and will have the hostname label.
func (w *waitingClass) countsOn(t *term, name string, labels nodelabels.Labels, taints []corev1.Taint) bool {
	if t.kind == planner.Spread && slices.ContainsFunc(w.terms.required, func(other term) bool {
		_, ok := labels.Known[other.key]
		return other.kind == planner.Spread && !ok && (name != "" || !other.perNode())
	}) {
		return false
	}
	return (!t.byAffinity || w.demand.Matches(name, labels)) && (!t.byTaints || w.demand.Untolerated(taints, facts.KeepsPodsAway) == nil)
}

// eligible returns the domains that count for a spread term, or nil if all count. They are the domains of existing nodes that the scheduler counts, and
// those of all offerings, including the ones for other pods, because the scheduler will count them once they exist.
func (r *rules) eligible(class int, t *term) []int {
	if t.perNode() {
		return nil
	}
	key := r.waiting[class].eligibleKey(t)
	if known, ok := r.eligibility[key]; ok {
		return slices.Clone(known)
	}
	found := r.findEligible(class, t)
	r.eligibility[key] = found
	return slices.Clone(found)
}

// eligibleKey returns a key that is equal only if the same domains are eligible.
func (w *waitingClass) eligibleKey(t *term) string {
	var keys []string
	for i := range w.terms.required {
		if other := &w.terms.required[i]; other.kind == planner.Spread {
			keys = append(keys, other.key)
		}
	}
	slices.Sort(keys)
	return fmt.Sprintf("%s %t %t %q %s", t.key, t.byAffinity, t.byTaints, slices.Compact(keys), w.onNodes)
}

// findEligible finds the domains that count for a spread term of a class among all nodes and offerings.
func (r *rules) findEligible(class int, t *term) []int {
	topology := r.topologies[t.key]
	eligible := make([]bool, len(r.domains[topology]))
	note := func(name string, labels nodelabels.Labels, taints []corev1.Taint) {
		if value, ok := labels.Known[t.key]; ok && !eligible[r.domains[topology][value]] && r.waiting[class].countsOn(t, name, labels, taints) {
			eligible[r.domains[topology][value]] = true
		}
	}
	for s := range r.running.index.Sites() {
		note(s.Name, nodelabels.Labels{Known: s.Node.Labels}, s.Node.Spec.Taints)
	}
	for i := range r.rooms {
		note(r.rooms[i].nodeName, r.rooms[i].nodeLabels(), r.rooms[i].taints)
	}
	for i, o := range r.view.Offerings {
		note("", o.nodeLabels(), r.view.Pools[r.view.Snapshot.Offerings[i].Pool].NodePool.Spec.Template.Spec.Taints)
	}
	if !slices.Contains(eligible, false) {
		return nil
	}
	list := []int{}
	for i, is := range eligible {
		if is {
			list = append(list, i)
		}
	}
	return list
}
