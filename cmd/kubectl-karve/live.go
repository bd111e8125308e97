package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/snapshot/facts"
)

// clusterFlags are the flags of kubectl that select the cluster and the user. There is no flag for the namespace, because GPUs are shared by the
// pods of all namespaces.
func clusterFlags() *genericclioptions.ConfigFlags {
	all := genericclioptions.NewConfigFlags(true)
	return &genericclioptions.ConfigFlags{
		KubeConfig: all.KubeConfig, Context: all.Context, ClusterName: all.ClusterName, AuthInfoName: all.AuthInfoName,
		Impersonate: all.Impersonate, ImpersonateGroup: all.ImpersonateGroup, Timeout: all.Timeout,
	}
}

// connection is a client of a cluster with Karpenter and Karve.
type connection struct {
	client.Client
	config *rest.Config
	// core reads pods and nodes in protobuf.
	core rest.Interface
}

// connect returns a client of the cluster that the flags select. instead is a hint for errors on what to do without a cluster, such as ", or name
// manifests with -f".
func connect(flags *genericclioptions.ConfigFlags, instead string) (connection, error) {
	c, err := reach(flags, instead)
	if err != nil {
		return c, err
	}
	missing, err := c.missing()
	if err == nil && missing != "" {
		err = errors.New(missing + instead)
	}
	return c, err
}

// missing names a kind that all commands need and the cluster does not serve, and what to do. It returns "" if all are served.
func (c connection) missing() (string, error) {
	for _, needed := range []struct {
		kind schema.GroupKind
		how  string
	}{
		{schema.GroupKind{Group: karpapis.Group, Kind: "NodePool"}, "install Karpenter"},
		{schema.GroupKind{Group: v1alpha1.Group, Kind: v1alpha1.Kind}, "install Karve's CRD"},
	} {
		served, err := serves(c.RESTMapper(), needed.kind)
		if err != nil {
			return "", err
		}
		if !served {
			return fmt.Sprintf("the cluster has no kind %s: %s", needed.kind, needed.how), nil
		}
	}
	return "", nil
}

// reach returns a client of the cluster that the flags select, which may have neither Karpenter nor Karve.
func reach(flags *genericclioptions.ConfigFlags, instead string) (connection, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return connection{}, fmt.Errorf("no cluster is selected: %w: select one with --kubeconfig or --context%s", err, instead)
	}
	config.QPS = -1 // The API server limits the requests of each user.
	// With HTTP/2, both sides take 50 % more processor time to send a list of 50,000 pods: they wait for each other after each frame.
	config.NextProtos = []string{"http/1.1"}
	scheme, err := gather.Scheme()
	if err != nil {
		return connection{}, err
	}
	shared, err := rest.HTTPClientFor(config)
	if err != nil {
		return connection{}, fmt.Errorf("reaching the cluster: %w", err)
	}
	asked, err := discovery.NewDiscoveryClientForConfigAndClient(config, shared)
	if err != nil {
		return connection{}, fmt.Errorf("reaching the cluster: %w", err)
	}
	groups, err := restmapper.GetAPIGroupResources(asked)
	if err != nil {
		return connection{}, unreachable(config, err, instead)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	c, err := client.New(config, client.Options{Scheme: scheme, HTTPClient: shared, Mapper: mapper})
	if err != nil {
		return connection{}, fmt.Errorf("reaching the cluster: %w", err)
	}
	core, err := apiutil.RESTClientForGVK(corev1.SchemeGroupVersion.WithKind("Pod"), false, false, config, serializer.NewCodecFactory(scheme), shared)
	if err != nil {
		return connection{}, fmt.Errorf("reaching the cluster: %w", err)
	}
	return connection{c, config, core}, nil
}

