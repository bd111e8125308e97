package karpenter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	"sigs.k8s.io/karpenter/pkg/utils/apps"
)

// CapacityBufferKind is the kind of objects that request free capacity.
var CapacityBufferKind = schema.GroupKind{Group: autoscalingv1beta1.Group, Kind: "CapacityBuffer"}

// NewCapacityBuffer returns an empty CapacityBuffer, for a watch. CapacityBuffers are read as unstructured objects: their limits are quantities of users that
// the API server has not decoded, and decoding 1e-2000000000 does not end.
func NewCapacityBuffer() client.Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(CapacityBufferKind.WithVersion("v1beta1"))
	return u
}

// TrimBuffer removes what Buffers does not read from a CapacityBuffer.
func TrimBuffer(u *unstructured.Unstructured) {
	cb := bufferOf(u)
	ready := metav1.Condition{Type: autoscalingv1beta1.ReadyForProvisioningCondition, Status: metav1.ConditionFalse}
	if apimeta.IsStatusConditionTrue(cb.Status.Conditions, ready.Type) {
		ready.Status = metav1.ConditionTrue
	}
	kept := autoscalingv1beta1.CapacityBuffer{Spec: cb.Spec, Status: autoscalingv1beta1.CapacityBufferStatus{Replicas: cb.Status.Replicas, Conditions: []metav1.Condition{ready}}}
	kept.ObjectMeta = metav1.ObjectMeta{
		Namespace: cb.Namespace, Name: cb.Name, UID: cb.UID, ResourceVersion: cb.ResourceVersion, Generation: cb.Generation, DeletionTimestamp: cb.DeletionTimestamp,
		CreationTimestamp: cb.CreationTimestamp,
	}
	if object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&kept); err == nil {
		gvk := u.GroupVersionKind()
		u.Object = object
		u.SetGroupVersionKind(gvk)
	}
}

// bufferOf converts a CapacityBuffer without its limits. Fields of wrong types are left out.
func bufferOf(u *unstructured.Unstructured) *autoscalingv1beta1.CapacityBuffer {
	cb := &autoscalingv1beta1.CapacityBuffer{}
	into := func(field string, target any) {
		part, ok := u.Object[field].(map[string]any)
		if !ok {
			return
		}
		part = maps.Clone(part)
		delete(part, "limits")
		_ = runtime.DefaultUnstructuredConverter.FromUnstructured(part, target) // A buffer without its fields is not ready.
	}
	into("metadata", &cb.ObjectMeta)
	into("spec", &cb.Spec)
	into("status", &cb.Status)
	if r := cb.Spec.PodTemplateRef; r != nil {
		r.Name = cutName(r.Name)
	}
	if r := cb.Spec.ScalableRef; r != nil {
		r.APIGroup, r.Kind, r.Name = cutName(r.APIGroup), cutName(r.Kind), cutName(r.Name)
	}
	if s := cb.Spec.ProvisioningStrategy; s != nil {
		*s = cutName(*s)
	}
	return cb
}

// cutName cuts a text of a user that the CRD does not bound. What is longer than a name names nothing, and neither does its beginning.
func cutName(text string) string {
	if len(text) <= validation.DNS1123SubdomainMaxLength {
		return text
	}
	return strings.Clone(text[:validation.DNS1123SubdomainMaxLength+1])
}

// Buffer is a CapacityBuffer that Karpenter has resolved to a number of pods of a template.
type Buffer struct {
	Namespace, Name string
	// Replicas is the number of pods, greater than 0.
	Replicas int32
	Template corev1.PodTemplateSpec
}

// OddBuffer is a CapacityBuffer that another autoscaler may serve, but not Karve.
type OddBuffer struct {
	Namespace, Name string
	UID             types.UID
	// Why is why what it refers to cannot be read.
	Why string
}

// Reference returns a reference for events.
func (b *OddBuffer) Reference() *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: CapacityBufferKind.Group + "/v1beta1", Kind: CapacityBufferKind.Kind, Namespace: b.Namespace, Name: b.Name, UID: b.UID,
	}
}

// Buffers returns the CapacityBuffers that are ready for provisioning, sorted by namespace and name, and those of them that refer to something that cannot be
// read. The number of pods comes from the status, which Karpenter writes. The template comes from the object to which the buffer refers. As in Karpenter,
// buffers whose object does not exist are left out.
func Buffers(ctx context.Context, reader client.Reader) (buffers []Buffer, odd []OddBuffer, err error) {
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: CapacityBufferKind.Group, Version: "v1beta1", Kind: CapacityBufferKind.Kind + "List"})
	if err := reader.List(ctx, &list); err != nil {
		return nil, nil, fmt.Errorf("listing CapacityBuffers: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	for i := range list.Items {
		cb := bufferOf(&list.Items[i])
		if !ready(cb) {
			continue
		}
		found, err := apps.ResolveCapacityBuffer(ctx, readOnly{reader: reader}, cb)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil && ctx.Err() != nil:
			return nil, nil, fmt.Errorf("reading what CapacityBuffer %s/%s is for: %w", cb.Namespace, cb.Name, err)
		case err != nil: // Cluster Autoscaler knows other kinds of scalableRef. One buffer must not stop the plans of all pods.
			odd = append(odd, OddBuffer{cb.Namespace, cb.Name, cb.UID, err.Error()})
		default:
			buffers = append(buffers, Buffer{Namespace: cb.Namespace, Name: cb.Name, Replicas: *cb.Status.Replicas, Template: found.PodTemplateSpec})
		}
	}
	return buffers, odd, nil
}

func ready(cb *autoscalingv1beta1.CapacityBuffer) bool {
	active := cb.Spec.ProvisioningStrategy == nil || *cb.Spec.ProvisioningStrategy == autoscalingv1beta1.ActiveProvisioningStrategy
	return active && cb.DeletionTimestamp.IsZero() && cb.Status.Replicas != nil && *cb.Status.Replicas > 0 &&
		(cb.Spec.PodTemplateRef != nil || cb.Spec.ScalableRef != nil) &&
		apimeta.IsStatusConditionTrue(cb.Status.Conditions, autoscalingv1beta1.ReadyForProvisioningCondition)
}

// readOnly is a client for Karpenter's helper, which only calls Get.
type readOnly struct {
	client.Client
	reader client.Reader
}

func (r readOnly) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	return r.reader.Get(ctx, key, o, options...)
}
