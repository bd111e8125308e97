package karpenter

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	kscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/planner"
)

// The GPU resources of machines and pods. Karpenter does not know single GPUs: it treats GPU memory as a resource of the whole machine, so its packing
// need not fit.
const (
	replicas  corev1.ResourceName = "nvidia.com/gpu.shared"
	gpus      corev1.ResourceName = "nvidia.com/gpu"
	gpuMemory corev1.ResourceName = "karve.sh/gpu-memory"
	// nodeTaint is a taint of each node, which the pods that may run there tolerate. poolTaint is the same for pools.
	nodeTaint = "karve.sh/test-node"
	poolTaint = "karve.sh/test-pool"
	// anywhere is the zone or the capacity type of offerings without one.
	anywhere = "any"
)

// Plan plans a snapshot with Karpenter's scheduler. It prices each claim at its cheapest remaining offering, which is what EC2 would launch. It also
// returns how long Karpenter took. It ignores rules, quotas, preferences and minValues. nodeOf maps each node of the snapshot to its offering.
func Plan(ctx context.Context, s planner.Snapshot, nodeOf []int) (planner.Plan, time.Duration, error) {
	w, err := fromSnapshot(s, nodeOf)
	if err != nil {
		return planner.Plan{}, 0, err
	}
	results, took, err := w.Solve(ctx)
	if err != nil {
		return planner.Plan{}, 0, err
	}
	p, err := toPlan(s, results)
	for _, c := range s.Classes {
		for _, pod := range c.Pods {
			if c.Blocked != nil {
				p.Unplaced = append(p.Unplaced, planner.Unplaced{Pod: pod, Refusal: *c.Blocked})
			}
		}
	}
	return p, took, err
}

// fromSnapshot converts a snapshot to Kubernetes objects. The offerings of a class must be a product of pools, instance types, zones and capacity types,
// because the requirements of pods can express only that.
func fromSnapshot(s planner.Snapshot, nodeOf []int) (World, error) {
	w := World{Types: map[string][]*cloudprovider.InstanceType{}}
	for i, p := range s.Pools {
		if p.Closed == nil {
			w.NodePools = append(w.NodePools, nodePool(p))
			w.Types[p.Name] = instanceTypes(s, i)
		}
	}
	for i, n := range s.Nodes {
		w.Nodes = append(w.Nodes, node(n, s.Offerings[nodeOf[i]]))
	}
	order := make([]int, len(s.Classes))
	for i := range order {
		order[i] = i
	}
	// Karpenter places equal pods in the order of their UIDs. Sort them by name, as FirstFit does.
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(firstPod(s.Classes[i]), firstPod(s.Classes[j])) })
	for _, i := range order {
		c := s.Classes[i]
		if c.Blocked != nil {
			continue
		}
		like, err := pod(s, c)
		if err != nil {
			return World{}, fmt.Errorf("class %d: %w", i, err)
		}
		for _, name := range c.Pods {
			p := like.DeepCopy()
			p.Namespace, p.Name, _ = strings.Cut(name, "/")
			p.UID = types.UID(fmt.Sprintf("%08d", len(w.Pending)))
			w.Pending = append(w.Pending, p)
		}
	}
	return w, nil
}

func firstPod(c planner.Class) string {
	if len(c.Pods) == 0 {
		return ""
	}
	return c.Pods[0]
}

func nodePool(p planner.Pool) *karpv1.NodePool {
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: types.UID(p.Name)}}
	np.Spec.Weight = new(p.Weight)
	np.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karve.sh", Kind: "GPUNodeClass", Name: "gpu"}
	np.Spec.Template.Spec.Taints = []corev1.Taint{{Key: poolTaint, Value: p.Name, Effect: corev1.TaintEffectNoSchedule}}
	np.Spec.Limits = karpv1.Limits{}
	for name, left := range map[corev1.ResourceName]int64{
		corev1.ResourceMemory: p.Remaining.MemoryBytes, gpus: p.Remaining.GPUs, replicas: p.Remaining.Replicas, "nodes": p.Remaining.Nodes,
	} {
		if left != planner.Unlimited {
			np.Spec.Limits[name] = *resource.NewQuantity(left, resource.DecimalSI)
		}
	}
	if left := p.Remaining.MilliCPU; left != planner.Unlimited {
		np.Spec.Limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(left, resource.DecimalSI)
	}
	return np
}

