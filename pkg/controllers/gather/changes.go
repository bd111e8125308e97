package gather

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// indexName is the name of an index that finds nothing. Its function is called when an object changes.
const indexName = "karve.sh/changes"

// changes counts the changes of the objects in the informers' caches, by kind. An informer calls its index functions while it changes its store, before it
// notifies any handler. So a reconciler that is triggered by a change finds it counted. Event handlers could not guarantee this, because they are called one
// by one after the change. A change may be counted more than once.
type changes map[any]*atomic.Uint64

// kinds returns the objects that are read from the caches, by the keys of their counters.
func (g *Gatherer) kinds() map[any]client.Object {
	kinds := map[any]client.Object{
		typeOf[corev1.PodList](): &corev1.Pod{}, typeOf[corev1.NodeList](): &corev1.Node{}, typeOf[corev1.NamespaceList](): &corev1.Namespace{},
		typeOf[corev1.PersistentVolumeList](): &corev1.PersistentVolume{}, typeOf[corev1.PersistentVolumeClaimList](): &corev1.PersistentVolumeClaim{},
		typeOf[appsv1.DaemonSetList](): &appsv1.DaemonSet{}, typeOf[storagev1.StorageClassList](): &storagev1.StorageClass{},
		typeOf[storagev1.CSINodeList](): &storagev1.CSINode{}, typeOf[karpv1.NodePoolList](): &karpv1.NodePool{},
		typeOf[karpv1.NodeClaimList](): &karpv1.NodeClaim{}, typeOf[v1alpha1.GPUNodeClassList](): &v1alpha1.GPUNodeClass{},
	}
	if g.NodeOverlays {
		kinds[typeOf[karpv1alpha1.NodeOverlayList]()] = &karpv1alpha1.NodeOverlay{}
	}
	if g.ImageRollouts {
		kinds[typeOf[v1alpha1.GPUImageRolloutList]()] = &v1alpha1.GPUImageRollout{}
	}
	for _, gvk := range []schema.GroupVersionKind{nodePool, gpuNodeClass} {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(gvk)
		kinds[gvk] = u
	}
	return kinds
}

func typeOf[L any]() any { return reflect.TypeFor[L]() }

// CountChanges makes the informers count the changes of what the Gatherer reads, so that it lists only kinds that have changed. It must be called once, before
// the informers start. Without it, the Gatherer lists everything each time.
func (g *Gatherer) CountChanges(ctx context.Context, indexer client.FieldIndexer) error {
	counted := changes{}
	for key, object := range g.kinds() {
		counter := &atomic.Uint64{}
		counted[key] = counter
		if err := indexer.IndexField(ctx, object, indexName, func(client.Object) []string {
			counter.Add(1)
			return nil
		}); err != nil {
			return fmt.Errorf("counting the changes of %T: %w", object, err)
		}
	}
	g.changes = counted
	return nil
}

// of returns the number of changes of a kind, and false if they are not counted.
func (c changes) of(key any) (uint64, bool) {
	if counter := c[key]; counter != nil {
		return counter.Load(), true
	}
	return 0, false
}

// all returns the number of changes of all kinds. It never falls, and stays the same only while nothing changes.
func (c changes) all() uint64 {
	var sum uint64
	for _, counter := range c {
		sum += counter.Load()
	}
	return sum
}
