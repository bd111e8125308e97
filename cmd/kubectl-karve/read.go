package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/snapshot"
)

// seen is the part of a cluster that an overview shows.
type seen struct {
	*overview.Overview
	// agents are the pods of the node agents, by the name of their Node.
	agents map[string]*corev1.Pod
	// cluster has what was read, without pods that request no GPUs. It has the instance types that the controller in a namespace has published, or those that are built in
	// if they have the prices of its nodes.
	cluster *snapshot.Cluster
}

// overview reads what an overview shows. It lists five kinds at once, and keeps only the pods that matter. The controller is in a namespace.
func (c connection) overview(ctx context.Context, namespace string) (seen, error) {
	var (
		nodePools karpv1.NodePoolList
		classes   v1alpha1.GPUNodeClassList
		claims    karpv1.NodeClaimList
		nodes     corev1.NodeList
		pods      []corev1.Pod
		told      published.Found
	)
	agents := map[string]*corev1.Pod{}
	lists := []struct {
		named string
		list  client.ObjectList
	}{{"NodePools", &nodePools}, {"GPUNodeClasses", &classes}, {"NodeClaims", &claims}, {"Nodes", &nodes}}
	errs := make([]error, len(lists)+1)
	var group sync.WaitGroup
	for i, l := range lists {
		group.Go(func() {
			if err := (bulk{c.Client, c.core}).List(ctx, l.list); err != nil {
				errs[i] = fmt.Errorf("listing %s: %w", l.named, err)
			}
		})
	}
	group.Go(func() {
		err := each(ctx, c.core, "pods", ofPods, concerns, func(pod *corev1.Pod) {
			if overview.Concerns(pod) {
				pods = append(pods, *pod)
			} else if isAgent(pod) && pod.Status.Phase == corev1.PodRunning {
				agents[pod.Spec.NodeName] = pod
			}
		})
		if err != nil {
			errs[len(lists)] = fmt.Errorf("listing Pods: %w", err)
		}
	})
	group.Go(func() {
		var err error
		if told, err = published.Find(ctx, c, namespace); err != nil {
			told.Catalog = nil // The lists tell what is wrong with the API server.
		}
	})
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return seen{}, err
	}
	cluster := &snapshot.Cluster{
		Now: time.Now(), ReplicasTimeout: replicasTimeout, NodePools: nodePools.Items, GPUNodeClasses: classes.Items, NodeClaims: claims.Items, Nodes: nodes.Items, Pods: pods,
	}
	if err := price(cluster, told.Catalog); err != nil {
		return seen{}, err
	}
	return seen{overview.Build(cluster), agents, cluster}, nil
}

// concerns reports whether an encoded pod may be one that an overview shows, or an agent.
func concerns(message []byte) bool {
	return bytes.Contains(message, []byte(nodecontract.NVIDIAPrefix)) || bytes.Contains(message, []byte(agentName))
}

// price gives a cluster instance types with prices: those that the controller published, or those that are built in if the nodes are in their region. They tell the
// prices of machines that were launched as another offering than planned.
func price(c *snapshot.Cluster, told published.Catalog) error {
	if told != nil {
		c.NodeClasses = map[v1alpha1.NodeClassReference]snapshot.NodeClassState{}
		for ref, listing := range told {
			c.NodeClasses[ref] = snapshot.NodeClassState{Ready: true, InstanceTypes: listing.InstanceTypes}
		}
		return nil
	}
	for i := range c.Nodes {
		if c.Nodes[i].Labels[corev1.LabelTopologyRegion] != builtinRegion {
			return nil
		}
	}
	types, err := builtin.InstanceTypes()
	if err != nil {
		return err
	}
	c.NodeClasses = map[v1alpha1.NodeClassReference]snapshot.NodeClassState{}
	for i := range c.GPUNodeClasses {
		c.NodeClasses[c.GPUNodeClasses[i].Spec.NodeClassRef] = snapshot.NodeClassState{Ready: true, InstanceTypes: types}
	}
	return nil
}

// isAgent reports whether a pod is one of the chart karve-node.
func isAgent(pod *corev1.Pod) bool { return pod.Labels[nameLabel] == agentName }

const (
	// boundFor is how long a bound is searched for, and boundNodes for how many nodes: the search must not make a verb slow.
	boundFor   = 400 * time.Millisecond
	boundNodes = 500
)

// bind adds a lower bound on the price of the nodes, if the prices are known and the cluster is not too large.
func (s seen) bind() {
	if len(s.cluster.NodeClasses) == 0 || len(s.Nodes) > boundNodes || len(quote.Unpriced(s.cluster)) > 0 {
		return
	}
	start := time.Now()
	if bound, ok := overview.Bound(s.cluster, func() bool { return time.Since(start) > boundFor }); ok {
		s.Totals.BoundMicroUSDPerHour = &bound
	}
}
