package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"karve.sh/karve/pkg/overview"
)

// namespaceFlags select the pods of a namespace. The default is all of them, because the pods of all namespaces share GPUs.
type namespaceFlags struct {
	name string
	all  bool
}

// addFlags adds the flags. what says what is shown of a namespace.
func (n *namespaceFlags) addFlags(fs *pflag.FlagSet, what string) {
	fs.StringVarP(&n.name, "namespace", "n", "", "show only "+what+" of this namespace")
	fs.BoolVarP(&n.all, "all-namespaces", "A", false, "show those of all namespaces, as without --namespace")
}

// of returns the selected namespace, or "" for all.
func (n *namespaceFlags) of() string {
	if n.all {
		return ""
	}
	return n.name
}

const sortUsage = "sort by name, replicas (held, descending), price (descending), age (descending) or state "

// orderNamed returns the index of an order in orders.
func orderNamed(name string) (int, error) {
	if name == "" {
		return 0, nil
	}
	i := slices.IndexFunc(orders, func(o order) bool { return strings.Fields(o.name)[0] == name })
	if i < 0 {
		return 0, fmt.Errorf("--sort-by must be name, replicas, price, age or state, not %q", name)
	}
	return i, nil
}

func selectorOf(text string) (labels.Selector, error) {
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("--selector: %w", err)
	}
	return selector, nil
}

// nodeSelection are the flags that select and sort the nodes of an overview.
type nodeSelection struct {
	namespace        namespaceFlags
	selector, sortBy string
}

// addFlags adds the flags. Top has orders of its own.
func (n *nodeSelection) addFlags(fs *pflag.FlagSet, sorts bool) {
	n.namespace.addFlags(fs, "the nodes on which pods hold replicas, and the pods,")
	fs.StringVarP(&n.selector, "selector", "l", "", "show only the nodes whose labels match this selector, such as karpenter.sh/nodepool=gpu-shared")
	if sorts {
		fs.StringVar(&n.sortBy, "sort-by", "", sortUsage+"(the most urgent first)")
	}
}

func (n *nodeSelection) empty() bool { return n.selector == "" && n.namespace.of() == "" }

// apply returns the part of an overview of the selected nodes, sorted.
func (n *nodeSelection) apply(s seen) (*overview.Overview, error) {
	all := s.Overview
	selector, err := selectorOf(n.selector)
	if err != nil {
		return nil, err
	}
	by, err := orderNamed(n.sortBy)
	if err != nil {
		return nil, err
	}
	if !selector.Empty() {
		matches := map[string]bool{}
		for i := range s.cluster.Nodes {
			matches[s.cluster.Nodes[i].Name] = selector.Matches(labels.Set(s.cluster.Nodes[i].Labels))
		}
		for i := range s.cluster.NodeClaims { // Of machines that have no Node yet.
			claim := &s.cluster.NodeClaims[i]
			if claim.Status.NodeName == "" {
				matches[claim.Name] = selector.Matches(labels.Set(claim.Labels))
			}
		}
		all = all.Where(func(node *overview.Node) bool { return matches[node.Name] })
	}
	if namespace := n.namespace.of(); namespace != "" {
		all = all.Of(func(in, _ string) bool { return in == namespace })
		all = all.Where(func(node *overview.Node) bool {
			return slices.ContainsFunc(all.Pods, func(p overview.Pod) bool { return p.Node == node.Name })
		})
	}
	slices.SortStableFunc(all.Nodes, func(a, b overview.Node) int { return cmp.Or(orders[by].nodes(&a, &b), strings.Compare(a.Name, b.Name)) })
	return all, nil
}

type podSelection struct {
	namespace namespaceFlags
	selector  string
}

func (p *podSelection) addFlags(fs *pflag.FlagSet) {
	p.namespace.addFlags(fs, "the pods")
	fs.StringVarP(&p.selector, "selector", "l", "", "show only the pods whose labels match this selector, such as app=infer")
}

// apply returns an overview with only the selected pods. Its nodes and totals are those of all pods.
func (p *podSelection) apply(s seen) (*overview.Overview, error) {
	selector, err := selectorOf(p.selector)
	if err != nil {
		return nil, err
	}
	matches := map[string]bool{}
	for i := range s.cluster.Pods {
		pod := &s.cluster.Pods[i]
		matches[pod.Namespace+"/"+pod.Name] = selector.Matches(labels.Set(pod.Labels))
	}
	namespace := p.namespace.of()
	return s.Of(func(in, name string) bool { return (namespace == "" || in == namespace) && matches[in+"/"+name] }), nil
}

func (p *podSelection) none(what string) string {
	text := "No pod"
	if namespace := p.namespace.of(); namespace != "" {
		text += " of the namespace " + namespace
	}
	if p.selector != "" {
		text += " with labels " + p.selector
	}
	return text + " " + what
}

// order is a way to sort nodes and pods. Equal ones are sorted by name.
type order struct {
	name  string
	nodes func(a, b *overview.Node) int
	pods  func(a, b *podRow) int
}

var orders = []order{
	{"name", func(_, _ *overview.Node) int { return 0 }, func(_, _ *podRow) int { return 0 }},
	{
		"replicas held", func(a, b *overview.Node) int { return cmp.Compare(b.ReplicasHeld, a.ReplicasHeld) },
		func(a, b *podRow) int { return cmp.Compare(b.Replicas, a.Replicas) },
	},
	{
		"price", func(a, b *overview.Node) int {
			return cmp.Compare(number(b.MicroUSDPerHour), number(a.MicroUSDPerHour))
		},
		func(a, b *podRow) int { return cmp.Compare(number(b.MicroUSDPerHour), number(a.MicroUSDPerHour)) },
	},
	{"age", func(a, b *overview.Node) int { return b.Created.Compare(a.Created) }, func(a, b *podRow) int { return b.Started.Compare(a.Started) }},
	{
		"state", func(a, b *overview.Node) int { return cmp.Compare(urgency[a.Severity], urgency[b.Severity]) },
		func(a, b *podRow) int {
			return cmp.Or(cmp.Compare(waitsFirst(a), waitsFirst(b)), cmp.Compare(number(b.UnusedSeconds), number(a.UnusedSeconds)))
		},
	},
}

var urgency = map[overview.Severity]int{overview.Bad: 0, overview.Busy: 1, overview.Idle: 2, overview.Good: 3}

// podRow is a pod that holds replicas, or waits for some since Started.
type podRow struct {
	overview.Pod

	// waits says why a pod waits. It is "" for a pod that holds replicas. resource is what it requests, if that is known.
	waits, resource string
}

func waitsFirst(p *podRow) int {
	if p.waits != "" {
		return 0
	}
	return 1
}
