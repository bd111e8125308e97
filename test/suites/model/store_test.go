package model

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// store is an in-memory API server with what the reconcilers use: UIDs, resource versions, finalizers, preconditions, merge patches of objects and their
// status, and eviction. It does not validate, default or watch. controller-runtime's fake client does much more and is a hundred times slower.
type store struct {
	mu      sync.Mutex // NodeClaims are created, and nominations are written concurrently.
	clock   *clocktesting.FakeClock
	objects map[string]map[client.ObjectKey]client.Object
	version int
	// evict decides on evictions and deletes the pod.
	evict func(*corev1.Pod) error
	// created is called for each created object.
	created func(client.Object)
	// deleted is called for each deletion.
	deleted func(client.Object)
}

func newStore(clock *clocktesting.FakeClock) *store {
	return &store{clock: clock, objects: map[string]map[client.ObjectKey]client.Object{}}
}

func kindOf(o any) string {
	return strings.TrimSuffix(reflect.TypeOf(o).Elem().Name(), "List")
}

// kind returns the objects of a kind.
func (s *store) kind(name string) map[client.ObjectKey]client.Object {
	if s.objects[name] == nil {
		s.objects[name] = map[client.ObjectKey]client.Object{}
	}
	return s.objects[name]
}

// all returns the stored objects of a kind, sorted by name. They are not copies.
func all[T client.Object](s *store) []T {
	objects := s.kind(kindOf(*new(T)))
	list := make([]T, 0, len(objects))
	for _, o := range objects {
		list = append(list, o.(T))
	}
	slices.SortFunc(list, func(a, b T) int {
		if c := strings.Compare(a.GetNamespace(), b.GetNamespace()); c != 0 {
			return c
		}
		return strings.Compare(a.GetName(), b.GetName())
	})
	return list
}

// find returns a stored object; nil if there is none.
func find[T client.Object](s *store, namespace, name string) T {
	o, _ := s.kind(kindOf(*new(T)))[client.ObjectKey{Namespace: namespace, Name: name}].(T)
	return o
}

func notFound(o client.Object, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: kindOf(o)}, name)
}

// touch bumps the resource version of a changed object.
func (s *store) touch(o client.Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
}

func (s *store) put(o client.Object) {
	s.touch(o)
	s.kind(kindOf(o))[client.ObjectKeyFromObject(o)] = o
}

// drop removes an object despite its finalizers.
func (s *store) drop(o client.Object) {
	delete(s.kind(kindOf(o)), client.ObjectKeyFromObject(o))
	s.version++
}

func (s *store) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if u, ok := o.(*unstructured.Unstructured); ok {
		innerClass().DeepCopyInto(u)
		return nil
	}
	stored := s.kind(kindOf(o))[key]
	if stored == nil {
		return notFound(o, key.Name)
	}
	reflect.ValueOf(o).Elem().Set(reflect.ValueOf(stored.DeepCopyObject()).Elem())
	return nil
}

func (s *store) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	var node string
	if o.FieldSelector != nil {
		node, _ = o.FieldSelector.RequiresExactMatch("spec.nodeName")
	}
	objects := s.objects[kindOf(list)] // Lists are concurrent, and kind may write.
	keys := make([]client.ObjectKey, 0, len(objects))
	for key := range objects {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b client.ObjectKey) int { return strings.Compare(a.String(), b.String()) })
	items := reflect.ValueOf(list).Elem().FieldByName("Items")
	copied := reflect.MakeSlice(items.Type(), 0, len(keys))
	for _, key := range keys {
		if pod, ok := objects[key].(*corev1.Pod); ok && node != "" && pod.Spec.NodeName != node {
			continue
		}
		if u, ok := objects[key].(*unstructured.Unstructured); ok && u.GroupVersionKind().Group != list.GetObjectKind().GroupVersionKind().Group {
			continue
		}
		copied = reflect.Append(copied, reflect.ValueOf(objects[key].DeepCopyObject()).Elem())
	}
	items.Set(copied)
	return nil
}

func (s *store) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kind(kindOf(o))[client.ObjectKeyFromObject(o)] != nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: kindOf(o)}, o.GetName())
	}
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("%s-%d", o.GetName(), s.version)))
	}
	o.SetCreationTimestamp(metav1.NewTime(s.clock.Now().Truncate(1e9)))
	o.SetGeneration(1)
	if claim, ok := o.(*karpv1.NodeClaim); ok {
		claim.Finalizers = []string{karpv1.TerminationFinalizer}
	}
	s.touch(o)
	if s.created != nil {
		s.created(o)
	}
	s.put(o.DeepCopyObject().(client.Object))
	return nil
}

func (s *store) Delete(_ context.Context, o client.Object, options ...client.DeleteOption) error {
	var opts client.DeleteOptions
	opts.ApplyOptions(options)
	stored := s.kind(kindOf(o))[client.ObjectKeyFromObject(o)]
	if stored == nil {
		return notFound(o, o.GetName())
	}
	if p := opts.Preconditions; p != nil && (p.UID != nil && *p.UID != stored.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != stored.GetResourceVersion()) {
		return apierrors.NewConflict(schema.GroupResource{Resource: kindOf(o)}, o.GetName(), fmt.Errorf("it has changed"))
	}
	s.remove(stored)
	if s.deleted != nil {
		s.deleted(stored)
	}
	return nil
}

