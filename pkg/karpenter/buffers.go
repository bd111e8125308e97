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

// CapacityBufferKind is the kind of the objects that ask for capacity that is kept free.
var CapacityBufferKind = schema.GroupKind{Group: autoscalingv1beta1.Group, Kind: "CapacityBuffer"}

// NewCapacityBuffer is an empty one, to be watched.
func NewCapacityBuffer() client.Object { return &autoscalingv1beta1.CapacityBuffer{} }

// Buffer is a CapacityBuffer that Karpenter has resolved: how many pods of a template it stands for.
type Buffer struct {
	Namespace, Name string
	// Replicas counts pods, > 0.
	Replicas int32
	Template corev1.PodTemplateSpec
}

// Buffers are the CapacityBuffers that are ready for provisioning, by namespace and name. How many pods one stands for Karpenter has written to its status;
// the template is that of the object that it names. One that names an object which is gone is left out, as Karpenter does.
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

// readOnly is a client for Karpenter's helper, which reads and nothing else.
type readOnly struct {
	client.Client
	reader client.Reader
}

func (r readOnly) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	return r.reader.Get(ctx, key, o, options...)
}