// instanceTypes groups the offerings of a pool by type. Offerings of the same type differ only in zone, capacity type and price.
func instanceTypes(s planner.Snapshot, pool int) []*cloudprovider.InstanceType {
	byName := map[string]*cloudprovider.InstanceType{}
	var out []*cloudprovider.InstanceType
	for _, o := range s.Offerings {
		if o.Pool != pool || isDiscounted(o) {
			continue
		}
		it, ok := byName[o.InstanceType]
		if !ok {
			free := free(o.Free, o.GPUs)
			capacity, overhead := free.DeepCopy(), corev1.ResourceList{}
			for name, x := range map[corev1.ResourceName]resource.Quantity{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(o.Physical.MilliCPU, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(o.Physical.MemoryBytes, resource.BinarySI),
				replicas:              *resource.NewQuantity(o.Physical.Replicas, resource.DecimalSI),
			} {
				capacity[name] = x.DeepCopy()
				x.Sub(free[name])
				overhead[name] = x
			}
			capacity[gpus] = *resource.NewQuantity(o.Physical.GPUs, resource.DecimalSI)
			capacity["nodes"] = resource.MustParse("1")
			it = &cloudprovider.InstanceType{
				Name: o.InstanceType, Capacity: capacity, Overhead: &cloudprovider.InstanceTypeOverhead{KubeReserved: overhead},
				Requirements: kscheduling.NewRequirements(
					kscheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, o.InstanceType),
					kscheduling.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "amd64"),
					kscheduling.NewRequirement(corev1.LabelOSStable, corev1.NodeSelectorOpIn, "linux"),
				),
			}
			byName[o.InstanceType] = it
			out = append(out, it)
		}
		it.Offerings = append(it.Offerings, offering(s, o))
	}
	for _, it := range out {
		values := map[string][]string{}
		for _, o := range it.Offerings.Available() {
			values[corev1.LabelTopologyZone] = append(values[corev1.LabelTopologyZone], o.Zone())
			values[karpv1.CapacityTypeLabelKey] = append(values[karpv1.CapacityTypeLabelKey], o.CapacityType())
		}
		for key, in := range values {
			it.Requirements.Add(kscheduling.NewRequirement(key, corev1.NodeSelectorOpIn, in...))
		}
	}
	return out
}

// where returns the zone and the capacity type of an offering, as labels.
func where(o planner.Offering) map[string]string {
	return map[string]string{
		corev1.LabelTopologyZone:    cmp.Or(o.Zone, anywhere),
		karpv1.CapacityTypeLabelKey: cmp.Or(o.CapacityType, karpv1.CapacityTypeOnDemand),
	}
}

func free(r planner.Resources, each []planner.GPU) corev1.ResourceList {
	out := requests(r)
	var memory int64
	for _, g := range each {
		memory += g.MemoryBytes
	}
	out[corev1.ResourcePods] = *resource.NewQuantity(r.Pods, resource.DecimalSI)
	out[gpuMemory] = *resource.NewQuantity(memory, resource.BinarySI)
	return out
}

func requests(r planner.Resources) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(r.MilliCPU, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(r.MemoryBytes, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(r.EphemeralBytes, resource.BinarySI),
		replicas:                        *resource.NewQuantity(r.Replicas, resource.DecimalSI),
	}
}

// node returns a machine of an offering with its free resources. It belongs to no pool, because the remaining limits already exclude it.
func node(n planner.Node, o planner.Offering) *corev1.Node {
	labels := where(o)
	labels[corev1.LabelInstanceTypeStable] = o.InstanceType
	labels[corev1.LabelHostname] = n.Name
	out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels}}
	out.Spec.ProviderID = n.Name
	out.Spec.Taints = []corev1.Taint{{Key: nodeTaint, Value: n.Name, Effect: corev1.TaintEffectNoSchedule}}
	out.Status.Allocatable = free(n.Free, n.GPUs)
	out.Status.Capacity = out.Status.Allocatable.DeepCopy()
	return out
}

