package machines

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/aws"
)

const userData = `[settings.kubernetes]
max-pods = 29
[settings.kubernetes.node-labels]
"karpenter.sh/nodepool" = "gpu-shared"
[settings.kubernetes.node-taints]
"karpenter.sh/unregistered" = [":NoExecute"]
`

func machineOf(annotations map[string]string) (aws.Instance, *karpv1.NodeClaim) {
	list := func(memory string) corev1.ResourceList {
		return corev1.ResourceList{
			"cpu": resource.MustParse("4"), "memory": resource.MustParse(memory), "pods": resource.MustParse("30"),
			"nvidia.com/gpu": resource.MustParse("1"), "vpc.amazonaws.com/pod-eni": resource.MustParse("9"),
		}
	}
	return aws.Instance{ID: "i-1", Type: "g4dn.xlarge", Zone: "us-east-1b", Image: "ami-1", PrivateDNS: "ip-10-0-0-1.ec2.internal", UserData: userData},
		&karpv1.NodeClaim{
			ObjectMeta: metav1.ObjectMeta{Annotations: annotations, Labels: map[string]string{corev1.LabelArchStable: "amd64"}},
			Status:     karpv1.NodeClaimStatus{Capacity: list("15155Mi"), Allocatable: list("14Gi")},
		}
}

func TestMachineRegistersAccordingToUserDataAndPromise(t *testing.T) {
	t.Parallel()
	instance, claim := machineOf(nil)
	n, err := node(instance, claim, resource.MustParse("1Gi"))
	if err != nil {
		t.Fatal(err)
	}
	if n.Name != instance.PrivateDNS || n.Spec.ProviderID != "aws:///us-east-1b/i-1" || n.Annotations[ImageAnnotation] != "ami-1" {
		t.Errorf("the node is %s of %s with %v", n.Name, n.Spec.ProviderID, n.Annotations)
	}
	wantLabels := map[string]string{
		"karpenter.sh/nodepool": "gpu-shared", "kubernetes.io/hostname": instance.PrivateDNS, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
		"node.kubernetes.io/instance-type": "g4dn.xlarge", "topology.kubernetes.io/zone": "us-east-1b", "topology.kubernetes.io/region": "us-east-1",
	}
	if diff := cmp.Diff(wantLabels, n.Labels); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]corev1.Taint{{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute}}, n.Spec.Taints); diff != "" {
		t.Error(diff)
	}
	want := corev1.ResourceList{
		"cpu": resource.MustParse("4"), "memory": resource.MustParse("13Gi"), "pods": resource.MustParse("29"), "nvidia.com/gpu": resource.MustParse("1"),
	}
	if diff := cmp.Diff(want, n.Status.Allocatable); diff != "" {
		t.Errorf("allocatable %s", diff)
	}
	if has := claim.Status.Allocatable[corev1.ResourceMemory]; has.Cmp(resource.MustParse("14Gi")) != 0 {
		t.Error("node changed the claim")
	}
}

func TestKarveMachineHasNoGPUBeforeItsPluginStarts(t *testing.T) {
	t.Parallel()
	instance, claim := machineOf(map[string]string{nodecontract.ResourceAnnotation: "nvidia.com/gpu"})
	n, err := node(instance, claim, resource.Quantity{})
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
		if gpus, ok := list["nvidia.com/gpu"]; ok {
			t.Errorf("it registers with %s GPUs", &gpus)
		}
	}
}
