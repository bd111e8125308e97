package gather

import (
	"context"
	"fmt"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// countedKinds returns the kinds with few objects, by the keys of their counters.
func (g *Gatherer) countedKinds() map[any]client.Object {
	kinds := map[any]client.Object{
		listType[corev1.NamespaceList](): &corev1.Namespace{}, listType[appsv1.DaemonSetList](): &appsv1.DaemonSet{}, listType[storagev1.StorageClassList](): &storagev1.StorageClass{},
		listType[karpv1.NodePoolList](): &karpv1.NodePool{}, listType[v1alpha1.GPUNodeClassList](): &v1alpha1.GPUNodeClass{},
	}
	if g.NodeOverlays {
		kinds[listType[karpv1alpha1.NodeOverlayList]()] = &karpv1alpha1.NodeOverlay{}
	}
	if g.ImageRollouts {
		kinds[listType[v1alpha1.GPUImageRolloutList]()] = &v1alpha1.GPUImageRollout{}
	}
	if g.DRA {
		kinds[listType[resourcev1.ResourceSliceList]()] = &resourcev1.ResourceSlice{}
		kinds[listType[resourcev1.DeviceClassList]()] = &resourcev1.DeviceClass{}
		kinds[listType[resourcev1.ResourceClaimList]()] = &resourcev1.ResourceClaim{}
		kinds[listType[resourcev1.ResourceClaimTemplateList]()] = &resourcev1.ResourceClaimTemplate{}
		if g.DeviceTaintRules {
			kinds[listType[resourcev1.DeviceTaintRuleList]()] = &resourcev1.DeviceTaintRule{}
		}
	}
	for _, gvk := range append([]schema.GroupVersionKind{nodePool, gpuNodeClass}, g.PodGroups...) {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(gvk)
		kinds[gvk] = u
	}
	return kinds
}

// Follow makes the informers record changes, so that the Gatherer reads only changed objects. It must be called once, before the informers start.
// Without it, each read lists everything.
func (g *Gatherer) Follow(ctx context.Context, caches Caches) error {
	counted := changes{}
	for key, object := range g.countedKinds() {
		counter := &atomic.Uint64{}
		counted[key] = counter
		if err := caches.IndexField(ctx, object, indexName, func(client.Object) []string {
			counter.Add(1)
			return nil
		}); err != nil {
			return fmt.Errorf("counting the changes of %T: %w", object, err)
		}
	}
	followed, err := follow(ctx, caches, g.written.noteSeen)
	if err != nil {
		return err
	}
	g.changes, g.followed = counted, followed
	return nil
}
