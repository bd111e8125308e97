package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
)

// notFilters are default plugins that do not filter, or that handle kinds which scenes do not contain and need more of the scheduler than there is here.
var notFilters = []string{names.DynamicResources, names.DefaultPreemption, names.GangScheduling, names.TopologyPlacementGenerator, names.PodGroupPodsCount}

// stage is a cluster with the scheduler's framework.
type stage struct {
	framework framework.Framework
	factory   *factory
	// Snapshot is the lister from which plugins read the cluster. It is rebuilt when a pod or a node was added.
	*schedulercache.Snapshot
	nodes []*corev1.Node
	pods  []*corev1.Pod
}

func newStage(ctx context.Context, sc *scene) (*stage, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{})
	if err != nil {
		return nil, fmt.Errorf("making a client that is never used: %w", err)
	}
	s := &stage{factory: newFactory(client), nodes: slices.Clone(sc.Nodes), pods: slices.Clone(sc.Pods)}
	s.refresh()
	// The plugins create the informers that they use. These are created for set.
	s.factory.Core().V1().Namespaces().Informer()
	s.factory.Core().V1().PersistentVolumes().Informer()
	s.factory.Core().V1().PersistentVolumeClaims().Informer()
	s.factory.Core().V1().Nodes().Informer()
	s.factory.Storage().V1().StorageClasses().Informer()
	s.factory.Storage().V1().CSINodes().Informer()
	configuration, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("reading the default configuration: %w", err)
	}
	profile := configuration.Profiles[0]
	profile.Plugins.MultiPoint.Enabled = slices.DeleteFunc(profile.Plugins.MultiPoint.Enabled, func(p config.Plugin) bool {
		return slices.Contains(notFilters, p.Name)
	})
	s.framework, err = runtime.NewFramework(ctx, plugins.NewInTreeRegistry(), &profile,
		runtime.WithClientSet(client), runtime.WithInformerFactory(s.factory), runtime.WithSnapshotSharedLister(s),
		runtime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(s.factory.Storage().V1().CSINodes().Lister())))
	if err != nil {
		return nil, fmt.Errorf("making the framework: %w", err)
	}
	for _, err := range []error{
		set(s.factory, sc.Namespaces...), set(s.factory, sc.PVs...), set(s.factory, sc.PVCs...), set(s.factory, sc.Nodes...),
		set(s.factory, sc.StorageClasses...), set(s.factory, sc.CSINodes...),
	} {
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *stage) refresh() { s.Snapshot = schedulercache.NewSnapshot(s.pods, s.nodes) }

// addNodes adds nodes to the cluster.
func (s *stage) addNodes(nodes []*corev1.Node) error {
	s.nodes = append(s.nodes, nodes...)
	s.refresh()
	return set(s.factory, nodes...)
}

// judge runs the filters for a pod on nodes. A node without a verdict admits the pod.
func (s *stage) judge(ctx context.Context, pod *corev1.Pod, nodes ...string) (map[string]*verdict, error) {
	verdicts := map[string]*verdict{}
	state := framework.NewCycleState()
	state.SetRecordPluginMetrics(false)
	only, status, _ := s.framework.RunPreFilterPlugins(ctx, state, pod)
	if status.Code() == fwk.Error {
		return nil, fmt.Errorf("asking about pod %s: %w", nameOf(pod), status.AsError())
	}
	for _, node := range nodes {
		if !status.IsSuccess() {
			verdicts[node] = verdictOf(pod, node, status)
			continue
		}
		if !only.AllNodes() && !only.NodeNames.Has(node) {
			verdicts[node] = &verdict{Pod: nameOf(pod), Node: node, Plugin: "PreFilter", Reasons: "not among the nodes that PreFilter leaves"}
			continue
		}
		info, err := s.Snapshot.NodeInfos().Get(node)
		if err != nil {
			return nil, fmt.Errorf("asking about pod %s: %w", nameOf(pod), err)
		}
		said := s.framework.RunFilterPlugins(ctx, state, pod, info)
		if said.Code() == fwk.Error {
			return nil, fmt.Errorf("asking about pod %s on %s: %w", nameOf(pod), node, said.AsError())
		}
		if !said.IsSuccess() {
			verdicts[node] = verdictOf(pod, node, said)
		}
	}
	return verdicts, nil
}

func verdictOf(pod *corev1.Pod, node string, status *fwk.Status) *verdict {
	return &verdict{Pod: nameOf(pod), Node: node, Plugin: status.Plugin(), Reasons: strings.Join(status.Reasons(), ", ")}
}

func nameOf(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// bind binds the pod to the node.
func (s *stage) bind(pod *corev1.Pod, node string) error {
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	s.pods = append(s.pods, bound)
	if err := s.provision(bound); err != nil {
		return err
	}
	s.refresh()
	return nil
}
