// Package machines simulates the machines of the local AWS. For each running instance it creates a Node as the kubelet of its image would register it,
// with the labels and taints of the instance's user data. When the instance is terminated, it deletes the Node, as the cloud controller manager does.
// kwok keeps the nodes ready and runs their pods.
package machines

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/test/harness/aws"
)

// DefaultDelay is the default time from a running machine to its registration.
const DefaultDelay = time.Second

// Fleet holds all machines of a local AWS.
type Fleet struct {
	client kubernetes.Interface
	claims cache.SharedIndexInformer
	region *aws.Server
	queue  workqueue.TypedRateLimitingInterface[string]
	synced chan struct{}

	mu       sync.Mutex // guards all below
	delay    time.Duration
	lacks    map[string]resource.Quantity // by instance type
	machines map[string]*machine          // by instance ID
}

// machine is an instance and the state of its node.
type machine struct {
	aws.Instance
	// runs is when the instance was first seen running.
	runs time.Time
	// registered is whether the node was registered. A kubelet does not register its node again after the node was deleted.
	registered bool
}

// byInstance indexes claims by the provider ID of their instance.
const byInstance = "instance"

// New returns the machines of a region, for the cluster of config. A machine registers after delay; DefaultDelay when 0.
func New(config *rest.Config, region *aws.Server, delay time.Duration) (*Fleet, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the machines' client: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the machines' client: %w", err)
	}
	claims := dynamicinformer.NewDynamicSharedInformerFactory(objects, 0).
		ForResource(schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}).Informer()
	if err := claims.AddIndexers(cache.Indexers{byInstance: func(o any) ([]string, error) {
		if id := providerID(o); id != "" {
			return []string{id}, nil
		}
		return nil, nil
	}}); err != nil {
		return nil, fmt.Errorf("indexing claims: %w", err)
	}
	if delay == 0 {
		delay = DefaultDelay
	}
	return &Fleet{
		client: client, claims: claims, region: region,
		queue:    workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		synced:   make(chan struct{}),
		delay:    delay,
		lacks:    map[string]resource.Quantity{},
		machines: map[string]*machine{},
	}, nil
}

func providerID(o any) string {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return ""
	}
	id, _, _ := unstructured.NestedString(u.Object, "status", "providerID")
	return id
}

// SetDelay sets the time from running to registration for machines that are launched from now on.
func (f *Fleet) SetDelay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// SetLack reduces the memory of machines of a type that register from now on: they report that much less than Karpenter expects. Zero ends that.
func (f *Fleet) SetLack(instanceType string, memory resource.Quantity) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lacks[instanceType] = memory
}

// Synced is closed when the existing machines have been seen.
func (f *Fleet) Synced() <-chan struct{} { return f.synced }

// Run runs until the context is done.
func (f *Fleet) Run(ctx context.Context) error {
	// Karpenter writes the instance into the claim a moment after the instance runs.
	handler, err := f.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    f.claimed,
		UpdateFunc: func(_, o any) { f.claimed(o) },
	})
	if err != nil {
		return fmt.Errorf("watching claims: %w", err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer f.queue.ShutDown()
	wg.Go(func() { f.claims.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		return ctx.Err()
	}
	wg.Go(func() {
		for i := range f.region.Watch(ctx) {
			f.changed(i)
		}
	})
	for range 4 {
		wg.Go(func() {
			for f.next(ctx) {
			}
		})
	}
	close(f.synced)
	<-ctx.Done()
	return nil
}

func (f *Fleet) claimed(o any) {
	id := providerID(o)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.machines {
		if id != "" && m.ProviderID() == id {
			f.queue.Add(m.ID)
		}
	}
}

func (f *Fleet) changed(i aws.Instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.machines[i.ID]
	if m == nil {
		m = &machine{}
		f.machines[i.ID] = m
	}
	m.Instance = i
	if m.runs.IsZero() && i.State == aws.Running {
		m.runs = time.Now()
	}
	f.queue.Add(i.ID)
}

func (f *Fleet) next(ctx context.Context) bool {
	id, quit := f.queue.Get()
	if quit {
		return false
	}
	defer f.queue.Done(id)
	again, err := f.act(ctx, id)
	switch {
	case err != nil && ctx.Err() == nil:
		klog.FromContext(ctx).Error(err, "Trying again", "instance", id)
		f.queue.AddRateLimited(id)
		return true
	case again > 0:
		f.queue.AddAfter(id, again)
	}
	f.queue.Forget(id)
	return true
}

// act updates the node of an instance to match the instance's state. It returns when to check again; zero means not before something changes.
func (f *Fleet) act(ctx context.Context, id string) (time.Duration, error) {
	f.mu.Lock()
	m := *f.machines[id]
	wait, lacks := time.Until(m.runs.Add(f.delay)), f.lacks[m.Type]
	f.mu.Unlock()
	switch m.State {
	case aws.Running:
		if m.registered {
			return 0, nil
		}
		if wait > 0 {
			return wait, nil
		}
		return 0, f.register(ctx, m.Instance, lacks)
	case aws.ShuttingDown, aws.Terminated:
		return 0, f.end(ctx, m.Instance)
	case aws.Pending:
	}
	return 0, nil
}

func (f *Fleet) register(ctx context.Context, i aws.Instance, lacks resource.Quantity) error {
	claims, err := f.claims.GetIndexer().ByIndex(byInstance, i.ProviderID())
	if err != nil || len(claims) == 0 {
		return err // no claim yet; its event follows
	}
	claim := &karpv1.NodeClaim{}
	u, ok := claims[0].(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("the store of claims holds a %T", claims[0])
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, claim); err != nil {
		return fmt.Errorf("reading NodeClaim %s: %w", u.GetName(), err)
	}
	n, err := node(i, claim, lacks)
	if err != nil {
		return err
	}
	if _, err := f.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("registering node %s: %w", n.Name, err)
	}
	f.mu.Lock()
	f.machines[i.ID].registered = true
	f.mu.Unlock()
	klog.FromContext(ctx).Info("Registered", "node", n.Name, "instance", i.ID, "type", i.Type, "zone", i.Zone, "image", i.Image)
	return nil
}

// end handles the node of an instance that shuts down. kwok stops managing it. Once the instance is terminated, the Node is deleted, as the cloud
// controller manager does.
func (f *Fleet) end(ctx context.Context, i aws.Instance) error {
	nodes := f.client.CoreV1().Nodes()
	n, err := nodes.Get(ctx, i.PrivateDNS, metav1.GetOptions{})
	// Another instance can get the same name.
	if apierrors.IsNotFound(err) || err == nil && n.Spec.ProviderID != i.ProviderID() {
		return nil
	}
	if err == nil {
		err = f.forget(ctx, n.Name)
	}
	if err == nil && i.State == aws.Terminated && n.DeletionTimestamp.IsZero() {
		err = nodes.Delete(ctx, n.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &n.UID}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("ending node %s: %w", n.Name, err)
	}
	klog.FromContext(ctx).Info("Ended", "node", i.PrivateDNS, "instance", i.ID, "state", i.State)
	return nil
}
