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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/cluster"
	"karve.sh/karve/test/cluster/simulator"
)

var (
	nodeClasses = schema.GroupVersionResource{Group: "karpenter.kwok.sh", Version: "v1alpha1", Resource: "kwoknodeclasses"}
	nodePools   = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodepools"}
	overlays    = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1alpha1", Resource: "nodeoverlays"}
	nodeClaims  = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}
)

const nodeClass = `
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata: {name: default}
`

const cpuPool = `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: cpu}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements:
      - {key: karpenter.k8s.aws/instance-family, operator: In, values: [m5]}
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
`

// stockGPUPool is what Karve is compared with: Karpenter packs pods on GPUs whose replicas a NodeOverlay states.
const stockGPUPool = `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: gpu-stock}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements:
      - {key: karpenter.k8s.aws/instance-gpu-name, operator: In, values: [t4]}
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
`

// An overlay for the kwok provider has to name instance types: what only the offerings say, the labels
// karpenter.k8s.aws/instance-* here, is unknown to Karpenter when it matches overlays.
const overlay = `
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: one-gpu}
spec:
  requirements:
  - {key: node.kubernetes.io/instance-type, operator: In, values: [g4dn.xlarge]}
  capacity: {nvidia.com/gpu.shared: "10"}
`

// sharedClaim is what Karve launches: no NodePool object stands behind it here, and Karpenter does not ask for one.
const sharedClaim = `
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata:
  name: shared
  labels: {karpenter.sh/nodepool: gpu-shared}
  annotations:
    karve.sh/resource: nvidia.com/gpu.shared
    karve.sh/gpus: "1"
    karve.sh/replicas-per-gpu: "10"
spec:
  nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
  requirements:
  - {key: node.kubernetes.io/instance-type, operator: In, values: [g4dn.xlarge]}
  - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
  startupTaints:
  - {key: karve.sh/replicas-not-ready, effect: NoSchedule}
`

// TestEverythingTogether is one test, because a whole cluster takes a while to start: the subtests are steps of it.
func TestEverythingTogether(t *testing.T) {
	cluster.Require(t)
	began := time.Now()
	c := cluster.ForTest(t, cluster.Config{Components: cluster.Everything(), FeatureGates: "NodeOverlay=true"})
	t.Logf("ready after %s", time.Since(began))
	full := suite{c: c, dynamic: dynamic.NewForConfigOrDie(c.RESTConfig()), client: clientset(t, c.RESTConfig())}
	full.create(t, nodeClasses, nodeClass)
	_ = t.Run("stock Karpenter launches a node for a shared GPU that an overlay states", full.overlay) &&
		t.Run("stock Karpenter launches a node for a CPU pod and the pod runs", full.cpuPod) &&
		t.Run("a claim of Karve gets its replicas after it registered", full.sharedClaim) &&
		t.Run("a plugin can crash, come back and offer fewer", full.steering) &&
		t.Run("Karpenter can be killed and comes back", full.karpenterAgain)
}

type suite struct {
	c       *cluster.Cluster
	dynamic dynamic.Interface
	client  kubernetes.Interface
}

func (s suite) overlay(t *testing.T) {
	s.setRules(t, map[string]string{"gpu-stock": "{replicasPerGPU: 10, delay: 1s}"})
	s.create(t, nodePools, stockGPUPool)
	s.create(t, overlays, overlay)
	s.createPod(t, "shared", "gpu-stock", v1alpha1.ResourceGPUShared, "1")
	pod := s.waitPod(t, "shared", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	node, err := s.client.CoreV1().Nodes().Get(t.Context(), pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := allocatable(node, v1alpha1.ResourceGPUShared); got != 10 {
		t.Errorf("%d replicas are allocatable, want 10", got)
	}
}

func (s suite) cpuPod(t *testing.T) {
	s.create(t, nodePools, cpuPool)
	s.createPod(t, "cpu", "cpu", corev1.ResourceCPU, "500m")
	pod := s.waitPod(t, "cpu", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	node, err := s.client.CoreV1().Nodes().Get(t.Context(), pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := node.Labels["node.kubernetes.io/instance-type"]; got != "m5.large" {
		t.Errorf("the node is a %q, want the cheapest of its pool, m5.large", got)
	}
}

func (s suite) sharedClaim(t *testing.T) {
	s.create(t, nodeClaims, sharedClaim)
	s.waitClaim(t, "Registered")
	node := s.waitNode(t, func(n *corev1.Node) bool { return allocatable(n, v1alpha1.ResourceGPUShared) == 10 })
	if has := n(node.Status.Capacity, v1alpha1.ResourceGPUShared); has != 10 {
		t.Errorf("capacity is %d, want 10", has)
	}
	if _, has := node.Status.Allocatable[v1alpha1.ResourceGPU]; has {
		t.Error("the node still has a whole GPU")
	}
	if got := node.Labels["karpenter.k8s.aws/instance-gpu-name"]; got != "t4" {
		t.Errorf("the GPU is a %q, want the t4 of the catalogue", got)
	}
	// Karve's controller takes the startup taint off when it sees the replicas; here the test plays it.
	tainted := false
	for _, taint := range node.Spec.Taints {
		tainted = tainted || taint.Key == v1alpha1.ReplicasNotReadyTaintKey
	}
	if !tainted {
		t.Errorf("taints are %v, want %s among them", node.Spec.Taints, v1alpha1.ReplicasNotReadyTaintKey)
	}
	patch := []byte(`{"spec":{"taints":null}}`)
	if _, err := s.client.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.waitClaim(t, "Initialized")
}

func (s suite) steering(t *testing.T) {
	s.setRules(t, map[string]string{"gpu-shared": "offer: none"})
	node := s.waitNode(t, func(n *corev1.Node) bool { return allocatable(n, v1alpha1.ResourceGPUShared) == 0 })
	if has := n(node.Status.Capacity, v1alpha1.ResourceGPUShared); has != 10 {
		t.Errorf("capacity is %d after the crash, want 10 as before", has)
	}
	s.setRules(t, map[string]string{"gpu-shared": "offer: 4"})
	s.waitNode(t, func(n *corev1.Node) bool { return allocatable(n, v1alpha1.ResourceGPUShared) == 4 })
	s.setRules(t, nil)
	s.waitNode(t, func(n *corev1.Node) bool { return allocatable(n, v1alpha1.ResourceGPUShared) == 10 })
}

func (s suite) karpenterAgain(t *testing.T) {
	if err := s.c.KillComponent(cluster.Karpenter); err != nil {
		t.Fatal(err)
	}
	if err := s.dynamic.Resource(nodeClaims).Delete(t.Context(), "shared", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.c.StartComponent(t.Context(), cluster.Karpenter); err != nil {
		t.Fatal(err)
	}
	until(t, s.dynamic.Resource(nodeClaims), "shared", func(e watch.Event) bool { return e.Type == watch.Deleted })
}

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

// until watches one object until it is as it should be.
func until(t *testing.T, in dynamic.ResourceInterface, name string, is func(watch.Event) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
		// Gone already, before the watch began.
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

func allocatable(node *corev1.Node, name corev1.ResourceName) int64 {
	return n(node.Status.Allocatable, name)
}

func n(of corev1.ResourceList, name corev1.ResourceName) int64 {
	q := of[name]
	return q.Value()
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
