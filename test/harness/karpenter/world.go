// Package karpenter runs Karpenter's own scheduler as a library, so that tests can compare Karve's plans with its results.
package karpenter

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	nodepools "sigs.k8s.io/karpenter/pkg/utils/nodepool"
)

// World is the input of Karpenter's scheduler.
type World struct {
	NodePools []*karpv1.NodePool
	// Types are the instance types of each NodePool, by its name.
	Types map[string][]*cloudprovider.InstanceType
	// Nodes are existing machines. Running are the pods on them.
	Nodes   []*corev1.Node
	Running []*corev1.Pod
	// Pending are the pending pods.
	Pending []*corev1.Pod
	// Reserving turns on the feature gate ReservedCapacity, with which pods wait for the next round rather than take other machines than slots of reservations.
	Reserving bool
}

// Solve runs Karpenter's scheduler. It returns how long that took without the preparation.
func (w World) Solve(ctx context.Context) (scheduling.Results, time.Duration, error) {
	ctx = log.IntoContext(injection.WithControllerName(ctx, "provisioner"), logr.Discard())
	ctx = options.ToContext(ctx, &options.Options{
		MinValuesPolicy: options.MinValuesPolicyStrict, PreferencePolicy: options.PreferencePolicyRespect, FeatureGates: options.FeatureGates{ReservedCapacity: w.Reserving},
	})
	var objects []client.Object
	for _, n := range w.Nodes {
		objects = append(objects, n)
	}
	for _, p := range w.Running {
		objects = append(objects, p)
	}
	kube := fake.NewClientBuilder().WithObjects(objects...).WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
		if p, ok := o.(*corev1.Pod); ok {
			return []string{p.Spec.NodeName}
		}
		return nil
	}).Build()
	wall := clock.RealClock{}
	cluster := state.NewCluster(wall, kube, nil)
	for _, n := range w.Nodes {
		if err := cluster.UpdateNode(ctx, n); err != nil {
			return scheduling.Results{}, 0, fmt.Errorf("telling of node %s: %w", n.Name, err)
		}
	}
	for _, p := range w.Running {
		if err := cluster.UpdatePod(ctx, p); err != nil {
			return scheduling.Results{}, 0, fmt.Errorf("telling of pod %s: %w", p.Name, err)
		}
	}
	nodes := cluster.DeepCopyNodes()
	nodepools.OrderByWeight(w.NodePools)
	topology, err := scheduling.NewTopology(ctx, kube, cluster, nodes, w.NodePools, w.Types, w.Pending)
	if err != nil {
		return scheduling.Results{}, 0, fmt.Errorf("preparing the topology: %w", err)
	}
	recorder := events.NewRecorder(&record.FakeRecorder{})
	with := []scheduling.Options{scheduling.NumConcurrentReconciles(runtime.GOMAXPROCS(0))}
	if w.Reserving {
		with = append(with, scheduling.DisableReservedCapacityFallback) // As the provisioner does.
	}
	s := scheduling.NewScheduler(ctx, kube, w.NodePools, cluster, nodes, topology, w.Types, nil, recorder, wall, nil, nil, with...)
	start := time.Now()
	results, err := s.Solve(ctx, w.Pending)
	return results, time.Since(start), err
}
