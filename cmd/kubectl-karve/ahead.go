package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// ahead reads lists that are all requested at once, before they are needed. A Gatherer requests one list after the other, and each takes a round trip
// to the API server.
type ahead struct {
	client.Reader
	lists []*coming
}

// coming is a list that has been requested.
type coming struct {
	list client.ObjectList
	done chan struct{}
	// err is set before done is closed.
	err error
}

// readAhead requests the lists that a [gather.Gatherer] reads, with only the pods that the selections match.
func (c connection) readAhead(ctx context.Context, pods ...selection) *ahead {
	from := bulk{c.Client, c.core, pods}
	a := &ahead{Reader: from}
	for _, list := range []client.ObjectList{
		&corev1.PodList{}, &corev1.NodeList{}, &corev1.NamespaceList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &storagev1.CSINodeList{},
		&storagev1.StorageClassList{}, &appsv1.DaemonSetList{}, &karpv1.NodePoolList{}, &karpv1.NodeClaimList{}, &v1alpha1.GPUNodeClassList{},
		untyped(schema.GroupVersionKind{Group: karpapis.Group, Version: "v1", Kind: "NodePoolList"}), untyped(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind + "List")),
	} {
		a.request(ctx, from, list)
	}
	if c.overlays {
		a.request(ctx, from, &karpv1alpha1.NodeOverlayList{})
	}
	return a
}

func untyped(kind schema.GroupVersionKind) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	return list
}

func (a *ahead) request(ctx context.Context, from client.Reader, list client.ObjectList) {
	requested := &coming{list: list, done: make(chan struct{})}
	a.lists = append(a.lists, requested)
	go func() {
		defer close(requested.done)
		if err := from.List(ctx, list); err != nil {
			requested.err = fmt.Errorf("listing objects of kind %s: %w", kindOf(list), err)
		}
	}()
}

// wait waits for all lists and returns their errors.
func (a *ahead) wait() error {
	var errs []error
	for _, l := range a.lists {
		<-l.done
		errs = append(errs, l.err)
	}
	return errors.Join(errs...)
}

// List returns a list that was requested ahead. It requests other lists, and parts of lists, now.
func (a *ahead) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	part := (&client.ListOptions{}).ApplyOptions(options)
	whole := part.Namespace == "" && part.LabelSelector == nil && part.FieldSelector == nil
	for _, l := range a.lists {
		if whole && reflect.TypeOf(l.list) == reflect.TypeOf(into) && kindOf(l.list) == kindOf(into) {
			<-l.done
			reflect.ValueOf(into).Elem().Set(reflect.ValueOf(l.list).Elem())
			return l.err
		}
	}
	return a.Reader.List(ctx, into, options...)
}

// kindOf returns the kind of the objects in a list.
func kindOf(list client.ObjectList) string {
	if u, ok := list.(*unstructured.UnstructuredList); ok {
		return strings.TrimSuffix(u.GetKind(), "List")
	}
	return strings.TrimSuffix(reflect.TypeOf(list).Elem().Name(), "List")
}
