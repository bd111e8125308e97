package hostile

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// SaneMachine is an initialized machine of the sane pool. SaneNode is a node that Karve has not launched.
const (
	SaneMachine = "sane-machine"
	SaneNode    = "sane-node"
)

// Sane returns a cluster with a pool that has a label of its own, a machine with two pods and room for eight, a foreign node, and pending pods of
// several shapes.
func Sane() *facts.Cluster {
	c := snapshottest.Empty()
	c.GPUNodeClasses = []v1alpha1.GPUNodeClass{snapshottest.Class("sane", 10)}
	c.NodePools = []karpv1.NodePool{snapshottest.Pool("sane", "sane", snapshottest.Tainted(v1alpha1.ResourceGPUShared), snapshottest.Tainted("sane"))}
	xlarge := snapshottest.TypeNamed("g4dn.xlarge")
	claim := snapshottest.Claim(SaneMachine, &c.NodePools[0], xlarge, snapshottest.Initialized(snapshottest.Now))
	c.NodeClaims = []karpv1.NodeClaim{claim}
	other := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: SaneNode, Labels: map[string]string{corev1.LabelTopologyZone: "us-east-1a"}}}
	other.Spec.Taints = []corev1.Taint{{Key: "sane", Effect: corev1.TaintEffectNoSchedule}}
	other.Status.Allocatable = snapshottest.Amounts("cpu", "8", "memory", "32Gi", "pods", "110", v1alpha1.ResourceGPU, "4")
	c.Nodes = []corev1.Node{snapshottest.Node(&claim, xlarge, 10), other}
	tolerant := snapshottest.Tolerating(v1alpha1.ResourceGPUShared, "sane")
	add := func(name string, n int, edits ...func(*corev1.Pod)) {
		c.Pods = append(c.Pods, snapshottest.Pods("sane-"+name, n, append([]func(*corev1.Pod){tolerant, snapshottest.WithLabels("app", "sane-"+name)}, edits...)...)...)
	}
	add("running", 2, snapshottest.Running(SaneMachine))
	add("plain", 13)
	add("memory", 3, snapshottest.GPUMemory("4Gi"))
	add("large", 1, snapshottest.Asking("cpu", "20", "memory", "20Gi", v1alpha1.ResourceGPUShared, "2"))
	add("port", 2, snapshottest.HostPort(8080))
	add("spread", 4, snapshottest.Selecting(karpv1.NodePoolLabelKey, "sane"), func(pod *corev1.Pod) {
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "sane-spread"}},
		}}
	})
	add("apart", 2, func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "sane-apart"}},
		}}}}
	})
	add("whole", 2, snapshottest.Asking("cpu", "1", "memory", "1Gi", v1alpha1.ResourceGPU, "1")) // For the foreign node.
	return c
}

// Add adds an object to a cluster.
func Add(c *facts.Cluster, o client.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		c.Pods = append(c.Pods, *o)
	case *corev1.Node:
		c.Nodes = append(c.Nodes, *o)
	case *karpv1.NodePool:
		c.NodePools = append(c.NodePools, *o)
	case *karpv1.NodeClaim:
		c.NodeClaims = append(c.NodeClaims, *o)
	case *v1alpha1.GPUNodeClass:
		c.GPUNodeClasses = append(c.GPUNodeClasses, *o)
	case *appsv1.DaemonSet:
		c.DaemonSets = append(c.DaemonSets, *o)
	case *corev1.PersistentVolumeClaim:
		c.PersistentVolumeClaims = append(c.PersistentVolumeClaims, *o)
	case *corev1.PersistentVolume:
		c.PersistentVolumes = append(c.PersistentVolumes, *o)
	case *storagev1.StorageClass:
		c.StorageClasses = append(c.StorageClasses, *o)
	case *storagev1.CSINode:
		c.CSINodes = append(c.CSINodes, *o)
	case *corev1.Namespace:
		c.Namespaces = append(c.Namespaces, *o)
	case *corev1.Event: // A snapshot does not contain events.
	default:
		panic(fmt.Sprintf("a cluster has no %T", o))
	}
}
