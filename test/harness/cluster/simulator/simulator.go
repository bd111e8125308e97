// Package simulator simulates the GPU device plugin on simulated nodes. It sets replicas in their status, as the kubelet does for a device plugin. On nodes
// with backend DRA, it publishes ResourceSlices with the code of Karve's agent instead, and on those with backend NVIDIADRA in the form of NVIDIA's driver. It can be late, offer fewer replicas or none, and crash. It also
// simulates the agent of another vendor, which removes its startup taint, StartupTaintKey, from registered nodes.
//
// It manages Karve's nodes, by their annotations, and the nodes of stock NodePools that a rule names. The rules are in the ConfigMap
// kube-system/karve-simulator. Their keys are a NodePool, an image, which takes precedence, or "default", for Karve's nodes without a rule of their own:
//
//	ami-0123:   '{offer: none}'                                             # a driver that does not start
//	gpu-shared: '{delay: 30s, offer: none}'                                 # late, and then nothing
//	gpu-shared: '{offer: 4}'                                                # fewer than promised
//	gpu-shared: '{keepTaint: true, forever: true}'                          # machines that never start
//	gpu-stock:  '{replicasPerGPU: 10, resource: nvidia.com/gpu.shared}'     # NVIDIA's plugin on a stock pool
package simulator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"karve.sh/karve/pkg/nodecontract"
)

// Simulator simulates the plugin on all nodes of a cluster.
type Simulator struct {
	client kubernetes.Interface
	// server and http reach the API server as agents do.
	server  string
	http    *http.Client
	nodes   cache.SharedIndexInformer
	configs cache.SharedIndexInformer
	queue   workqueue.TypedRateLimitingInterface[string]
	now     func() time.Time
	synced  chan struct{}

	mu    sync.Mutex
	past  map[types.UID]history
	rules Rules
}

// New returns a simulator for the cluster of config. now is its clock.
func New(config *rest.Config, now func() time.Time) (*Simulator, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the simulator's client: %w", err)
	}
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making the simulator's client: %w", err)
	}
	all := informers.NewSharedInformerFactory(client, 0)
	one := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(ConfigMapNamespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, ConfigMapName).String()
		}))
	return &Simulator{
		client:  client,
		server:  config.Host,
		http:    transport,
		nodes:   all.Core().V1().Nodes().Informer(),
		configs: one.Core().V1().ConfigMaps().Informer(),
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		now:     now,
		synced:  make(chan struct{}),
		past:    map[types.UID]history{},
		rules:   Rules{},
	}, nil
}

// Synced is closed when the simulator has synced with the cluster.
func (s *Simulator) Synced() <-chan struct{} { return s.synced }

// Run runs until the context is done.
func (s *Simulator) Run(ctx context.Context) error {
	nodes, err := s.nodes.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) { s.seen(obj, initial) },
		UpdateFunc: func(_, obj any) {
			s.seen(obj, false)
		},
		DeleteFunc: s.gone,
	})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	configs, err := s.configs.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.configured(ctx, obj) },
		UpdateFunc: func(_, obj any) { s.configured(ctx, obj) },
		DeleteFunc: func(any) { s.configured(ctx, (*corev1.ConfigMap)(nil)) },
	})
	if err != nil {
		return fmt.Errorf("watching ConfigMap %s: %w", ConfigMapName, err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.queue.ShutDown()
	wg.Go(func() { s.configs.RunWithContext(ctx) })
	wg.Go(func() { s.nodes.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced, configs.HasSynced) {
		return ctx.Err()
	}
	close(s.synced)
	wg.Go(func() {
		for s.next(ctx) {
		}
	})
	<-ctx.Done()
	return nil
}

// seen records when a node was registered. For a node that was registered before the simulator started, it takes the node's creation, so that a restart
// does not delay its replicas.
func (s *Simulator) seen(obj any, initial bool) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	if node.Labels[registeredLabel] == "true" {
		s.mu.Lock()
		past := s.past[node.UID]
		if past.registered.IsZero() {
			past.registered = s.now()
			if initial {
				past.registered, past.before = node.CreationTimestamp.Time, true
			}
			if rule := ruleOf(node, past, s.rules); rule.Forever {
				past.rule = &rule
			}
			s.past[node.UID] = past
		}
		s.mu.Unlock()
	}
	s.queue.Add(node.Name)
}

func (s *Simulator) gone(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if node, ok := obj.(*corev1.Node); ok {
		s.mu.Lock()
		delete(s.past, node.UID)
		s.mu.Unlock()
	}
}

// configured applies new rules. Invalid rules change nothing, because a partly applied rule would make test failures hard to explain.
func (s *Simulator) configured(ctx context.Context, obj any) {
	cm, _ := obj.(*corev1.ConfigMap)
	rules, err := ParseRules(cm)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Keeping the rules as they were")
		return
	}
	s.mu.Lock()
	s.rules = rules
	s.mu.Unlock()
	klog.FromContext(ctx).Info("Following new rules", "rules", rules)
	for _, name := range s.nodes.GetStore().ListKeys() {
		s.queue.Add(name)
	}
}

