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

// nodeSelection are the flags that select and sort the nodes of an overview.
type nodeSelection struct {
	selector, sortBy string
}

// addFlags adds the flags. Top has orders of its own.
func (n *nodeSelection) addFlags(fs *pflag.FlagSet, sorts bool) {
	fs.StringVarP(&n.selector, "selector", "l", "", "show only the nodes whose labels match this selector, such as karpenter.sh/nodepool=gpu-shared")
	if sorts {
		fs.StringVar(&n.sortBy, "sort-by", "", "sort by name, replicas (held, descending), price (descending), age (descending) or state (the most urgent first)")
	}
}

// order returns the index of the order in orders.
func (n *nodeSelection) order() (int, error) {
	if n.sortBy == "" {
		return 0, nil
	}
	i := slices.IndexFunc(orders, func(o order) bool { return strings.Fields(o.name)[0] == n.sortBy })
	if i < 0 {
		return 0, fmt.Errorf("--sort-by must be name, replicas, price, age or state, not %q", n.sortBy)
	}
	return i, nil
}

// apply returns the part of an overview of the selected nodes, sorted.
func (n *nodeSelection) apply(s seen) (*overview.Overview, error) {
	all := s.Overview
	selector, err := labels.Parse(n.selector)
	if err != nil {
		return nil, fmt.Errorf("--selector: %w", err)
	}
	by, err := n.order()
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
	slices.SortStableFunc(all.Nodes, func(a, b overview.Node) int { return cmp.Or(orders[by].nodes(&a, &b), strings.Compare(a.Name, b.Name)) })
	return all, nil
}
