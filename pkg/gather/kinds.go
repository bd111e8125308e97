package gather

import (
	"context"
	"fmt"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Kinds are the kinds that are read, of those that an API server may lack.
type Kinds struct {
	NodeOverlays, CapacityBuffers, ProvisioningRequests bool
	// ImageRollouts affect the drift of machines.
	ImageRollouts bool
	// DRA stands for ResourceSlices, DeviceClasses, ResourceClaims and ResourceClaimTemplates. Without it, no DeviceTaintRules are read.
	DRA, DeviceTaintRules bool
	// NoDRA reports whether there is certainly no backend DRA. If DRA is false too, it is unknown.
	NoDRA bool
	// PodGroups have the versions that the API server prefers.
	PodGroups []schema.GroupVersionKind
}

// draKind returns a kind in the version that is read.
func draKind(kind string) schema.GroupVersionKind {
	return resourcev1.SchemeGroupVersion.WithKind(kind)
}

// optional is a kind without which the cluster can be read, and whether it is wanted and read.
type optional struct {
	kind   schema.GroupVersionKind
	wanted bool
	read   *bool
}

func (k *Kinds) optional(wanted published.Reads) []optional {
	return []optional{
		{schema.GroupVersionKind{Group: karpapis.Group, Kind: "NodeOverlay"}, true, &k.NodeOverlays},
		{v1alpha1.GroupVersion.WithKind("GPUImageRollout"), true, &k.ImageRollouts},
		{karpenter.CapacityBufferKind.WithVersion(""), wanted.CapacityBuffers, &k.CapacityBuffers},
		{provreq.Kind, wanted.ProvisioningRequests, &k.ProvisioningRequests},
		{draKind("ResourceSlice"), wanted.DRA, &k.DRA},
		{draKind("DeviceTaintRule"), wanted.DRA, &k.DeviceTaintRules},
	}
}

// KindsOf returns the wanted kinds that the API server serves, and those that it does not serve.
func KindsOf(mapper meta.RESTMapper, wanted published.Reads) (kinds Kinds, missing []schema.GroupVersionKind, err error) {
	for _, o := range kinds.optional(wanted) {
		if !o.wanted {
			continue
		}
		if _, *o.read, err = served(mapper, o.kind); err != nil {
			return kinds, nil, err
		}
		if !*o.read {
			missing = append(missing, o.kind)
		}
	}
	for _, api := range facts.PodGroupAPIs() {
		kind := api.PodGroupKind().WithVersion("")
		found, ok, err := served(mapper, kind)
		switch {
		case err != nil:
			return kinds, nil, err
		case ok:
			kinds.PodGroups = append(kinds.PodGroups, found)
		default:
			missing = append(missing, kind)
		}
	}
	kinds.NoDRA = !kinds.DRA
	return kinds, missing, nil
}

// served reports whether the API server serves a kind, in its version if it has one. It returns the kind in the version that the API server prefers.
func served(mapper meta.RESTMapper, kind schema.GroupVersionKind) (schema.GroupVersionKind, bool, error) {
	var versions []string
	if kind.Version != "" {
		versions = append(versions, kind.Version)
	}
	mapping, err := mapper.RESTMapping(kind.GroupKind(), versions...)
	switch {
	case meta.IsNoMatchError(err):
		return kind, false, nil
	case err != nil:
		return kind, false, fmt.Errorf("asking the API server for %s: %w", kind.GroupKind(), err)
	}
	return mapping.GroupVersionKind, true, nil
}

// readable leaves out the kinds that the user may not list, as an informer for them would wait forever. NodeOverlays are required where they are served.
func (k *Kinds) readable(ctx context.Context, live client.Client) {
	may := func(kinds ...schema.GroupVersionKind) bool {
		return !slices.ContainsFunc(kinds, func(kind schema.GroupVersionKind) bool {
			found, ok, err := served(live.RESTMapper(), kind)
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(found.GroupVersion().WithKind(found.Kind + "List"))
			return !ok || err != nil || live.List(ctx, list, client.Limit(1)) != nil
		})
	}
	for _, o := range k.optional(published.Reads{}) {
		if *o.read && o.read != &k.NodeOverlays && !may(o.kind) {
			*o.read = false
		}
	}
	k.DRA = k.DRA && may(draKind("DeviceClass"), draKind("ResourceClaim"), draKind("ResourceClaimTemplate"))
	k.PodGroups = slices.DeleteFunc(k.PodGroups, func(kind schema.GroupVersionKind) bool { return !may(kind) })
}