func (s *Simulator) next(ctx context.Context) bool {
	name, quit := s.queue.Get()
	if quit {
		return false
	}
	defer s.queue.Done(name)
	again, err := s.act(ctx, name)
	switch {
	case err != nil && ctx.Err() == nil:
		klog.FromContext(ctx).Error(err, "Trying again", "node", klog.KRef("", name))
		s.queue.AddRateLimited(name)
		return true
	case again > 0:
		s.queue.AddAfter(name, again)
	}
	s.queue.Forget(name)
	return true
}

// act updates the node's status.
func (s *Simulator) act(ctx context.Context, name string) (time.Duration, error) {
	obj, exists, err := s.nodes.GetStore().GetByKey(name)
	if err != nil || !exists {
		return 0, err
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return 0, fmt.Errorf("the store of nodes holds a %T", obj)
	}
	s.mu.Lock()
	past := s.past[node.UID]
	d, ours := decide(node, past, s.rules, s.now())
	keeps := keepsTaint(node, past, s.rules)
	s.mu.Unlock()
	if !keeps {
		if err := s.untaint(ctx, node); err != nil {
			return 0, err
		}
	}
	if !ours {
		return 0, nil
	}
	status := map[string]any{}
	if c := d.capacity.change(node.Status.Capacity); c != nil {
		status["capacity"] = c
	}
	if c := d.allocatable.change(node.Status.Allocatable); c != nil {
		status["allocatable"] = c
	}
	if len(status) > 0 {
		if err := s.patch(ctx, node, status); err != nil {
			return 0, err
		}
	}
	switch d.driver {
	case nodecontract.DRADriver:
		err = s.publish(ctx, node, d.published)
	case nodecontract.NVIDIADRADriver:
		err = s.publishNVIDIA(ctx, node, d.published)
	}
	if err != nil {
		return 0, err
	}
	if d.offers && !past.offered {
		s.mu.Lock()
		past = s.past[node.UID]
		past.offered = true
		s.past[node.UID] = past
		s.mu.Unlock()
	}
	return d.again, nil
}

// untaint removes the startup taint from a node.
func (s *Simulator) untaint(ctx context.Context, node *corev1.Node) error {
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Key == StartupTaintKey })
	if len(taints) == len(node.Spec.Taints) {
		return nil
	}
	// The patch replaces the whole list, so it must fail if the node has changed.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion}, "spec": map[string]any{"taints": taints}})
	if err != nil {
		return fmt.Errorf("taking the startup taint off node %s: %w", node.Name, err)
	}
	_, err = s.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // An event follows.
	}
	if err != nil {
		return fmt.Errorf("taking the startup taint off node %s: %w", node.Name, err)
	}
	return nil
}

func (s *Simulator) patch(ctx context.Context, node *corev1.Node, status map[string]any) error {
	// With the UID, the patch ignores a new node of the same name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("writing the status of node %s: %w", node.Name, err)
	}
	_, err = s.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // deleted, and perhaps recreated; either way an event follows
	}
	if err != nil {
		return fmt.Errorf("writing the status of node %s: %w", node.Name, err)
	}
	klog.FromContext(ctx).Info("Changed the node's resources", "node", klog.KObj(node), "status", status)
	return nil
}
