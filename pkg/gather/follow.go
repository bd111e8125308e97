package gather

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/snapshot/facts"
)

// Caches are the manager's caches.
type Caches interface {
	client.FieldIndexer
	GetInformer(ctx context.Context, object client.Object, options ...cache.InformerGetOption) (cache.Informer, error)
}

// followed tracks the kinds with many objects. An object of these kinds is read again only after it has changed.
type followed struct {
	pods         tracked[corev1.Pod, *corev1.Pod]
	nodes        tracked[corev1.Node, *corev1.Node]
	nodeClaims   tracked[karpv1.NodeClaim, *karpv1.NodeClaim]
	volumeClaims tracked[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim]
	volumes      tracked[corev1.PersistentVolume, *corev1.PersistentVolume]
	csiNodes     tracked[storagev1.CSINode, *storagev1.CSINode]
}

// kind is a tracked of any type.
type kind interface {
	track(ctx context.Context, caches Caches) error
	missed() bool
	forget()
}

func (f *followed) kinds() []kind {
	return []kind{&f.pods, &f.nodes, &f.nodeClaims, &f.volumeClaims, &f.volumes, &f.csiNodes}
}

// follow starts to record which objects change. It calls saw for each NodeClaim that changes.
func follow(ctx context.Context, caches Caches, saw func(*karpv1.NodeClaim)) (*followed, error) {
	f := &followed{}
	f.nodeClaims.saw = saw
	for _, k := range f.kinds() {
		if err := k.track(ctx, caches); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// take returns the changes since the last call. If full is true, the changes are unknown, and take returns all objects.
func (f *followed) take() (changes facts.Changes, full bool) {
	for _, k := range f.kinds() {
		full = k.missed() || full
	}
	return facts.Changes{
		Pods: f.pods.take(full), Nodes: f.nodes.take(full), NodeClaims: f.nodeClaims.take(full), PersistentVolumeClaims: f.volumeClaims.take(full),
		PersistentVolumes: f.volumes.take(full), CSINodes: f.csiNodes.take(full),
	}, full
}

// forget makes the next take return all objects.
func (f *followed) forget() {
	for _, k := range f.kinds() {
		k.forget()
	}
}

// maxNames is the largest number of changed objects that are recorded. A replica that is not the leader never takes them.
const maxNames = 1 << 17

// tracked records which objects of a kind have changed.
type tracked[T any, P interface {
	*T
	client.Object
}] struct {
	store toolscache.Store
	// saw is called for each object that changes, with the object before and after. It may be nil.
	saw func(P)
	mu  sync.Mutex
	// names are the names of the objects that have changed since they were last taken. It is nil if they are unknown.
	names map[string]struct{}
}

// track starts to record which objects of the kind change. An informer calls its index functions while it updates its store, before it notifies any
// handler. So a caller that a change wakes up finds the change recorded. Event handlers could not guarantee this, because they are called one by one
// after the change.
func (t *tracked[T, P]) track(ctx context.Context, caches Caches) error {
	object := P(new(T))
	informer, err := caches.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("making the informer of %T: %w", object, err)
	}
	stored, ok := informer.(interface{ GetStore() toolscache.Store })
	if !ok {
		return fmt.Errorf("the informer of %T has no store: %T", object, informer)
	}
	t.store = stored.GetStore()
	if err := caches.IndexField(ctx, object, indexName, func(o client.Object) []string {
		t.note(client.ObjectKeyFromObject(o))
		if object, ok := o.(P); ok && t.saw != nil {
			t.saw(object)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("following the changes of %T: %w", object, err)
	}
	return nil
}

func (t *tracked[T, P]) note(key client.ObjectKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.names != nil && len(t.names) < maxNames {
		t.names[nameOfKey(key)] = struct{}{}
	} else {
		t.names = nil
	}
}

// nameOfKey returns the key of an object in its store.
func nameOfKey(key client.ObjectKey) string {
	if key.Namespace == "" {
		return key.Name
	}
	return key.Namespace + "/" + key.Name
}

// missed reports whether the changed objects are unknown.
func (t *tracked[T, P]) missed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.names == nil
}

func (t *tracked[T, P]) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.names = nil
}

// take returns the objects that have changed, or all objects if full is true. A deleted object is nil. An object that changes meanwhile is recorded for
// the next call.
func (t *tracked[T, P]) take(full bool) map[string]*T {
	t.mu.Lock()
	names := t.names
	t.names = map[string]struct{}{}
	t.mu.Unlock()
	changes := make(map[string]*T, len(names))
	if full {
		for _, o := range t.store.List() {
			if object, ok := o.(P); ok {
				changes[nameOfKey(client.ObjectKeyFromObject(object))] = object
			}
		}
		return changes
	}
	for name := range names {
		changes[name] = t.stored(name)
	}
	return changes
}

// stored returns an object from the store, or nil if the store does not have it.
func (t *tracked[T, P]) stored(name string) *T {
	o, _, err := t.store.GetByKey(name) // Stores in memory return no error.
	if object, ok := o.(P); ok && err == nil {
		return object
	}
	return nil
}

// indexName is the name of an index whose only purpose is that its function is called when an object changes. It finds nothing.
const indexName = "karve.sh/changes"

// changes counts the changes of the objects in the informers' caches, by kind. A change may be counted more than once. See tracked for why an index
// function counts them.
type changes map[any]*atomic.Uint64

func listType[L any]() any { return reflect.TypeFor[L]() }

// countOf returns the number of changes of a kind. It returns false if they are not counted.
func (c changes) countOf(key any) (uint64, bool) {
	if counter := c[key]; counter != nil {
		return counter.Load(), true
	}
	return 0, false
}