// cluster reads a cluster as the controller does, with only the pods that the selections match.
func (c connection) cluster(ctx context.Context, from published.Source, pods ...selection) (*facts.Cluster, error) {
	kinds, _, err := gather.KindsOf(c.RESTMapper(), from.Settings.Reads)
	if err != nil {
		return nil, err
	}
	reader := bulk{c.Client, c.core, pods}
	gatherer := &gather.Gatherer{
		Kinds: kinds, Cached: reader, Live: reader, Mapper: c.RESTMapper(), Catalog: from, Ledger: launching.NewLedger(), Clock: clock.RealClock{},
		ReplicasTimeout: from.Settings.ReplicasTimeout.Duration, PriorityCutoff: from.Settings.PriorityCutoff, Prices: func() []prices.Rule { return from.Settings.Prices },
	}
	cluster, err := gatherer.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	cluster.Index = cluster.Indexed() // All questions about the cluster need it.
	return cluster, nil
}

// leader begins to find out whether a controller works, and returns a function that waits for the answer.
func (c connection) leader(ctx context.Context, namespace string) func() *leader.Leader {
	found := make(chan leader.Leader, 1)
	go func() { found <- leader.Find(ctx, c.Client, namespace, time.Now) }()
	return sync.OnceValue(func() *leader.Leader { return new(<-found) })
}

// serves reports whether the cluster serves a kind, in one of the versions if there are any.
func serves(mapper meta.RESTMapper, kind schema.GroupKind, versions ...string) (bool, error) {
	_, err := mapper.RESTMapping(kind, versions...)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("asking the cluster for %s: %w", kind.Kind, err)
	}
	return true, nil
}

func addNamespaceFlag(fs *pflag.FlagSet, namespace *string) {
	fs.StringVar(namespace, "karve-namespace", "karve-system", "namespace of Karve's controller, which publishes its instance types, prices and settings there")
}

var (
	allPods     = selection{}
	pendingPods = selection{fields: "spec.nodeName="}
	boundPods   = selection{fields: "spec.nodeName!="}
	boundAgents = selection{fields: "spec.nodeName!=", labels: nameLabel + "=" + agentName}
)

// bulk reads pods and nodes without the fields that no command needs, and other kinds with its client.
type bulk struct {
	client.Client
	api rest.Interface
	// pods selects the pods that it lists.
	pods []selection
}

// List lists objects. It supports no options for pods and nodes.
func (b bulk) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	switch l := list.(type) {
	case *corev1.PodList:
		if len(options) > 0 {
			return errors.New("only the pods of the selections can be listed")
		}
		var pods []*corev1.Pod
		reader := newPodReader()
		err := each(ctx, b.api, "pods", b.pods, func(message []byte) error {
			pod, _, err := reader.decode(message)
			if err == nil {
				pods = append(pods, pod)
			}
			return err
		})
		l.Items = itemsOf(pods)
		return err
	case *corev1.NodeList:
		if len(options) > 0 {
			return errors.New("only all nodes can be listed")
		}
		var nodes []*corev1.Node
		var less []byte
		err := each(ctx, b.api, "nodes", []selection{{}}, func(message []byte) (err error) {
			if less, err = ofNodes.from(less[:0], message); err != nil {
				return err
			}
			node := &corev1.Node{}
			nodes = append(nodes, node)
			return node.Unmarshal(less)
		})
		l.Items = itemsOf(nodes)
		return err
	}
	if err := gather.List(ctx, b.Client, list, options...); err != nil {
		return err
	}
	return trimmed(list)
}

// trimmed removes from objects that users write what the controller does not keep of them, so that its memory does not depend on their size.
func trimmed(list client.ObjectList) error {
	trim := gather.Trim()
	return meta.EachListItem(list, func(o runtime.Object) error {
		switch o.(type) {
		case *corev1.PersistentVolumeClaim, *corev1.Namespace, *appsv1.DaemonSet,
			*resourcev1.ResourceClaim, *resourcev1.ResourceClaimTemplate, *resourcev1.DeviceClass, *resourcev1.DeviceTaintRule, *resourcev1.ResourceSlice:
			_, err := trim(o)
			return err
		}
		return nil
	})
}

// itemsOf returns a list of the final size. A growing slice of objects would take several times as much memory.
func itemsOf[T any](objects []*T) []T {
	items := make([]T, len(objects))
	for i, o := range objects {
		items[i] = *o
	}
	return items
}

// agentName is the name label in the karve-node chart.
const agentName = "karve-node"

const nameLabel = "app.kubernetes.io/name"

func isAgent(pod *corev1.Pod) bool { return pod.Labels[nameLabel] == agentName }
