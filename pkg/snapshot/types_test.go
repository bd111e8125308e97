package snapshot_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// largeRef is a second node class of the cloud. Its only machine type is the g4dn.12xlarge, and its kubelet reserves two more CPUs.
var largeRef = v1alpha1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "large"}

func twoNodeClasses() *facts.Cluster {
	c := Shared()
	var small, large []catalog.InstanceType
	for _, t := range Types() {
		if t.Name == "g4dn.12xlarge" {
			t.Allocatable.MilliCPU -= 2000
			large = append(large, t)
		} else {
			small = append(small, t)
		}
	}
	c.NodeClasses = map[v1alpha1.NodeClassReference]facts.NodeClassState{
		NodeClassRef: {Ready: true, InstanceTypes: small}, largeRef: {Ready: true, InstanceTypes: large},
	}
	c.GPUNodeClasses = append(c.GPUNodeClasses, Class("large", 10, func(class *v1alpha1.GPUNodeClass) { class.Spec.NodeClassRef = largeRef }))
	c.NodePools = append(c.NodePools, Pool("large", "large", Tainted(v1alpha1.ResourceGPUShared)))
	return c
}

func TestPoolOffersTypesOfItsOwnNodeClass(t *testing.T) {
	t.Parallel()
	for _, p := range snapshot.Pools(twoNodeClasses()) {
		if len(p.Offerings) == 0 {
			t.Errorf("%s offers nothing", p.NodePool.Name)
		}
		for i := range p.Offerings {
			o := &p.Offerings[i]
			if large := o.Type.Name == "g4dn.12xlarge"; large != (p.NodePool.Name == "large") {
				t.Errorf("%s offers %s", p.NodePool.Name, o.Type.Name)
			}
			if p.NodePool.Name == "large" && o.Free().MilliCPU != 48_000-100-2000 {
				t.Errorf("%s leaves %d mCPU with its node class", o.Type.Name, o.Free().MilliCPU)
			}
		}
	}
}

func TestMachineTypeComesFromItsNodeClass(t *testing.T) {
	t.Parallel()
	c := twoNodeClasses()
	c.NodeClaims = []karpv1.NodeClaim{Claim("m", &c.NodePools[1], TypeNamed("g4dn.12xlarge"))}
	c.NodeClaims[0].Spec.NodeClassRef.Name = "large"
	if m := records.Machines(c)[0]; m.Type == nil || m.Type.Allocatable.MilliCPU != 48_000-100-2000 {
		t.Errorf("type %+v", m.Type)
	}
	// The node class may be deleted while the machine stays.
	delete(c.NodeClasses, largeRef)
	c.UseInstanceTypes(Types())
	if m := records.Machines(c)[0]; m.Type == nil || m.Type.Allocatable.MilliCPU != 48_000-100 {
		t.Errorf("without its node class: type %+v", m.Type)
	}
}

func TestKarpenterPoolWithUnknownNodeClassMayLaunchAnyType(t *testing.T) {
	t.Parallel()
	// Only a g4dn.12xlarge holds the pod.
	pod := Pod("a", Asking("cpu", "40", "nvidia.com/gpu", "1"))
	for ref, served := range map[string]bool{"gpu": false, "large": true, "of a foreign pool": true} {
		c := twoNodeClasses()
		c.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyNone}
		c.NodePools = append(c.NodePools, KarpenterPool("stock", func(np *karpv1.NodePool) { np.Spec.Template.Spec.NodeClassRef.Name = ref }))
		c.Pods = []corev1.Pod{pod}
		leftToStock := false
		for _, class := range snapshot.Build(c).Classes {
			leftToStock = leftToStock || class.Blocked != nil && class.Blocked.Reason == planner.ReasonLeftToKarpenter
		}
		if leftToStock != served {
			t.Errorf("a stock pool of node class %q serves the pod: %v", ref, leftToStock)
		}
	}
}

// While the catalog is empty, the pool's requirements are not to blame.
func TestEmptyCatalogDoesNotBlamePoolRequirements(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.NodeClasses[NodeClassRef] = facts.NodeClassState{Reason: "CatalogUnavailable", Message: "no instance types were read"}
	problems := snapshot.Pools(c)[0].Problems
	if len(problems) != 1 || problems[0].Condition != karpv1.ConditionTypeNodeClassReady || problems[0].Reason != "CatalogUnavailable" {
		t.Errorf("problems: %+v", problems)
	}
}
