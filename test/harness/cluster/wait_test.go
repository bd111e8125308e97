package cluster_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster/simulator"
)

func (s suite) setRules(t *testing.T, rules map[string]string) {
	t.Helper()
	if err := simulator.Configure(t.Context(), s.client, rules); err != nil {
		t.Fatal(err)
	}
}

func (s suite) create(t *testing.T, resource schema.GroupVersionResource, manifest string) {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &object.Object); err != nil {
		t.Fatal(err)
	}
	if _, err := s.dynamic.Resource(resource).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s suite) createPod(t *testing.T, name, pool string, asks corev1.ResourceName, amount string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"karpenter.sh/nodepool": pool},
			Containers: []corev1.Container{{
				Name: "main", Image: "example.com/nothing",
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{asks: resource.MustParse(amount)},
					Limits:   corev1.ResourceList{asks: resource.MustParse(amount)},
				},
			}},
		},
	}
	if _, err := s.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s suite) waitPod(t *testing.T, name string, is func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	until(t, s.dynamic.Resource(pods).Namespace("default"), name, func(e watch.Event) bool {
		convert(t, e.Object, pod)
		return is(pod)
	})
	return pod
}

// waitNode waits for the node of the claim "shared".
func (s suite) waitNode(t *testing.T, is func(*corev1.Node) bool) *corev1.Node {
	t.Helper()
	claim, err := s.dynamic.Resource(nodeClaims).Get(t.Context(), "shared", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
	var node *corev1.Node
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	until(t, s.dynamic.Resource(nodes), name, func(e watch.Event) bool {
		node = &corev1.Node{}
		convert(t, e.Object, node)
		return is(node)
	})
	return node
}

func (s suite) waitClaim(t *testing.T, condition string) {
	t.Helper()
	until(t, s.dynamic.Resource(nodeClaims), "shared", func(e watch.Event) bool {
		claim := struct {
			Status struct {
				Conditions []metav1.Condition `json:"conditions"`
			} `json:"status"`
		}{}
		convert(t, e.Object, &claim)
		for _, c := range claim.Status.Conditions {
			if c.Type == condition && c.Status == metav1.ConditionTrue {
				return true
			}
		}
		return false
	})
}

// until watches one object until is returns true.
func until(t *testing.T, in dynamic.ResourceInterface, name string, is func(watch.Event) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return in.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return in.Watch(ctx, o)
		},
	}
	var last any
	_, err := watchtools.UntilWithSync(ctx, source, &unstructured.Unstructured{}, func(store cache.Store) (bool, error) {
		// The object was deleted before the watch began.
		gone := len(store.ListKeys()) == 0
		return gone && is(watch.Event{Type: watch.Deleted, Object: &unstructured.Unstructured{}}), nil
	}, func(e watch.Event) (bool, error) {
		if object, ok := e.Object.(*unstructured.Unstructured); ok {
			last = object.Object["status"]
		}
		return is(e), nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v; its status was last:\n%v", name, err, last)
	}
}

func convert(t *testing.T, from runtime.Object, to any) {
	t.Helper()
	object, ok := from.(*unstructured.Unstructured)
	if !ok {
		t.Fatalf("watching: %v", from)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, to); err != nil {
		t.Fatal(err)
	}
}

// shared returns the node's allocatable shared GPUs.
func shared(node *corev1.Node) int64 {
	return n(node.Status.Allocatable, v1alpha1.ResourceGPUShared)
}

func n(of corev1.ResourceList, name corev1.ResourceName) int64 {
	q := of[name]
	return q.Value()
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
