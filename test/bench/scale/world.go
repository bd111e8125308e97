package scale

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kwok "sigs.k8s.io/karpenter/kwok/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// clients is the number of parallel transactions to etcd.
const clients = 16

// World is a cluster with nodes and pods. It plays the kubelets, which report node status, the cloud, which launches machines, the scheduler, which binds
// pods, and the ReplicaSets, which replace evicted pods.
type World struct {
	*cluster.Cluster
	size  Size
	pool  *karpv1.NodePool
	types map[string]*catalog.InstanceType
	api   client.Client
	log   func(format string, args ...any)
	fleet *fleet
	// originals holds what the objects that are written to etcd are copies of.
	originals originals
	// stopAgents stops the server of the agents' metrics.
	stopAgents func() error

	// plays is true if the World processes NodeClaims in place of Karpenter.
	plays   bool
	seen    cache.Cache
	queue   workqueue.TypedDelayingInterface[work]
	woken   chan struct{}
	serial  atomic.Int64
	running sync.WaitGroup
	// ctx ends when the World stops.
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex // guards all below
	rooms map[string]*room
	pods  map[client.ObjectKey]*podRecord
	// waiting holds the pods without a node in order of arrival. owed holds the evicted pods whose successors do not exist yet.
	waiting, owed []*podRecord
	claims        map[types.UID]claimRecord
}

// claimRecord is a NodeClaim that exists or existed.
type claimRecord struct {
	name string
	// seen is the time at which the watch reported the creation. It is zero for the initial NodeClaims. gone is true after the deletion.
	seen time.Time
	gone bool
	// launch is how long the cloud took to launch its machine.
	launch time.Duration
	// version is the resource version of the last write of the machines.
	version string
}

// room holds the free resources of a GPU node.
type room struct {
	zone string
	free shape
	// open is true if pods may be scheduled on the node.
	open bool
}

func (r *room) holds(s shape) bool {
	return r.open && s.milliCPU <= r.free.milliCPU && s.memoryMiB <= r.free.memoryMiB && s.replicas <= r.free.replicas && (s.zone == "" || s.zone == r.zone)
}

func (r *room) add(s shape, sign int64) {
	r.free.milliCPU -= sign * s.milliCPU
	r.free.memoryMiB -= sign * s.memoryMiB
	r.free.replicas -= sign * s.replicas
}

// NewWorld starts a cluster whose NodePool references the class, and creates the nodes and pods. The caller must call Stop.
func NewWorld(ctx context.Context, size Size, class karpv1.NodeClassReference, log func(format string, args ...any)) (_ *World, err error) {
	root, err := cluster.Root()
	if err != nil {
		return nil, err
	}
	w := &World{
		size: size, pool: nodePool(class, size.Still), plays: class.Kind == v1alpha1.Kind, log: log,
		queue: workqueue.NewTypedDelayingQueue[work](), woken: make(chan struct{}, 1), rooms: map[string]*room{}, pods: map[client.ObjectKey]*podRecord{}, claims: map[types.UID]claimRecord{},
	}
	if w.types, err = readTypes(filepath.Join(root, typesFile)); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "karve-scale-")
	if err != nil {
		return nil, fmt.Errorf("making the cluster's folder: %w", err)
	}
	crd := filepath.Join(dir, "kwoknodeclasses.yaml")
	if err := os.WriteFile(crd, kwok.KWOKNodeClassCRD, 0o600); err != nil {
		return nil, fmt.Errorf("writing the CRD of Karpenter's kwok provider: %w", err)
	}
	if w.Cluster, err = cluster.Start(ctx, cluster.Config{Dir: filepath.Join(dir, "cluster"), CRDs: []string{crd}}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = w.Stop()
		}
	}()
	if w.api, err = karve.Client(w.Cluster); err != nil {
		return nil, err
	}
	w.fleet = newFleet(w)
	if err := w.fill(ctx); err != nil {
		return nil, err
	}
	w.ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := w.watch(w.ctx); err != nil {
		return nil, err
	}
	w.machines(w.ctx)
	w.running.Go(func() { w.schedule(w.ctx) })
	w.running.Go(func() { w.fleet.run(w.ctx) })
	return w, nil
}

const typesFile = "test/harness/cluster/instance-types.json"

// Stop stops the cluster and removes its folder. KARVE_KEEP_CLUSTER=1 keeps the folder.
func (w *World) Stop() error {
	if w.stopAgents != nil {
		_ = w.stopAgents() // It is only read from.
	}
	if w.cancel != nil {
		w.cancel()
		w.queue.ShutDown()
		w.running.Wait()
	}
	err := w.Cluster.Stop()
	if os.Getenv("KARVE_KEEP_CLUSTER") == "1" {
		return err
	}
	if err := os.RemoveAll(filepath.Dir(w.Dir())); err != nil {
		return fmt.Errorf("removing the cluster's folder: %w", err)
	}
	return err
}

