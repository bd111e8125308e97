package gather

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
)

// state caches the objects of the kinds with few objects between reads. A read lists only the kinds of which an object has changed. Several controllers
// share the objects, so they must not be changed.
type state struct {
	nodePools  kept[karpv1.NodePoolList]
	classes    kept[v1alpha1.GPUNodeClassList]
	daemonSets kept[appsv1.DaemonSetList]
	overlays   kept[karpv1alpha1.NodeOverlayList]
	rollouts   kept[v1alpha1.GPUImageRolloutList]
	namespaces kept[corev1.NamespaceList]
	storage    kept[storagev1.StorageClassList]
	unknown    kept[map[types.UID][]string]

	slices        kept[resourcev1.ResourceSliceList]
	deviceClasses kept[resourcev1.DeviceClassList]
	claims        kept[resourcev1.ResourceClaimList]
	templates     kept[resourcev1.ResourceClaimTemplateList]
	taintRules    kept[resourcev1.DeviceTaintRuleList]

	// podGroups has the same indices as Gatherer.PodGroups.
	podGroups []kept[podGroups]
}

// kept is a value and the number of changes when it was read.
type kept[T any] struct {
	value T
	// counted reports whether the value was read and its changes are counted.
	counted bool
	changes uint64
}

// update reads the value unless its changes are counted and the number is the same as before. It reports whether the value differs.
func (k *kept[T]) update(counted func() (uint64, bool), read func() (T, error), same func(a, b T) bool) (differs bool, err error) {
	now, ok := counted()
	if ok && k.counted && now == k.changes {
		return false, nil
	}
	is, err := read()
	if err != nil {
		return false, err
	}
	differs = !k.counted || !same(k.value, is)
	*k = kept[T]{is, ok, now}
	return differs, nil
}

// equalItems reports whether two lists are equal as far as decisions are concerned. Caches list objects in any order.
func equalItems(a, b client.ObjectList) bool {
	return maps.EqualFunc(itemsOf(a), itemsOf(b), func(before, after client.Object) bool { return facts.Same(before, after) })
}

func itemsOf(list client.ObjectList) map[client.ObjectKey]client.Object {
	items := map[client.ObjectKey]client.Object{}
	_ = meta.EachListItem(list, func(o runtime.Object) error { // It returns an error only if the function does.
		if object, ok := o.(client.Object); ok {
			items[client.ObjectKeyFromObject(object)] = object
		}
		return nil
	})
	return items
}

// podGroups are the PodGroups of one API.
type podGroups struct {
	all []facts.PodGroup
	// unreadable reports that the user may not read them.
	unreadable bool
}
