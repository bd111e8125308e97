package snapshot

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
)

// running has the running pods and their nodes, for rules that count them.
type running struct {
	*Cluster
	selections *selections
	// nodes has the index of each of the cluster's nodes by name.
	nodes map[string]int
	// pods are the pods that count: they are bound to an existing node, have not ended, and are neither being deleted nor moving. Karpenter does not count
	// pods that are being deleted either, because their place will be free.
	pods []*corev1.Pod
	// repels has the places from which anti-affinity of running pods excludes other pods, by the selection that matches the other pods.
	repels map[string][]repulsion
	// daemons has the anti-affinity terms of DaemonSet pods by the name of the DaemonSet.
	daemons map[string][]term
	// daemonsFound has the selections that match a DaemonSet pod. daemonsRepel has the selections of anti-affinity terms of DaemonSet pods. Both are
	// computed on first use.
	daemonsFound map[int]bool
	daemonsRepel map[string]bool
	// counts has the number of pods that each selection matches on each node, by the index of the node. It is computed on first use.
	counts map[string]map[int]int64
}

// repulsion is an anti-affinity term of a pod that runs on the node with the index.
type repulsion struct {
	term term
	node int
}

func (c *Cluster) running(shapes *shapes, moving moving) *running {
	r := &running{Cluster: c, selections: &shapes.selections, nodes: map[string]int{}, repels: map[string][]repulsion{}, daemons: map[string][]term{}}
	for i := range c.DaemonSets {
		pod := daemonPod(&c.DaemonSets[i])
		if terms := c.apart(pod, r.selections); len(terms) > 0 {
			r.daemons[PodName(pod)] = terms
		}
	}
	for i := range c.Nodes {
		r.nodes[c.Nodes[i].Name] = i
	}
	for i := range c.Pods {
		pod := &c.Pods[i]
		node, ok := r.nodes[pod.Spec.NodeName]
		if !ok || moving[pod] || !pod.DeletionTimestamp.IsZero() || karpenter.IsTerminal(pod) {
			continue
		}
		r.pods = append(r.pods, pod)
		for _, t := range c.apart(pod, r.selections) {
			r.repels[t.selection] = append(r.repels[t.selection], repulsion{t, node})
		}
	}
	return r
}

// on returns the number of pods that a selection matches, by the index of their node.
func (r *running) on(selection string) map[int]int64 {
	if r.counts == nil {
		r.counts = map[string]map[int]int64{}
		for _, pod := range r.pods {
			for _, i := range r.selections.of(pod) {
				key := r.selections.keys[i]
				if r.counts[key] == nil {
					r.counts[key] = map[int]int64{}
				}
				r.counts[key][r.nodes[pod.Spec.NodeName]]++
			}
		}
	}
	return r.counts[selection]
}

// avoided returns the places from which running pods exclude pods that the selections in found match and that have the terms.
func (r *running) avoided(found []int, terms []term) avoided {
	a := avoided{nodes: map[string]bool{}, domains: map[string]map[string]bool{}}
	for _, i := range found {
		repels := r.repels[r.selections.keys[i]]
		for i := range repels {
			a.add(&repels[i].term, &r.Nodes[repels[i].node])
		}
	}
	for i := range terms {
		for node := range r.on(terms[i].selection) {
			a.add(&terms[i], &r.Nodes[node])
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
		slices.ContainsFunc(r.daemons[PodName(daemon)], func(t term) bool { return parts(&t, w.found) })
}

// mindsDaemons reports whether anti-affinity may separate the class and a DaemonSet pod on any machine.
func (r *running) mindsDaemons(w *waitingClass) bool {
	if r.daemonsFound == nil {
		r.daemonsFound = map[int]bool{}
		for i := range r.DaemonSets {
			for _, n := range r.selections.of(daemonPod(&r.DaemonSets[i])) {
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
	for _, key := range sortedKeys(a.domains) {
		parts = append(parts, key+": "+strings.Join(sortedKeys(a.domains[key]), ", "))
	}
	if len(a.nodes) > 0 {
		parts = append(parts, fmt.Sprintf("%d nodes", len(a.nodes)))
	}
	return strings.Join(parts, "; ")
}
