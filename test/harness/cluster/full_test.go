package cluster_test

import (
	"path"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
)

var (
	nodeClasses = schema.GroupVersionResource{Group: "karpenter.k8s.aws", Version: "v1", Resource: "ec2nodeclasses"}
	nodePools   = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodepools"}
	overlays    = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1alpha1", Resource: "nodeoverlays"}
	nodeClaims  = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}
)

const nodeClass = `
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  amiSelectorTerms: [{alias: al2023@latest}]
  role: KarpenterNodeRole-karve
  subnetSelectorTerms: [{tags: {karpenter.sh/discovery: karve}}]
  securityGroupSelectorTerms: [{tags: {karpenter.sh/discovery: karve}}]
`

const cpuPool = `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: cpu}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
      - {key: karpenter.k8s.aws/instance-family, operator: In, values: [m5]}
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
`

// stockGPUPool is the baseline for Karve: Karpenter packs pods on GPUs whose replicas a NodeOverlay declares.
const stockGPUPool = `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: gpu-stock}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
      - {key: karpenter.k8s.aws/instance-gpu-name, operator: In, values: [t4]}
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
`

const overlay = `
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: one-gpu}
spec:
  requirements:
  - {key: karpenter.k8s.aws/instance-gpu-count, operator: In, values: ["1"]}
  capacity: {nvidia.com/gpu.shared: "10"}
`

// foreignPool is a NodePool that Karpenter ignores, as it ignores Karve's.
const foreignPool = `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: gpu-shared}
spec:
  template:
    spec:
      nodeClassRef: {group: karve.sh, kind: GPUNodeClass, name: gpu-shared}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
`

// sharedClaim is a NodeClaim as Karve creates it.
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
  nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
  requirements:
  - {key: node.kubernetes.io/instance-type, operator: In, values: [g4dn.xlarge]}
  - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
  startupTaints:
  - {key: karve.sh/replicas-not-ready, effect: NoSchedule}
`

// TestFullCluster is a single test, because a whole cluster takes a while to start. The subtests are its steps.
func TestFullCluster(t *testing.T) {
	cluster.Long(t)
	cluster.Require(t)
	began := time.Now()
	c := cluster.ForTest(t, cluster.Config{Components: cluster.Everything(), FeatureGates: "NodeOverlay=true"})
	t.Logf("ready after %s", time.Since(began))
	full := suite{c: c, dynamic: dynamic.NewForConfigOrDie(c.RESTConfig()), client: clientset(t, c.RESTConfig())}
	full.create(t, nodeClasses, nodeClass)
	_ = t.Run("stock Karpenter launches a node for a shared GPU that an overlay states", full.overlay) &&
		t.Run("stock Karpenter launches a node for a CPU pod and the pod runs", full.cpuPod) &&
		t.Run("a claim of Karve gets its replicas after registration", full.sharedClaim) &&
		t.Run("a plugin can crash, come back and offer fewer", full.steering) &&
		t.Run("Karpenter can be killed and comes back", full.karpenterAgain) &&
		t.Run("an instance that AWS terminates loses its Node", full.takenAway)
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
	lack := resource.MustParse("512Mi")
	s.c.Machines().SetLack("m5.large", lack)
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
	promised, _, _ := unstructured.NestedString(s.claimOf(t, "cpu").Object, "status", "allocatable", "memory")
	want := resource.MustParse(promised)
	want.Sub(lack)
	if got := node.Status.Allocatable.Memory(); got.Cmp(want) != 0 {
		t.Errorf("the node has %s of the %s that Karpenter promised, want %s less", got, promised, &lack)
	}
}

// claimOf returns the only claim of a pool.
func (s suite) claimOf(t *testing.T, pool string) *unstructured.Unstructured {
	t.Helper()
	claims, err := s.dynamic.Resource(nodeClaims).List(t.Context(), metav1.ListOptions{LabelSelector: "karpenter.sh/nodepool=" + pool})
	if err != nil || len(claims.Items) != 1 {
		t.Fatalf("the claims of pool %s are %v, %v", pool, claims, err)
	}
	return &claims.Items[0]
}

func (s suite) sharedClaim(t *testing.T) {
	s.create(t, nodePools, foreignPool)
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
		t.Errorf("the GPU is a %q, want the t4 of the catalog", got)
	}
	// Karve's controller removes the startup taint when the replicas appear. Here the test does so.
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

// takenAway terminates an instance without Karpenter's involvement.
func (s suite) takenAway(t *testing.T) {
	claim := s.claimOf(t, "cpu")
	id, _, _ := unstructured.NestedString(claim.Object, "status", "providerID")
	node, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
	s.c.AWS().Terminate(path.Base(id))
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	until(t, s.dynamic.Resource(nodes), node, func(e watch.Event) bool { return e.Type == watch.Deleted })
	until(t, s.dynamic.Resource(nodeClaims), claim.GetName(), func(e watch.Event) bool { return e.Type == watch.Deleted })
}
