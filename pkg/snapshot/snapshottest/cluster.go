// Package snapshottest builds clusters for tests that use snapshots.
package snapshottest

import (
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Now is the time of the test clusters.
var Now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// NodeClassRef is the cloud node class of all GPUNodeClasses. It is ready.
var NodeClassRef = v1alpha1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"}

// Zones are the zones of every instance type.
var Zones = []string{"us-east-1a", "us-east-1b"}

// Empty returns a cluster that has only the g4dn instance types. The cloud node class is ready, and there is no NodePool.
func Empty() *facts.Cluster {
	return &facts.Cluster{
		Now:             Now,
		NodeClasses:     map[v1alpha1.NodeClassReference]facts.NodeClassState{NodeClassRef: {Ready: true, InstanceTypes: Types()}},
		Refused:         map[string][]v1alpha1.RefusedOffering{},
		ReplicasTimeout: 10 * time.Minute,
	}
}

// Shared returns a cluster with the NodePool gpu-shared and the GPUNodeClass gpu-shared, which shares each GPU into ten nvidia.com/gpu.shared. The NodePool
// has the taint nvidia.com/gpu.shared:NoSchedule, which the pods of [Pod] tolerate.
func Shared() *facts.Cluster {
	c := Empty()
	c.GPUNodeClasses = []v1alpha1.GPUNodeClass{Class("gpu-shared", 10)}
	c.NodePools = []karpv1.NodePool{Pool("gpu-shared", "gpu-shared", Tainted(v1alpha1.ResourceGPUShared))}
	return c
}

// Recipe returns a cluster with two NodePools whose pods both request nvidia.com/gpu. gpu-shared shares each GPU into ten replicas, and gpu has whole
// GPUs. The label jina.ai/node-type and a taint for each NodePool keep their pods apart.
func Recipe() *facts.Cluster {
	c := Empty()
	c.GPUNodeClasses = []v1alpha1.GPUNodeClass{
		Class("gpu-shared", 10, func(class *v1alpha1.GPUNodeClass) { class.Spec.Sharing.ResourceName = v1alpha1.ResourceGPU }),
		Class("gpu", 0),
	}
	for _, name := range []string{"gpu-shared", "gpu"} {
		c.NodePools = append(c.NodePools, Pool(name, name, Tainted("nvidia.com/"+name), func(np *karpv1.NodePool) {
			np.Spec.Template.Labels = map[string]string{"jina.ai/node-type": name, "jina.ai/gpu-type": "nvidia"}
			np.Spec.Limits = karpv1.Limits(Amounts("cpu", "1000"))
			np.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{
				Require(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge", "g4dn.12xlarge"),
				Require(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, karpv1.CapacityTypeSpot, karpv1.CapacityTypeOnDemand),
				Require(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "amd64"),
			}
		}))
	}
	return c
}

// Types returns the g4dn instance types, in all zones, on-demand and as spot. Spot costs a third of the on-demand price.
func Types() []catalog.InstanceType {
	var all []catalog.InstanceType
	for _, m := range []struct {
		size                         string
		cpus, gib, gpus, price, pods int64
	}{
		{"12xlarge", 48, 192, 4, 3_912_000, 234},
		{"2xlarge", 8, 32, 1, 752_000, 29},
		{"4xlarge", 16, 64, 1, 1_204_000, 29},
		{"xlarge", 4, 16, 1, 526_000, 29},
	} {
		t := catalog.InstanceType{
			Name: "g4dn." + m.size,
			Labels: map[string]string{
				corev1.LabelInstanceTypeStable: "g4dn." + m.size, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
				"karpenter.k8s.aws/instance-family": "g4dn", "karpenter.k8s.aws/instance-gpu-name": "t4",
				"karpenter.k8s.aws/instance-cpu": fmt.Sprint(m.cpus), "karpenter.k8s.aws/instance-gpu-count": fmt.Sprint(m.gpus),
			},
			Capacity:    catalog.Resources{MilliCPU: m.cpus * 1000, MemoryBytes: m.gib << 30, EphemeralBytes: 100 << 30, Pods: m.pods},
			Allocatable: catalog.Resources{MilliCPU: m.cpus*1000 - 100, MemoryBytes: (m.gib - 1) << 30, EphemeralBytes: 90 << 30, Pods: m.pods},
			GPU:         catalog.GPU{Name: "t4", Count: m.gpus, MemoryMiB: 16384},
		}
		for _, zone := range Zones {
			for _, capacityType := range []string{karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot} {
				price := m.price
				if capacityType == karpv1.CapacityTypeSpot {
					price /= 3
				}
				t.Offerings = append(t.Offerings, catalog.Offering{
					Zone: zone, CapacityType: capacityType, MicroUSDPerHour: price,
					Labels: map[string]string{corev1.LabelTopologyZone: zone, karpv1.CapacityTypeLabelKey: capacityType},
				})
			}
		}
		all = append(all, t)
	}
	return all
}

// Class returns a GPUNodeClass that shares each GPU into the number of replicas. It does not share GPUs if replicas is 0.
func Class(name string, replicas int32, edits ...func(*v1alpha1.GPUNodeClass)) v1alpha1.GPUNodeClass {
	class := v1alpha1.GPUNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("class-" + name), Generation: 1},
		Spec: v1alpha1.GPUNodeClassSpec{
			NodeClassRef:  NodeClassRef,
			Sharing:       v1alpha1.Sharing{Strategy: v1alpha1.StrategyNone},
			Consolidation: v1alpha1.Consolidation{IdleAfter: v1alpha1.DefaultIdleAfter},
		},
	}
	if replicas > 0 {
		class.Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: &replicas}
	}
	return edited(class, edits)
}

