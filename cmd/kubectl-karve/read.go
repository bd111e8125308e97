package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/snapshot/facts"
)

// seen is the part of a cluster that an overview shows.
type seen struct {
	*overview.Overview
	// agents are the running node agents, by the name of their Node.
	agents map[string]agent
	// cluster is the cluster as it was read, without pods that request no GPUs. Its instance types are those that the controller in a namespace has
	// published, or the built-in ones if they have the prices of its nodes.
	cluster *facts.Cluster
	// note says which prices and settings are assumed because the user may not read those of the controller. It is "" if none are.
	note string
}

// overview reads the data for an overview. The shown nodes determine which pods it lists. namespace is the controller's.
func (c connection) overview(ctx context.Context, namespace string) (seen, error) {
	var (
		nodePools karpv1.NodePoolList
		classes   v1alpha1.GPUNodeClassList
		claims    karpv1.NodeClaimList
		nodes     corev1.NodeList
		found     published.Found
	)
	pods := newShownPods()
	lists := []struct {
		named string
		list  client.ObjectList
	}{{"NodePools", &nodePools}, {"GPUNodeClasses", &classes}, {"NodeClaims", &claims}, {"Nodes", &nodes}}
	errs := make([]error, len(lists)+1)
	var group sync.WaitGroup
	for i, l := range lists {
		group.Go(func() {
			if err := (bulk{Client: c.Client, api: c.core}).List(ctx, l.list); err != nil {
				errs[i] = fmt.Errorf("listing %s: %w", l.named, err)
			}
		})
	}
	group.Go(func() { errs[len(lists)] = pods.list(ctx, c.core, pendingPods) })
	group.Go(func() {
		var err error
		if found, err = published.Find(ctx, c, namespace); err != nil {
			found.Catalog = nil // The lists below report what is wrong with the API server.
		}
	})
	controller := c.leader(ctx, namespace)
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return seen{}, err
	}
	cluster := &facts.Cluster{
		Now: time.Now(), ReplicasTimeout: found.Settings.ReplicasTimeout.Duration, PriorityCutoff: found.Settings.PriorityCutoff,
		NodePools: nodePools.Items, GPUNodeClasses: classes.Items, NodeClaims: claims.Items, Nodes: nodes.Items,
	}
	if err := addPrices(cluster, found.Catalog); err != nil {
		return seen{}, err
	}
	cluster.UsePrices(prices.NewBook(nil, found.Settings.Prices))
	if err := pods.list(ctx, c.core, shownOn(overview.Build(cluster).Nodes, len(cluster.Nodes))...); err != nil {
		return seen{}, err
	}
	cluster.Pods = itemsOf(pods.pods)
	all := overview.Build(cluster)
	all.Controller = controller()
	s := seen{Overview: all, agents: pods.agents, cluster: cluster}
	if found.Forbidden {
		s.note = found.Missing + ", so prices, timeouts and rules for prices are assumed"
	}
	return s, nil
}

// nodesPerShown is the minimum ratio of all nodes to shown nodes at which the shown nodes' pods are listed node by node. The API server finds the pods of a node
// without looking at others, but a request costs it as much as sending some twenty pods.
const nodesPerShown = 3

// shownOn selects the pods on the nodes that an overview shows. If those nodes are not few among all nodes, it selects the pods on all nodes.
func shownOn(shown []overview.Node, nodes int) (pods []selection) {
	if len(shown)*nodesPerShown > nodes {
		return []selection{boundPods}
	}
	for i := range shown {
		pods = append(pods, selection{fields: "spec.nodeName=" + shown[i].Name})
	}
	return pods
}

// shownPods are the pods that an overview shows, and the running agents by the name of their Node.
type shownPods struct {
	pods   []*corev1.Pod
	agents map[string]agent
	reader *podReader
}

func newShownPods() *shownPods { return &shownPods{agents: map[string]agent{}, reader: newPodReader()} }

// list adds the pods that the selections match.
func (s *shownPods) list(ctx context.Context, api rest.Interface, selections ...selection) error {
	err := each(ctx, api, "pods", selections, func(message []byte) error {
		if !concerns(message) {
			return nil
		}
		pod, port, err := s.reader.decode(message)
		switch {
		case err != nil:
			return err
		case overview.Concerns(pod):
			s.pods = append(s.pods, pod)
		case isAgent(pod) && pod.Status.Phase == corev1.PodRunning:
			s.agents[pod.Spec.NodeName] = agent{pod.Namespace, pod.Name, cmp.Or(port, agentPort)}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("listing Pods: %w", err)
	}
	return nil
}

// concerns reports whether an encoded pod may be one that an overview shows, or an agent.
func concerns(message []byte) bool {
	return bytes.Contains(message, []byte(nodecontract.NVIDIAPrefix)) || bytes.Contains(message, []byte(agentName))
}

// addPrices gives a cluster instance types with prices: those that the controller published, or the built-in ones if the nodes are in their region. They
// are needed for the prices of machines that were launched as another offering than planned.
func addPrices(c *facts.Cluster, listings published.Catalog) error {
	if listings != nil {
		c.NodeClasses = map[v1alpha1.NodeClassReference]facts.NodeClassState{}
		for ref, listing := range listings {
			c.NodeClasses[ref] = facts.NodeClassState{Ready: true, InstanceTypes: listing.InstanceTypes, Reservations: listing.Reservations}
		}
		return nil
	}
	for i := range c.Nodes {
		if c.Nodes[i].Labels[corev1.LabelTopologyRegion] != builtin.Region {
			return nil
		}
	}
	types, err := builtin.InstanceTypes()
	if err != nil {
		return err
	}
	c.NodeClasses = map[v1alpha1.NodeClassReference]facts.NodeClassState{}
	for i := range c.GPUNodeClasses {
		c.NodeClasses[c.GPUNodeClasses[i].Spec.NodeClassRef] = facts.NodeClassState{Ready: true, InstanceTypes: types}
	}
	return nil
}

const (
	// boundFor is the time limit of the search for a bound. boundNodes is the largest number of nodes for which there is one. The search must not make a
	// command slow.
	boundFor   = 400 * time.Millisecond
	boundNodes = 500
)

// addBound adds a lower bound on the price of the nodes, if the prices are known and the cluster is not too large.
func (s seen) addBound() {
	if len(s.cluster.NodeClasses) == 0 || len(s.Nodes) > boundNodes || len(quote.Unpriced(s.cluster)) > 0 {
		return
	}
	start := time.Now()
	if bound, ok := overview.Bound(s.cluster, func() bool { return time.Since(start) > boundFor }); ok {
		s.Totals.BoundMicroUSDPerHour = &bound
	}
}

// agent is the pod of a node agent, with the port of its metrics.
type agent struct {
	namespace, name string
	port            int32
}

const (
	// scrapes is the number of agents that are scraped concurrently. scrapeTimeout is the time limit of one scrape.
	scrapes       = 64
	scrapeTimeout = 2 * time.Second
	// agentPort is the chart's port for metrics, used if the agent's pod does not name one.
	agentPort = 9450
)
