package snapshot_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

const zone, host = corev1.LabelTopologyZone, corev1.LabelHostname

// app returns a selector for the label app.
func app(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

// spreadOver spreads the pod among those of its app with a maximum skew of 1.
func spreadOver(key, name string, edits ...func(*corev1.TopologySpreadConstraint)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		constraint := corev1.TopologySpreadConstraint{TopologyKey: key, MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: app(name)}
		for _, edit := range edits {
			edit(&constraint)
		}
		pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, constraint)
	}
}

// near gives the pod an affinity to pods of the apps, with one term for each.
func near(key string, names ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		affinityOf(pod).PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: podTerms(key, names...)}
	}
}

// away gives the pod an anti-affinity to pods of the apps, with one term for each.
func away(key string, names ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		affinityOf(pod).PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: podTerms(key, names...)}
	}
}

func affinityOf(pod *corev1.Pod) *corev1.Affinity {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	return pod.Spec.Affinity
}

func podTerms(key string, names ...string) []corev1.PodAffinityTerm {
	var terms []corev1.PodAffinityTerm
	for _, name := range names {
		terms = append(terms, corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: app(name)})
	}
	return terms
}

// inApp sets the pod's label app.
func inApp(name string) func(*corev1.Pod) { return WithLabels("app", name) }

// in puts the pod into a namespace.
func in(namespace string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Namespace = namespace }
}

// formatRule formats a rule with names: its kind, its topology, the classes that it constrains and that it counts, and the pods that it already counts.
func formatRule(view snapshot.View, rule planner.Rule) string {
	classes := func(indices []int) string {
		var names []string
		for _, i := range indices {
			names = append(names, strings.TrimPrefix(view.Classes[i].Pods[0], "default/"))
		}
		slices.Sort(names)
		return strings.Join(names, ",")
	}
	domain := func(i int) string {
		if rule.Topology == planner.PerNode {
			return view.Nodes[i].Name
		}
		return view.Topologies[rule.Topology].Domains[i]
	}
	words := []string{string(rule.Kind), "of", classes(rule.Classes), "counts", classes(rule.Counted)}
	for i, n := range rule.Present {
		if n > 0 {
			words = append(words, fmt.Sprintf("%s=%d", domain(i), n))
		}
	}
	if rule.Elsewhere > 0 {
		words = append(words, fmt.Sprintf("elsewhere=%d", rule.Elsewhere))
	}
	if rule.Eligible != nil {
		words = append(words, "among")
		for _, i := range rule.Eligible {
			words = append(words, domain(i))
		}
	}
	if rule.Topology != planner.PerNode {
		words[0] += " " + view.Topologies[rule.Topology].Key
	}
	return strings.TrimSpace(strings.Join(words, " "))
}

// formatRules formats all rules of a snapshot, and checks that the snapshot is valid.
func formatRules(t *testing.T, view snapshot.View) []string {
	t.Helper()
	if err := planner.Validate(view.Snapshot); err != nil {
		t.Error(err)
	}
	var all []string
	for _, rule := range view.Rules {
		all = append(all, formatRule(view, rule))
	}
	return all
}

// twoZones returns a cluster with a Karve node in each of two zones, m-a and m-b, and a node without GPUs in a third zone, cpu-c.
func twoZones() *facts.Cluster {
	c := Shared()
	for _, name := range []string{"a", "b"} {
		claim := Claim("m-"+name, &c.NodePools[0], xlarge, Initialized(Now))
		node := Node(&claim, xlarge, 10, func(n *corev1.Node) { n.Labels[zone], n.Labels[host] = "us-east-1"+name, n.Name })
		c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, node)
	}
	c.Nodes = append(c.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cpu-c", Labels: map[string]string{zone: "us-east-1c", host: "cpu-c"}}})
	return c
}
