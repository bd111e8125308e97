package snapshot

import (
	"iter"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// running has the running pods, for rules that count them: they are bound to an existing node, have not ended, and are neither being deleted nor moving.
type running struct {
	*facts.Cluster
	index      *facts.Index
	selections *selections
	// moving has the number of moving pods of kin by node, by the keys of their namespace and kin. These do not count.
	moving map[string]map[string]int
	// repels has the anti-affinity terms of running pods by the selection that matches the pods that they exclude.
	repels map[string][]repulsion
	// daemons has the anti-affinity terms of DaemonSet pods by the name of the DaemonSet.
	daemons map[string][]term
	// daemonsFound has the selections that match a DaemonSet pod. daemonsRepel has the selections of anti-affinity terms of DaemonSet pods. Both are
	// computed on first use.
	daemonsFound map[int]bool
	daemonsRepel map[string]bool
	// counts has the number of pods that a selection matches on each node.
	counts map[string]map[*facts.Site]int64
}

// repulsion is an anti-affinity term of running pods.
type repulsion struct {
	term term
	kin  *facts.Kin
}

func newRunning(c *facts.Cluster, shapes *shapes, moving moving) *running {
	r := &running{
		Cluster: c, index: c.Indexed(), selections: &shapes.selections, moving: map[string]map[string]int{}, repels: map[string][]repulsion{},
		daemons: map[string][]term{}, counts: map[string]map[*facts.Site]int64{},
	}
	for i := range c.DaemonSets {
		c.BeginVisit("DaemonSet", &c.DaemonSets[i])
		pod := records.DaemonPod(&c.DaemonSets[i])
		if terms := antiAffinity(c, pod, r.selections); len(terms) > 0 {
			r.daemons[facts.PodName(pod)] = terms
		}
	}
	for pod := range moving {
		if facts.IsCounted(pod) {
			key := pod.Namespace + "\x00" + facts.KinKey(pod)
			if r.moving[key] == nil {
				r.moving[key] = map[string]int{}
			}
			r.moving[key][pod.Spec.NodeName]++
		}
	}
	for _, k := range r.index.Repellers() {
		c.BeginVisit("Pod", k.Pod)
		for _, t := range antiAffinity(c, k.Pod, r.selections) {
			r.repels[t.selection] = append(r.repels[t.selection], repulsion{t, k})
		}
	}
	return r
}

// of returns the nodes on which kin run, with their number.
func (r *running) of(k *facts.Kin) iter.Seq2[*facts.Site, int64] {
	return func(yield func(*facts.Site, int64) bool) {
		moving := r.moving[k.Pod.Namespace+"\x00"+k.Key]
		for _, n := range k.On.Numbers {
			s := r.index.Site(n.Node)
			if stay := n.Pods - moving[n.Node]; s != nil && stay > 0 && !yield(s, int64(stay)) {
				return
			}
		}
	}
}

// on returns the number of pods that a selection matches, by node.
func (r *running) on(selection string) map[*facts.Site]int64 {
	if known, ok := r.counts[selection]; ok {
		return known
	}
	counts := map[*facts.Site]int64{}
	all := r.selections.byKey[selection]
	var namespaces []string
	if len(all) > 0 {
		namespaces = all[0].namespaces
	}
	for k := range r.index.KinIn(namespaces) {
		if !slices.ContainsFunc(all, func(one selector) bool { return !one.finds(k.Pod) }) {
			for s, n := range r.of(k) {
				counts[s] += n
			}
		}
	}
	r.counts[selection] = counts
	return counts
}

// avoided returns the places that running pods forbid to pods that the selections in found match and that have the terms.
func (r *running) avoided(found []int, terms []term) avoided {
	a := avoided{nodes: map[string]bool{}, domains: map[string]map[string]bool{}}
	for _, i := range found {
		repels := r.repels[r.selections.keys[i]]
		for i := range repels {
			for s := range r.of(repels[i].kin) {
				a.add(&repels[i].term, s.Node)
			}
		}
	}
	for i := range terms {
		for s := range r.on(terms[i].selection) {
			a.add(&terms[i], s.Node)
		}
	}
	return a
}

// repelled reports whether anti-affinity, of the class or of a DaemonSet pod, separates the two on a machine with the labels.
func (r *running) repelled(w *waitingClass, daemon *corev1.Pod, labels map[string]string) bool {
	parts := func(t *term, found []int) bool {
		_, ok := labels[t.key]
		return t.kind == planner.Apart && (ok || t.perNode()) && r.selections.finds(found, t.selection)
	}
	return slices.ContainsFunc(w.terms.required, func(t term) bool { return parts(&t, r.selections.of(daemon)) }) ||
		slices.ContainsFunc(r.daemons[facts.PodName(daemon)], func(t term) bool { return parts(&t, w.found) })
}

// mindsDaemons reports whether anti-affinity may separate the class and a DaemonSet pod on any machine.
func (r *running) mindsDaemons(w *waitingClass) bool {
	if r.daemonsFound == nil {
		r.daemonsFound = map[int]bool{}
		for i := range r.DaemonSets {
			for _, n := range r.selections.of(records.DaemonPod(&r.DaemonSets[i])) {
				r.daemonsFound[n] = true
			}
		}
		r.daemonsRepel = map[string]bool{}
		for _, terms := range r.daemons {
			for i := range terms {
				r.daemonsRepel[terms[i].selection] = true
			}
		}
	}
	return slices.ContainsFunc(w.terms.required, func(t term) bool { return t.kind == planner.Apart && r.daemonsFound[r.selections.number[t.selection]] }) ||
		slices.ContainsFunc(w.found, func(n int) bool { return r.daemonsRepel[r.selections.keys[n]] })
}

// avoided holds places that are forbidden to pods: nodes by name, and domains by label and value.
type avoided struct {
	nodes   map[string]bool
	domains map[string]map[string]bool
}

func (a *avoided) add(t *term, node *corev1.Node) {
	if t.perNode() {
		a.nodes[node.Name] = true
		return
	}
	if domain, ok := node.Labels[t.key]; ok {
		if a.domains[t.key] == nil {
			a.domains[t.key] = map[string]bool{}
		}
		a.domains[t.key][domain] = true
	}
}

// holds reports whether a node, or a machine with the labels that has no node yet, is one of the places.
func (a *avoided) holds(node string, labels map[string]string) bool {
	if a.nodes[node] {
		return true
	}
	for key, domains := range a.domains {
		if domain, ok := labels[key]; ok && domains[domain] {
			return true
		}
	}
	return false
}

// String returns the labels and values, and the number of nodes.
func (a *avoided) String() string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(a.domains)) {
		parts = append(parts, key+": "+strings.Join(slices.Sorted(maps.Keys(a.domains[key])), ", "))
	}
	if len(a.nodes) > 0 {
		parts = append(parts, words.Count(len(a.nodes), "node"))
	}
	return strings.Join(parts, "; ")
}
