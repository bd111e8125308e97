package karpenter

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	kscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

func init() {
	// Register these labels, as the AWS provider does: pods may select them even if no pool names them.
	for _, label := range []string{"instance-family", "instance-gpu-name", "instance-gpu-count", "instance-cpu"} {
		karpv1.WellKnownLabels.Insert("karpenter.k8s.aws/" + label)
	}
}

// PlanCluster plans for a cluster with Karpenter's scheduler, as if the pools of the view were Karpenter's. It returns the result as a plan for the
// view's snapshot. Unlike [Plan] it passes on everything that the pods, the pools and the nodes specify.
func PlanCluster(ctx context.Context, c *facts.Cluster, v snapshot.View) (planner.Plan, time.Duration, error) {
	w := World{Types: map[string][]*cloudprovider.InstanceType{}}
	for i, p := range v.Pools {
		w.NodePools = append(w.NodePools, p.NodePool.DeepCopy())
		w.Types[p.NodePool.Name] = labeled(v, i)
	}
	for i := range c.Nodes {
		w.Nodes = append(w.Nodes, c.Nodes[i].DeepCopy())
	}
	for i := range c.Pods {
		if pod := c.Pods[i].DeepCopy(); pod.Spec.NodeName == "" {
			w.Pending = append(w.Pending, pod)
		} else {
			w.Running = append(w.Running, pod)
		}
	}
	results, took, err := w.Solve(ctx)
	if err != nil {
		return planner.Plan{}, 0, err
	}
	p, err := toPlan(v.Snapshot, results)
	return p, took, err
}

// labeled returns the instance types of a pool with the labels that pods can select.
func labeled(v snapshot.View, pool int) []*cloudprovider.InstanceType {
	types := instanceTypes(v.Snapshot, pool)
	for _, it := range types {
		for i, o := range v.Snapshot.Offerings {
			if o.Pool != pool || o.InstanceType != it.Name {
				continue
			}
			for key, value := range v.Offerings[i].Labels {
				_, other := karpv1.NormalizedLabels[key] // aliases of labels that are already set
				if !other && key != corev1.LabelTopologyZone && key != karpv1.CapacityTypeLabelKey {
					it.Requirements.Add(kscheduling.NewRequirement(key, corev1.NodeSelectorOpIn, value))
				}
			}
		}
	}
	return types
}
