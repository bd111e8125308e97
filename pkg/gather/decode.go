package gather

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
)

// A list cannot be decoded if one field of one object cannot, and an informer retries such a list forever. The schemas of CRDs do not prevent it: the API
// server accepts the quantity 1e2.5 and the duration 9999999h, because they match the pattern of their field. So a list that cannot be decoded is read
// again object by object, without the fields that cannot be decoded.

// List lists objects with a client that reads from the API server. Objects of kinds with a CRD lack the fields that cannot be decoded.
func List(ctx context.Context, reader client.Reader, list client.ObjectList, options ...client.ListOption) error {
	err := reader.List(ctx, list, options...)
	if err == nil || !undecodable(ctx, err) {
		return err
	}
	if _, raw := list.(*unstructured.UnstructuredList); raw {
		return err
	}
	if each := listEach(ctx, reader, list, options...); each != nil {
		return err // Every attempt would fail with it.
	}
	return nil
}

// undecodable reports whether an error may come from decoding the answer of the API server.
func undecodable(ctx context.Context, err error) bool {
	var refused apierrors.APIStatus
	var network *url.Error
	return ctx.Err() == nil && !errors.As(err, &refused) && !errors.As(err, &network) && !meta.IsNoMatchError(err)
}

// listEach lists objects and decodes them one by one.
func listEach(ctx context.Context, reader client.Reader, list client.ObjectList, options ...client.ListOption) error {
	kinds, err := Scheme()
	if err != nil {
		return err
	}
	gvk, err := apiutil.GVKForObject(list, kinds)
	if err != nil {
		return err
	}
	var all unstructured.UnstructuredList
	all.SetGroupVersionKind(gvk)
	if err := reader.List(ctx, &all, options...); err != nil {
		return err
	}
	items := make([]runtime.Object, len(all.Items))
	for i := range all.Items {
		object := &all.Items[i]
		typed, err := kinds.New(object.GroupVersionKind())
		if err != nil {
			return err
		}
		items[i] = typed
		paths := decode(object.Object, typed, func() (runtime.Object, error) { return kinds.New(object.GroupVersionKind()) })
		if len(paths) == 0 {
			continue
		}
		log.FromContext(ctx).Info("An object has fields that cannot be read, and is used without them", "kind", object.GetKind(), "namespace", object.GetNamespace(), "name", object.GetName(),
			"fields", paths)
		if err := setAsideWithout(typed, paths); err != nil {
			return err
		}
	}
	list.SetResourceVersion(all.GetResourceVersion())
	list.SetContinue(all.GetContinue())
	list.SetRemainingItemCount(all.GetRemainingItemCount())
	return meta.SetList(list, items)
}

// maxPaths limits the paths that are reported for an object.
const maxPaths = 10

// decode converts an object to its type. It leaves out fields that cannot be converted, and returns their paths. fresh returns an empty object.
func decode(object map[string]any, typed runtime.Object, fresh func() (runtime.Object, error)) []string {
	if convert(object, typed) == nil {
		return nil
	}
	p := pruner{converts: func(object any) bool {
		whole, ok := object.(map[string]any)
		made, err := fresh()
		return ok && err == nil && convert(whole, made) == nil
	}}
	kept, _ := p.prune(object, "", func(part any) any { return part })
	if whole, ok := kept.(map[string]any); ok && convert(whole, typed) == nil {
		return p.paths
	}
	// The metadata of an object can always be converted.
	_ = convert(map[string]any{"metadata": object["metadata"]}, typed)
	return []string{"spec", "status"}
}

// setAsideWithout sets an object aside that lacks fields: a NodePool or a GPUNodeClass launches nothing, because the field may be a limit. A NodePool gets a
// budget of 0 nodes, because one that cannot be read may be smaller than others.
func setAsideWithout(typed runtime.Object, paths []string) error {
	object, err := meta.Accessor(typed)
	if err != nil {
		return err
	}
	object.SetAnnotations(facts.SetAsideSpec(object.GetAnnotations(), "it has fields that cannot be read: "+strings.Join(paths, ", ")+". Correct them"))
	if pool, ok := typed.(*karpv1.NodePool); ok {
		pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0"}}
	}
	return nil
}

func convert(object map[string]any, typed runtime.Object) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructured(object, typed)
}

// pruner removes the parts of an object that cannot be converted.
type pruner struct {
	converts func(object any) bool
	paths    []string
}

// prune returns a part of an object without what cannot be converted. within puts the part into an object that has nothing else. It returns false if
// nothing of the part can be converted.
func (p *pruner) prune(part any, path string, within func(any) any) (any, bool) {
	if p.converts(within(part)) {
		return part, true
	}
	var kept any
	switch part := part.(type) {
	case map[string]any:
		fields := map[string]any{}
		for key, value := range part {
			if field, ok := p.prune(value, path+"."+key, func(value any) any { return within(map[string]any{key: value}) }); ok {
				fields[key] = field
			}
		}
		kept = fields
	case []any:
		var values []any
		for i, value := range part {
			if value, ok := p.prune(value, fmt.Sprintf("%s[%d]", path, i), func(value any) any { return within([]any{value}) }); ok {
				values = append(values, value)
			}
		}
		kept = values
	}
	if kept != nil && p.converts(within(kept)) {
		return kept, true
	}
	if len(p.paths) < maxPaths {
		p.paths = append(p.paths, path[min(1, len(path)):])
		slices.Sort(p.paths)
	}
	return nil, false
}

// NewInformer returns a constructor of informers that do not fail because of one object that cannot be decoded.
func NewInformer(config *rest.Config) func(toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers) toolscache.SharedIndexInformer {
	live := sync.OnceValues(func() (client.Client, error) {
		kinds, err := Scheme()
		if err != nil {
			return nil, err
		}
		return client.New(config, client.Options{Scheme: kinds})
	})
	return func(from toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		if list := listOf(object); list != nil {
			from = &listerWatcher{toolscache.ToListerWatcherWithContext(from), live, list}
		}
		return toolscache.NewSharedIndexInformer(from, object, resync, indexers)
	}
}

// listOf returns an empty list for objects of a kind that has a CRD, or nil for other kinds.
func listOf(object runtime.Object) client.ObjectList {
	kinds, err := Scheme()
	if err != nil {
		return nil
	}
	gvk, err := apiutil.GVKForObject(object, kinds)
	if err != nil || !slices.Contains([]string{apis.Group, v1alpha1.Group}, gvk.Group) {
		return nil
	}
	if _, raw := object.(*unstructured.Unstructured); raw {
		return nil
	}
	list, err := kinds.New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err != nil {
		return nil
	}
	all, _ := list.(client.ObjectList)
	return all
}

// listerWatcher lists objects one by one if they cannot be decoded together. A watch ends at an event that cannot be decoded, and the informer lists
// again.
type listerWatcher struct {
	toolscache.ListerWatcherWithContext
	live  func() (client.Client, error)
	empty client.ObjectList
}

// ListWithContext lists the objects.
func (l *listerWatcher) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	all, err := l.ListerWatcherWithContext.ListWithContext(ctx, options)
	if err == nil || !undecodable(ctx, err) {
		return all, err
	}
	live, failed := l.live()
	list, ok := l.empty.DeepCopyObject().(client.ObjectList)
	if failed != nil || !ok || listEach(ctx, live, list, &client.ListOptions{Raw: &options}) != nil {
		return nil, err
	}
	return list, nil
}

// List lists the objects.
func (l *listerWatcher) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options) //nolint:forbidigo // The interface has none.
}

// Watch watches the objects.
func (l *listerWatcher) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options) //nolint:forbidigo // The interface has none.
}