// pod returns a pod of a class, without a name.
func pod(s planner.Snapshot, c planner.Class) (*corev1.Pod, error) {
	list := requests(c.Requests)
	if c.GPUMemoryBytes > 0 {
		list[gpuMemory] = *resource.NewQuantity(c.GPUMemoryBytes, resource.BinarySI)
	}
	p := &corev1.Pod{}
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list}}}
	p.Status.Phase = corev1.PodPending
	for _, i := range c.Nodes {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: nodeTaint, Value: s.Nodes[i].Name})
	}
	sides, err := factors(s, c.Offerings)
	if err != nil {
		return nil, err
	}
	for pool := range sides.pools {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: poolTaint, Value: s.Pools[pool].Name})
	}
	var match []corev1.NodeSelectorRequirement
	for key, values := range sides.labels {
		match = append(match, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values})
	}
	if len(match) > 0 {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: match}},
		}}}
	}
	return p, nil
}

// sides are the factors of a product: pools, and values of those labels of which not all values are allowed.
type sides struct {
	pools  map[int]bool
	labels map[string][]string
}

// factors converts a set of offerings to a product.
func factors(s planner.Snapshot, admitted []int) (sides, error) {
	out := sides{pools: map[int]bool{}, labels: map[string][]string{}}
	in := map[int]bool{}
	values, all := map[string]map[string]bool{}, map[string]map[string]bool{}
	note := func(to map[string]map[string]bool, labels map[string]string) {
		for key, value := range labels {
			if to[key] == nil {
				to[key] = map[string]bool{}
			}
			to[key][value] = true
		}
	}
	for _, i := range admitted {
		in[i], out.pools[s.Offerings[i].Pool] = true, true
		note(values, labels(s.Offerings[i]))
	}
	for _, o := range s.Offerings {
		note(all, labels(o))
	}
	for i, o := range s.Offerings {
		inside := out.pools[o.Pool]
		for key, value := range labels(o) {
			inside = inside && values[key][value]
		}
		if inside != in[i] {
			return sides{}, fmt.Errorf("what it admits is no product of pools, types, zones and capacity types: offering %d", i)
		}
	}
	for key := range values {
		if len(values[key]) < len(all[key]) {
			for value := range values[key] {
				out.labels[key] = append(out.labels[key], value)
			}
			slices.Sort(out.labels[key])
		}
	}
	return out, nil
}

// labels returns the labels of an offering's machines that pods may select.
func labels(o planner.Offering) map[string]string {
	out := where(o)
	out[corev1.LabelInstanceTypeStable] = o.InstanceType
	return out
}

// toPlan converts Karpenter's decisions to a plan. Each claim becomes its cheapest remaining offering.
func toPlan(s planner.Snapshot, r scheduling.Results) (planner.Plan, error) {
	var p planner.Plan
	name := func(pods []*corev1.Pod) []string {
		var out []string
		for _, x := range pods {
			out = append(out, x.Namespace+"/"+x.Name)
		}
		slices.Sort(out)
		return out
	}
	for _, n := range r.ExistingNodes {
		if len(n.Pods) > 0 {
			i := slices.IndexFunc(s.Nodes, func(x planner.Node) bool { return x.Name == n.Name() })
			p.Placements = append(p.Placements, planner.Placement{Node: i, Pods: name(n.Pods)})
		}
	}
	for _, c := range r.NewNodeClaims {
		left := map[string]bool{}
		for _, it := range c.InstanceTypeOptions {
			left[it.Name] = true
		}
		best, price := -1, planner.MicroUSD(math.MaxInt64)
		for i, o := range s.Offerings {
			if s.Pools[o.Pool].Name == c.NodePoolName && left[o.InstanceType] && o.Unavailable == nil && o.Price < price &&
				c.Requirements.IsCompatible(kscheduling.NewLabelRequirements(where(o)), kscheduling.AllowUndefinedWellKnownLabels) {
				best, price = i, o.Price
			}
		}
		if best < 0 {
			return p, fmt.Errorf("a claim for %d pods leaves no offering", len(c.Pods))
		}
		p.Launches = append(p.Launches, planner.Launch{Offering: best, Pods: name(c.Pods)})
		p.Price += price
	}
	for x, err := range r.PodErrors {
		p.Unplaced = append(p.Unplaced, planner.Unplaced{Pod: x.Namespace + "/" + x.Name, Refusal: planner.Refusal{Reason: "Karpenter", Message: err.Error()}})
	}
	slices.SortFunc(p.Unplaced, func(a, b planner.Unplaced) int { return cmp.Compare(a.Pod, b.Pod) })
	return p, nil
}