// fill creates the NodePool, the nodes and the pods. It creates one object of each kind through the API server, which sets all defaults, and writes copies of
// it to etcd.
func (w *World) fill(ctx context.Context) error {
	began := time.Now()
	if err := w.makePool(ctx); err != nil {
		return err
	}
	if err := w.makeOriginals(ctx); err != nil {
		return err
	}
	var objects []client.Object
	for i := range namespaces {
		objects = append(objects, copied(w.originals.namespace, "", namespaceName(i)))
	}
	for i := range w.size.Nodes {
		objects = append(objects, w.copyNode(i)...)
	}
	for i := range w.size.Pods - w.size.Nodes { // The DaemonSet has one pod on each node.
		objects = append(objects, w.copyPod(i))
	}
	if err := w.batches(ctx, etcd.put, objects, batchSize); err != nil {
		return err
	}
	if err := w.untilSeen(ctx, objects[len(objects)-1]); err != nil {
		return err
	}
	w.log("%d nodes, %d of them machines of the pool, and %d pods after %s", w.size.Nodes, w.size.Machines, w.size.Pods, time.Since(began).Round(100*time.Millisecond))
	return nil
}

// write writes objects to etcd, each in a transaction of its own. The objects of one transaction have the same resource version, and a watch that breaks among them
// resumes after the last of them.
func (w *World) write(ctx context.Context, write func(etcd, context.Context, []client.Object) error, objects []client.Object) error {
	return w.batches(ctx, write, objects, 1)
}

// batches writes objects to etcd that nobody watches, or not yet. It writes several batches at a time.
func (w *World) batches(ctx context.Context, write func(etcd, context.Context, []client.Object) error, objects []client.Object, size int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(clients)
	for some := range slices.Chunk(objects, size) {
		group.Go(func() error { return write(etcd{w.EtcdURL()}, ctx, some) })
	}
	return group.Wait()
}

// untilSeen waits until the API server serves an object, for at most a minute.
func (w *World) untilSeen(ctx context.Context, o client.Object) error {
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		err := w.api.Get(ctx, client.ObjectKeyFromObject(o), o)
		return err == nil, client.IgnoreNotFound(err)
	})
}

func nodeName(i int) string {
	return fmt.Sprintf("ip-10-%d-%d-%d.ec2.internal", i>>16, i>>8&255, i&255)
}
func namespaceName(i int) string { return fmt.Sprintf("team-%03d", i%namespaces) }

func (w *World) makePool(ctx context.Context) error {
	class := &unstructured.Unstructured{Object: map[string]any{"apiVersion": kwokGroup + "/v1alpha1", "kind": kwokKind, "metadata": map[string]any{"name": pool}, "spec": map[string]any{}}}
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: leases}}, theDaemonSet(), class, w.pool}
	if w.pool.Spec.Template.Spec.NodeClassRef.Kind == v1alpha1.Kind {
		objects = append(objects, gpuNodeClass())
	}
	for _, o := range objects {
		if err := client.IgnoreAlreadyExists(w.api.Create(ctx, o)); err != nil {
			return fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// originals holds one object of each kind, with the defaults of the API server.
type originals struct {
	namespace                *corev1.Namespace
	machine, node            *corev1.Node
	claim                    *karpv1.NodeClaim
	lease                    *coordinationv1.Lease
	csiNode                  *storagev1.CSINode
	gpuPod, otherPod, daemon *corev1.Pod
}

const original = "original"

func (w *World) makeOriginals(ctx context.Context) error {
	t, now := w.types[gpuType], time.Now()
	o := originals{
		namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: original}}, node: node(original, otherType, zones[0], now), claim: claim(original, zones[0], w.pool, t),
		lease: lease(original, now), csiNode: csiNode(original), gpuPod: replicaSetPod(original, "gpu", "app", steadyGPU), otherPod: replicaSetPod(original, "other", "app", other), daemon: daemonPod(original),
	}
	if err := w.create(ctx, o.namespace, o.node, o.lease, o.csiNode, o.claim); err != nil {
		return err
	}
	launched(o.claim, original, t)
	for _, condition := range []string{karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		o.claim.StatusConditions().SetTrue(condition)
	}
	if err := w.api.Status().Update(ctx, o.claim); err != nil {
		return fmt.Errorf("updating the status of a NodeClaim: %w", err)
	}
	o.machine = machineNode("machine", o.claim, t, now)
	o.machine.Labels[karpv1.NodeInitializedLabelKey] = "true"
	if err := w.create(ctx, o.machine); err != nil {
		return err
	}
	// Remove the not-ready taint that the API server added. In a real cluster a controller removes it.
	o.node.Spec.Taints, o.machine.Spec.Taints = nil, o.claim.Spec.Taints
	for _, p := range []*corev1.Pod{o.gpuPod, o.otherPod, o.daemon} {
		p.Spec.NodeName = original
		if err := w.create(ctx, p); err != nil {
			return err
		}
		p.Status = runningStatus(p, now)
		if err := w.api.Status().Update(ctx, p); err != nil {
			return fmt.Errorf("updating the status of a pod: %w", err)
		}
	}
	for _, made := range []client.Object{o.gpuPod, o.otherPod, o.daemon, o.machine, o.claim, o.node, o.lease, o.csiNode} {
		last := made.DeepCopyObject().(client.Object) //nolint:forcetypeassert // A copy is of the same type.
		last.SetFinalizers(nil)
		if err := w.api.Update(ctx, last); err != nil {
			return fmt.Errorf("releasing %T %s: %w", last, last.GetName(), err)
		}
		if err := w.api.Delete(ctx, last, client.GracePeriodSeconds(0)); err != nil {
			return fmt.Errorf("deleting %T %s: %w", last, last.GetName(), err)
		}
	}
	host, port, err := w.agents(ctx)
	if err != nil {
		return err
	}
	reportAt(o.daemon, host, port)
	w.originals = o
	return nil
}

