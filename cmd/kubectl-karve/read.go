package main

import (
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
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/snapshot"
)

// seen is the part of a cluster that an overview shows.
type seen struct {
	*overview.Overview
	// agents are the pods of the node agents, by the name of their Node.
	agents map[string]*corev1.Pod
}

// overview reads what an overview shows. It lists five kinds at once, and keeps only the pods that matter.
func (c connection) overview(ctx context.Context) (seen, error) {
	var (
		nodePools karpv1.NodePoolList
		classes   v1alpha1.GPUNodeClassList
		claims    karpv1.NodeClaimList
		nodes     corev1.NodeList
		pods      corev1.PodList
	)
	lists := []client.ObjectList{&nodePools, &classes, &claims, &nodes, &pods}
	errs := make([]error, len(lists))
	var group sync.WaitGroup
	for i, list := range lists {
		group.Go(func() {
			if err := c.List(ctx, list); err != nil {
				errs[i] = fmt.Errorf("listing %T: %w", list, err)
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return seen{}, err
	}
	cluster := &snapshot.Cluster{
		Now: time.Now(), ReplicasTimeout: replicasTimeout, NodePools: nodePools.Items, GPUNodeClasses: classes.Items, NodeClaims: claims.Items, Nodes: nodes.Items,
	}
	agents := map[string]*corev1.Pod{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if overview.Concerns(pod) {
			cluster.Pods = append(cluster.Pods, *pod)
		} else if isAgent(pod) && pod.Status.Phase == corev1.PodRunning {
			agents[pod.Spec.NodeName] = pod
		}
	}
	if err := price(cluster); err != nil {
		return seen{}, err
	}
	return seen{overview.Build(cluster), agents}, nil
}

// price gives a cluster in the region of the built-in instance types their prices, for machines that were launched as another offering than planned.
func price(c *snapshot.Cluster) error {
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
		c.NodeClasses[c.GPUNodeClasses[i].Spec.NodeClassRef] = snapshot.NodeClassState{InstanceTypes: types}
	}
	return nil
}

// isAgent reports whether a pod is one of the chart karve-node.
func isAgent(pod *corev1.Pod) bool { return pod.Labels["app.kubernetes.io/name"] == "karve-node" }