// remove deletes an object that has no finalizers, and otherwise sets its deletion timestamp. Pods always have a grace period.
func (s *store) remove(stored client.Object) {
	_, pod := stored.(*corev1.Pod)
	if len(stored.GetFinalizers()) == 0 && !pod {
		s.drop(stored)
		return
	}
	if stored.GetDeletionTimestamp().IsZero() {
		at := metav1.NewTime(s.clock.Now().Truncate(1e9))
		stored.SetDeletionTimestamp(&at)
		s.touch(stored)
	}
}

func (s *store) Patch(_ context.Context, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return s.patch(o, patch, false)
}

// patch applies a merge patch to the status, or to everything else.
func (s *store) patch(o client.Object, patch client.Patch, status bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := client.ObjectKeyFromObject(o)
	stored := s.kind(kindOf(o))[key]
	if stored == nil {
		return notFound(o, key.Name)
	}
	data, err := patch.Data(o)
	if err != nil {
		return fmt.Errorf("making the patch: %w", err)
	}
	var changes map[string]any
	if err := json.Unmarshal(data, &changes); err != nil {
		return fmt.Errorf("reading the patch: %w", err)
	}
	if m, ok := changes["metadata"].(map[string]any); ok {
		if v, ok := m["resourceVersion"]; ok && v != stored.GetResourceVersion() {
			return apierrors.NewConflict(schema.GroupResource{Resource: kindOf(o)}, key.Name, fmt.Errorf("it has changed"))
		}
	}
	if said, ok := changes["status"]; status {
		changes = map[string]any{}
		if ok {
			changes["status"] = said
		}
	} else {
		delete(changes, "status")
	}
	was, err := json.Marshal(stored)
	if err != nil {
		return fmt.Errorf("writing %s: %w", key, err)
	}
	var before map[string]any
	if err := json.Unmarshal(was, &before); err != nil {
		return fmt.Errorf("reading %s: %w", key, err)
	}
	is, err := json.Marshal(merge(before, changes))
	if err != nil {
		return fmt.Errorf("writing %s: %w", key, err)
	}
	next := reflect.New(reflect.TypeOf(stored).Elem()).Interface().(client.Object)
	if err := json.Unmarshal(is, next); err != nil {
		return fmt.Errorf("patching %s: %w", key, err)
	}
	s.put(next)
	if !next.GetDeletionTimestamp().IsZero() && len(next.GetFinalizers()) == 0 && kindOf(next) != "Pod" {
		s.drop(next)
	}
	reflect.ValueOf(o).Elem().Set(reflect.ValueOf(next.DeepCopyObject()).Elem())
	return nil
}

// merge applies a JSON merge patch as in RFC 7386.
func merge(into, changes map[string]any) map[string]any {
	for key, change := range changes {
		switch c := change.(type) {
		case nil:
			delete(into, key)
		case map[string]any:
			inner, ok := into[key].(map[string]any)
			if !ok {
				inner = map[string]any{}
			}
			into[key] = merge(inner, c)
		default:
			into[key] = c
		}
	}
	return into
}

func (s *store) Status() client.SubResourceWriter { return subresource{s, "status"} }

func (s *store) SubResource(name string) client.SubResourceClient { return subresource{s, name} }

// subresource is the status or eviction subresource.
type subresource struct {
	*store
	name string
}

func (s subresource) Get(context.Context, client.Object, client.Object, ...client.SubResourceGetOption) error {
	panic("nobody reads subresources")
}

func (s subresource) Create(_ context.Context, o, body client.Object, _ ...client.SubResourceCreateOption) error {
	if _, ok := body.(*policyv1.Eviction); !ok || s.name != "eviction" {
		panic("nobody creates " + s.name)
	}
	pod := find[*corev1.Pod](s.store, o.GetNamespace(), o.GetName())
	if pod == nil || pod.UID != o.GetUID() {
		return notFound(o, o.GetName())
	}
	return s.evict(pod)
}

func (s subresource) Update(context.Context, client.Object, ...client.SubResourceUpdateOption) error {
	panic("nobody updates " + s.name)
}

func (s subresource) Patch(_ context.Context, o client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.patch(o, patch, true)
}

func (s subresource) Apply(context.Context, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
	panic("nobody applies")
}

func (s *store) Update(context.Context, client.Object, ...client.UpdateOption) error {
	panic("nobody updates")
}

func (s *store) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	panic("nobody applies")
}

func (s *store) DeleteAllOf(context.Context, client.Object, ...client.DeleteAllOfOption) error {
	panic("nobody deletes all")
}

func (s *store) Scheme() *runtime.Scheme { panic("nobody asks for the scheme") }

func (s *store) RESTMapper() meta.RESTMapper { panic("nobody asks for the mapper") }

func (s *store) GroupVersionKindFor(runtime.Object) (schema.GroupVersionKind, error) {
	panic("nobody asks for kinds")
}

func (s *store) IsObjectNamespaced(runtime.Object) (bool, error) { panic("nobody asks for namespaces") }