func (w *World) create(ctx context.Context, objects ...client.Object) error {
	for _, o := range objects {
		if err := w.api.Create(ctx, o); err != nil {
			return fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// copied returns a copy of an object with another namespace, name and UID.
func copied[T client.Object](o T, namespace, name string) T {
	c := o.DeepCopyObject().(T) //nolint:forcetypeassert // A copy is of the same type.
	c.SetNamespace(namespace)
	c.SetName(name)
	c.SetUID(uuid.NewUUID())
	c.SetResourceVersion("")
	return c
}

// copyNode returns node i with its Lease, CSINode, DaemonSet pod and, if it is a machine of the NodePool, its NodeClaim. The first nodes are the machines of
// the NodePool.
func (w *World) copyNode(i int) []client.Object {
	o := &w.originals
	name, zone := nodeName(i), zones[i%len(zones)]
	n := copied(o.node, "", name)
	var c *karpv1.NodeClaim
	if i < w.size.Machines {
		c = copied(o.claim, "", fmt.Sprintf("%s-%05d", pool, i))
		c.Labels[corev1.LabelTopologyZone], c.Status.NodeName, c.Status.ProviderID = zone, name, providerIDs+name
		for j := range c.Spec.Requirements {
			if c.Spec.Requirements[j].Key == corev1.LabelTopologyZone {
				c.Spec.Requirements[j].Values = []string{zone}
			}
		}
		n = copied(o.machine, "", name)
		n.OwnerReferences[0].Name, n.OwnerReferences[0].UID = c.Name, c.UID
		w.claims[c.UID] = claimRecord{name: c.Name}
	}
	n.Labels[corev1.LabelHostname], n.Labels[corev1.LabelTopologyZone], n.Spec.ProviderID = name, zone, providerIDs+name
	for j := range n.Status.Addresses[1:] {
		n.Status.Addresses[1+j].Address = name
	}
	w.noteNode(n)
	all := append([]client.Object{n}, w.besides(name)...)
	if c != nil {
		all = append(all, c)
	}
	return all
}

// besides returns the Lease, the CSINode and the DaemonSet pod of a node. It starts the node's heartbeats.
func (w *World) besides(node string) []client.Object {
	l := copied(w.originals.lease, leases, node)
	l.Spec.HolderIdentity = &node
	w.fleet.join(l)
	csi := copied(w.originals.csiNode, "", node)
	csi.Spec.Drivers[0].NodeID = node
	d := copied(w.originals.daemon, kubeSystem, daemonSet+"-"+node)
	d.Spec.NodeName, d.CreationTimestamp = node, metav1.Now()
	return []client.Object{l, csi, d}
}

// copyPod returns pod i, already bound. The first pods are on machines of the NodePool, ten on each. Ten pods are of one Deployment, so they have the same labels.
func (w *World) copyPod(i int) client.Object {
	app := fmt.Sprintf("app-%04d", i/10)
	r := newPod(namespaceName(i/10), fmt.Sprintf("%s-6f4c9d7b58-%05d", app, i), app, other)
	r.node = nodeName(w.size.Machines + i%(w.size.Nodes-w.size.Machines))
	if i < w.size.Replicas {
		r.shape, r.node = steadyGPU, nodeName(i/replicasPerNode)
	}
	w.keep(r)
	return w.pod(r, runs)
}
