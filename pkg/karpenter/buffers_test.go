package karpenter

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
)

// buffered has CapacityBuffers, and the Deployment web.
type buffered struct {
	client.Reader
	buffers []autoscalingv1beta1.CapacityBuffer
	trimmed bool
}

func (b buffered) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	for i := range b.buffers {
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&b.buffers[i])
		if err != nil {
			return err
		}
		u := unstructured.Unstructured{Object: object}
		_ = unstructured.SetNestedField(u.Object, "1e-2000000000", "spec", "limits", "cpu") // Decoding it would not end.
		if b.trimmed {
			TrimBuffer(&u)
		}
		list.(*unstructured.UnstructuredList).Items = append(list.(*unstructured.UnstructuredList).Items, u)
	}
	return nil
}

func (b buffered) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if _, ok := o.(*appsv1.Deployment); ok && key.Name == "web" {
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func TestForeignBuffersAreLeftOutAlone(t *testing.T) {
	t.Parallel()
	var from buffered
	add := func(name string, edit func(*autoscalingv1beta1.CapacityBuffer)) {
		b := autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		b.Spec.ScalableRef = &autoscalingv1beta1.ScalableRef{APIGroup: "apps", Kind: "Deployment", Name: "web"}
		b.Status.Replicas = new(int32(3))
		b.SetCondition(autoscalingv1beta1.ReadyForProvisioningCondition, metav1.ConditionTrue, "Resolved", "")
		edit(&b)
		from.buffers = append(from.buffers, b)
	}
	add("z-served", func(*autoscalingv1beta1.CapacityBuffer) {})
	add("kind", func(b *autoscalingv1beta1.CapacityBuffer) { b.Spec.ScalableRef.Kind = "Job" })
	add("group", func(b *autoscalingv1beta1.CapacityBuffer) { b.Spec.ScalableRef.APIGroup = "argoproj.io" })
	add("missing", func(b *autoscalingv1beta1.CapacityBuffer) { b.Spec.ScalableRef.Name = "missing" })
	add("no-ref", func(b *autoscalingv1beta1.CapacityBuffer) { b.Spec.ScalableRef = nil })
	add("strategy", func(b *autoscalingv1beta1.CapacityBuffer) { b.Spec.ProvisioningStrategy = new("example.com/other") })
	add("no-replicas", func(b *autoscalingv1beta1.CapacityBuffer) { b.Status.Replicas = nil })
	add("negative", func(b *autoscalingv1beta1.CapacityBuffer) { b.Status.Replicas = new(int32(-1)) })
	for _, from.trimmed = range []bool{false, true} {
		buffers, odd, err := Buffers(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		if len(buffers) != 1 || buffers[0].Name != "z-served" || buffers[0].Replicas != 3 {
			t.Errorf("the buffers are %+v", buffers)
		}
		if len(odd) != 2 || odd[0].Name != "group" || odd[1].Name != "kind" || !strings.Contains(odd[1].Why, "Job") {
			t.Errorf("the odd ones are %+v", odd)
		}
	}
}

func TestTrimmedBufferKeepsNoLongText(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	b := autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Name: "long", Annotations: map[string]string{"note": long}}}
	b.Spec.ScalableRef = &autoscalingv1beta1.ScalableRef{APIGroup: long, Kind: long, Name: long}
	b.Spec.PodTemplateRef = &autoscalingv1beta1.LocalObjectRef{Name: long}
	b.Spec.ProvisioningStrategy = new(long)
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&b)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: object}
	TrimBuffer(u)
	text, err := u.MarshalJSON()
	if err != nil || len(text) > 4096 {
		t.Errorf("%d bytes are left, %v", len(text), err)
	}
}