// Pool returns a NodePool of the GPUNodeClass, without taints, requirements or limits.
func Pool(name, class string, edits ...func(*karpv1.NodePool)) karpv1.NodePool {
	month := 720 * time.Hour
	np := karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("pool-" + name), Generation: 1}}
	np.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: class}
	np.Spec.Template.Spec.ExpireAfter = karpv1.NillableDuration{Duration: &month}
	np.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("0s") // The default of the API server.
	return edited(np, edits)
}

// KarpenterPool returns a NodePool that Karpenter provisions for.
func KarpenterPool(name string, edits ...func(*karpv1.NodePool)) karpv1.NodePool {
	np := Pool(name, "")
	np.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: NodeClassRef.Group, Kind: NodeClassRef.Kind, Name: NodeClassRef.Name}
	return edited(np, edits)
}

// Tainted adds a NoSchedule taint to a NodePool's machines.
func Tainted(key string) func(*karpv1.NodePool) {
	return func(np *karpv1.NodePool) {
		np.Spec.Template.Spec.Taints = append(np.Spec.Template.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
}

// Requiring adds a requirement to a NodePool.
func Requiring(key string, op corev1.NodeSelectorOperator, values ...string) func(*karpv1.NodePool) {
	return func(np *karpv1.NodePool) {
		np.Spec.Template.Spec.Requirements = append(np.Spec.Template.Spec.Requirements, Require(key, op, values...))
	}
}

// Require returns a requirement of a NodePool.
func Require(key string, op corev1.NodeSelectorOperator, values ...string) karpv1.NodeSelectorRequirementWithMinValues {
	return karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: op, Values: values}
}

// Labeled adds labels to the machines of a NodePool.
func Labeled(labels map[string]string) func(*karpv1.NodePool) {
	return func(np *karpv1.NodePool) {
		all := maps.Clone(np.Spec.Template.Labels)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, labels)
		np.Spec.Template.Labels = all
	}
}

func edited[T any](object T, edits []func(*T)) T {
	for _, edit := range edits {
		edit(&object)
	}
	return object
}
