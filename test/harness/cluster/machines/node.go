package machines

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/aws"
)

// ImageAnnotation holds the image of a node's machine, for rules by image. On real machines only the instance has this information.
const ImageAnnotation = "cluster.karve.sh/image"

// keptAlive is the annotation of nodes that kwok keeps ready.
const keptAlive = "kwok.x-k8s.io/node"

// kubeletReports are the resources that a node has without any device plugin.
var kubeletReports = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods}

// node returns the Node as the instance's kubelet registers it and the cloud controller manager completes it. Its resources are those of the claim, less
// the memory that it lacks.
func node(i aws.Instance, claim *karpv1.NodeClaim, lacks resource.Quantity) (*corev1.Node, error) {
	s, err := boot(i.UserData)
	if err != nil {
		return nil, fmt.Errorf("booting %s: %w", i.ID, err)
	}
	labels := maps.Clone(s.labels)
	maps.Copy(labels, map[string]string{
		corev1.LabelHostname:           i.PrivateDNS,
		corev1.LabelInstanceTypeStable: i.Type,
		corev1.LabelTopologyZone:       i.Zone,
		corev1.LabelTopologyRegion:     i.Zone[:len(i.Zone)-1],
		corev1.LabelOSStable:           string(corev1.Linux),
		corev1.LabelArchStable:         claim.Labels[corev1.LabelArchStable],
	})
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: i.PrivateDNS, Labels: labels, Annotations: map[string]string{keptAlive: "fake", ImageAnnotation: i.Image},
		},
		Spec: corev1.NodeSpec{ProviderID: i.ProviderID(), Taints: s.taints},
		Status: corev1.NodeStatus{
			Capacity: reported(claim.Status.Capacity, lacks), Allocatable: reported(claim.Status.Allocatable, lacks),
		},
	}
	if gpus, ok := claim.Status.Capacity[v1alpha1.ResourceGPU]; ok && claim.Annotations[nodecontract.ResourceAnnotation] == "" {
		// Machines of stock NodePools have NVIDIA's plugin, which is ready at once. Karve's machines wait for the simulator.
		n.Status.Capacity[v1alpha1.ResourceGPU], n.Status.Allocatable[v1alpha1.ResourceGPU] = gpus, gpus
	}
	if s.maxPods > 0 {
		pods := *resource.NewQuantity(s.maxPods, resource.DecimalSI)
		n.Status.Capacity[corev1.ResourcePods], n.Status.Allocatable[corev1.ResourcePods] = pods, pods
	}
	return n, nil
}

func reported(promised corev1.ResourceList, lacks resource.Quantity) corev1.ResourceList {
	has := corev1.ResourceList{}
	for _, name := range kubeletReports {
		if q, ok := promised[name]; ok {
			has[name] = q.DeepCopy()
		}
	}
	if memory, ok := has[corev1.ResourceMemory]; ok {
		memory.Sub(lacks)
		has[corev1.ResourceMemory] = memory
	}
	return has
}
