package gather

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
)

// The kinds whose specs are also read as unstructured objects.
var (
	nodePool     = schema.GroupVersionKind{Group: apis.Group, Version: "v1", Kind: "NodePool"}
	gpuNodeClass = v1alpha1.GroupVersion.WithKind(v1alpha1.Kind)
)

// unknownFields returns the paths of fields in the specs of Karve's NodePools and of GPUNodeClasses that the Go types do not have, by the objects' UIDs. The
// API server keeps such fields if its CRDs are newer than Karve. They are read from separate, unstructured informers, because the typed objects have lost
// them.
func (g *Gatherer) unknownFields(ctx context.Context, pools []karpv1.NodePool) (map[types.UID][]string, error) {
	ours := map[types.UID]bool{}
	for i := range pools {
		ours[pools[i].UID] = facts.IsOurs(&pools[i])
	}
	unknown := map[types.UID][]string{}
	list := func(gvk schema.GroupVersionKind, wanted func(types.UID) bool, spec func() any) error {
		var all unstructured.UnstructuredList
		all.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err := g.Cached.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("listing %ss as they are: %w", gvk.Kind, err)
		}
		for i := range all.Items {
			o := &all.Items[i]
			if paths := unknownIn(o.Object["spec"], spec()); len(paths) > 0 && wanted(o.GetUID()) {
				unknown[o.GetUID()] = paths
			}
		}
		return nil
	}
	return unknown, errors.Join(
		list(nodePool, func(uid types.UID) bool { return ours[uid] }, func() any { return &karpv1.NodePoolSpec{} }),
		list(gpuNodeClass, func(types.UID) bool { return true }, func() any { return &v1alpha1.GPUNodeClassSpec{} }),
	)
}

// unknownIn returns the paths of the fields of a spec that its Go type does not have.
func unknownIn(spec, typed any) []string {
	fields, ok := spec.(map[string]any)
	if !ok {
		return nil
	}
	strict, ok := runtime.AsStrictDecodingError(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(fields, typed, true))
	if !ok {
		return nil
	}
	var paths []string
	for _, err := range strict.Errors() {
		if path, err := strconv.Unquote(strings.TrimPrefix(err.Error(), "unknown field ")); err == nil {
			paths = append(paths, "spec."+path)
		}
	}
	return paths
}
