package cluster_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/cluster"
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
	if got := shared(node); got != 10 {
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
	node := s.waitNode(t, func(n *corev1.Node) bool { return shared(n) == 10 })
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
	node := s.waitNode(t, func(n *corev1.Node) bool { return shared(n) == 0 })
	if has := n(node.Status.Capacity, v1alpha1.ResourceGPUShared); has != 10 {
		t.Errorf("capacity is %d after the crash, want 10 as before", has)
	}
	s.setRules(t, map[string]string{"gpu-shared": "offer: 4"})
	s.waitNode(t, func(n *corev1.Node) bool { return shared(n) == 4 })
	s.setRules(t, nil)
	s.waitNode(t, func(n *corev1.Node) bool { return shared(n) == 10 })
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
