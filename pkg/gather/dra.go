package gather

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
)

// +kubebuilder:rbac:feature=dra,groups=resource.k8s.io,resources=resourceslices;deviceclasses;resourceclaims;resourceclaimtemplates;devicetaintrules,verbs=list;watch

// readDRA reads the cluster's objects for Dynamic Resource Allocation. It returns the names of the nodes whose drivers publish other replicas than
// before.
func (g *Gatherer) readDRA(ctx context.Context) ([]string, error) {
	if !g.DRA {
		return nil, nil
	}
	s := &g.state
	classes, err := relist(ctx, g, &s.deviceClasses)
	if err != nil {
		return nil, g.unlessOptional(err)
	}
	g.fresh.kinds = g.fresh.kinds || classes
	claims, err := relist(ctx, g, &s.claims)
	if err != nil {
		return nil, g.unlessOptional(err)
	}
	templates, err := relist(ctx, g, &s.templates)
	if err != nil {
		return nil, g.unlessOptional(err)
	}
	g.claiming.stale = g.claiming.stale || classes || claims || templates
	differs, err := relist(ctx, g, &s.slices)
	if err != nil {
		return nil, g.unlessOptional(err)
	}
	if g.DeviceTaintRules {
		rules, err := relist(ctx, g, &s.taintRules)
		if err = g.unlessOptional(err); err != nil {
			return nil, err
		}
		g.fresh.kinds, differs = g.fresh.kinds || rules, differs || rules
	}
	if !differs {
		return nil, nil
	}
	now := facts.PublishedOf(s.slices.value.Items, s.taintRules.value.Items)
	var changed []string
	for offer := range maps.Keys(now) {
		if now[offer] != g.published[offer] {
			changed = append(changed, offer.Node)
		}
	}
	for offer := range maps.Keys(g.published) {
		if _, still := now[offer]; !still {
			changed = append(changed, offer.Node)
		}
	}
	g.published = now
	return changed, nil
}

// Node reads a Node from the API server, with the replicas that its DRA driver publishes.
func (g *Gatherer) Node(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	if err := g.Live.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return nil, err
	}
	return g.Published(ctx, node)
}

// Published returns a node with the replicas that its DRA driver publishes. It returns the node itself if it does not use DRA.
func (g *Gatherer) Published(ctx context.Context, node *corev1.Node) (*corev1.Node, error) {
	if !g.DRA || nodecontract.DriverOf(node.Annotations[nodecontract.BackendAnnotation]) == "" {
		return node, nil
	}
	var list resourcev1.ResourceSliceList
	if err := g.Cached.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing ResourceSlices: %w", err)
	}
	var rules resourcev1.DeviceTaintRuleList
	if g.DeviceTaintRules {
		if err := g.Cached.List(ctx, &rules); err != nil {
			return nil, fmt.Errorf("listing DeviceTaintRules: %w", err)
		}
	}
	return facts.PublishedOf(list.Items, rules.Items).On(node), nil
}

// withPublished sets the replicas that DRA drivers publish, on nodes that have changed or whose replicas have changed. It does not change objects that
// belong to a cache.
func (g *Gatherer) withPublished(changes facts.Changes, published []string) {
	for _, name := range published {
		if _, read := changes.Nodes[name]; !read {
			if node := g.followed.nodes.stored(name); node != nil {
				changes.Nodes[name] = node
			}
		}
	}
	for name, node := range changes.Nodes {
		changes.Nodes[name] = g.published.On(node)
	}
}
