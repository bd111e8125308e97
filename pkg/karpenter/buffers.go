package karpenter

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	"sigs.k8s.io/karpenter/pkg/utils/apps"
)

// CapacityBufferKind is the kind of objects that request free capacity.
var CapacityBufferKind = schema.GroupKind{Group: autoscalingv1beta1.Group, Kind: "CapacityBuffer"}

// NewCapacityBuffer returns an empty CapacityBuffer, for a watch.
func NewCapacityBuffer() client.Object { return &autoscalingv1beta1.CapacityBuffer{} }

// Buffer is a CapacityBuffer that Karpenter has resolved to a number of pods of a template.
type Buffer struct {
	Namespace, Name string
	// Replicas is the number of pods, greater than 0.
	Replicas int32
	Template corev1.PodTemplateSpec
}

// Buffers returns the CapacityBuffers that are ready for provisioning, sorted by namespace and name. The number of pods comes from the status, which
// Karpenter writes. The template comes from the object to which the buffer refers. As in Karpenter, buffers whose object does not exist are left out.
func Buffers(ctx context.Context, reader client.Reader) ([]Buffer, error) {
	var list autoscalingv1beta1.CapacityBufferList
	if err := reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing CapacityBuffers: %w", err)
	}
	var buffers []Buffer
	for i := range list.Items {
		cb := &list.Items[i]
		if !ready(cb) {
			continue
		}
		found, err := apps.ResolveCapacityBuffer(ctx, readOnly{reader: reader}, cb)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading what CapacityBuffer %s/%s is for: %w", cb.Namespace, cb.Name, err)
		}
		buffers = append(buffers, Buffer{Namespace: cb.Namespace, Name: cb.Name, Replicas: *cb.Status.Replicas, Template: found.PodTemplateSpec})
	}
	slices.SortFunc(buffers, func(a, b Buffer) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	return buffers, nil
}

func ready(cb *autoscalingv1beta1.CapacityBuffer) bool {
	active := cb.Spec.ProvisioningStrategy == nil || *cb.Spec.ProvisioningStrategy == autoscalingv1beta1.ActiveProvisioningStrategy
	return active && cb.DeletionTimestamp.IsZero() && cb.Status.Replicas != nil && *cb.Status.Replicas > 0 &&
		(cb.Spec.PodTemplateRef != nil || cb.Spec.ScalableRef != nil) &&
		meta.IsStatusConditionTrue(cb.Status.Conditions, autoscalingv1beta1.ReadyForProvisioningCondition)
}

// readOnly is a client for Karpenter's helper, which only calls Get.
type readOnly struct {
	client.Client
	reader client.Reader
}

func (r readOnly) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	return r.reader.Get(ctx, key, o, options...)
}
