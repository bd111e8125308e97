package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
)

// machine is a machine that a cloud may launch for a claim.
type machine struct {
	instanceType *catalog.InstanceType
	offering     *catalog.Offering
}

// machinesFor returns the machines that a claim's requirements allow, the cheapest first. It reads the claim, as Karpenter's providers do, and not the
// plan.
func machinesFor(claim *karpv1.NodeClaim, known []catalog.InstanceType) []machine {
	var machines []machine
	for i := range known {
		t := &known[i]
		if requests := claim.Spec.Resources.Requests; t.Allocatable.MilliCPU < requests.Cpu().MilliValue() || t.Allocatable.MemoryBytes < requests.Memory().Value() {
			continue
		}
		for j := range t.Offerings {
			o := &t.Offerings[j]
			labels := maps.Clone(t.Labels)
			maps.Copy(labels, o.Labels)
			if !slices.ContainsFunc(claim.Spec.Requirements, func(r karpv1.NodeSelectorRequirementWithMinValues) bool {
				value, ok := labels[r.Key]
				return ok && !meets(value, r)
			}) {
				machines = append(machines, machine{t, o})
			}
		}
	}
	slices.SortStableFunc(machines, func(a, b machine) int { return cmp.Compare(a.offering.MicroUSDPerHour, b.offering.MicroUSDPerHour) })
	return machines
}

// meets reports whether a label value meets a requirement.
func meets(value string, r karpv1.NodeSelectorRequirementWithMinValues) bool {
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpDoesNotExist:
		return false
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		has, err := strconv.Atoi(value)
		bound, boundErr := strconv.Atoi(r.Values[0])
		return err == nil && boundErr == nil && (r.Operator == corev1.NodeSelectorOpGt && has > bound || r.Operator == corev1.NodeSelectorOpLt && has < bound)
	default:
		return true
	}
}

// arrived returns the node of a claim after its start: registered, without startup taints, and with its replicas. choice picks one of the machines that
// the claim allows.
func arrived(name string, claim *karpv1.NodeClaim, known []catalog.InstanceType, choice int) (*corev1.Node, error) {
	machines := machinesFor(claim, known)
	if len(machines) == 0 {
		return nil, fmt.Errorf("no machine of the catalog meets the claim for %s", name)
	}
	m := machines[choice%len(machines)]
	labels := map[string]string{}
	for _, r := range claim.Spec.Requirements {
		if r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 {
			labels[r.Key] = r.Values[0]
		}
	}
	maps.Copy(labels, m.instanceType.Labels)
	maps.Copy(labels, m.offering.Labels)
	maps.Copy(labels, claim.Labels)
	for former, key := range karpv1.NormalizedLabels {
		if value, ok := labels[key]; ok {
			labels[former] = value
		}
	}
	labels[corev1.LabelHostname] = name
	labels[karpv1.NodeRegisteredLabelKey], labels[karpv1.NodeInitializedLabelKey] = "true", "true"
	promise := facts.PromiseOf(claim.Annotations)
	has := amounts(m.instanceType.Allocatable)
	has[promise.Resource] = *resource.NewQuantity(m.instanceType.GPU.Count*promise.ReplicasPerGPU, resource.DecimalSI)
	if slots := promise.Slots; !slots.IsZero() {
		if err := layable(slots, m.instanceType.GPU); err != nil {
			return nil, fmt.Errorf("the claim for %s promises what a %s cannot have: %w", name, m.instanceType.Name, err)
		}
		for i, n := range slots.Wanted() {
			has[corev1.ResourceName(nodecontract.SlotResource(slots.SizesMiB[i]))] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name), Labels: labels, Annotations: maps.Clone(claim.Annotations)},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///" + name, Taints: slices.Clone(claim.Spec.Taints)},
		Status:     corev1.NodeStatus{Capacity: has, Allocatable: maps.Clone(has)},
	}, nil
}

// layable returns an error if GPUs cannot have the slots together. The promise says where they are on the planned type, and the controller moves them if the cloud launches
// another one.
func layable(slots nodecontract.Slots, g catalog.GPU) error {
	var sizes []int64
	for i, n := range slots.Wanted() {
		sizes = append(sizes, slices.Repeat([]int64{slots.SizesMiB[i]}, int(n))...)
	}
	slices.Reverse(sizes)
	left := slices.Repeat([]int64{slots.CapacityMiB(g.UsableMiB())}, int(g.Count))
	var fits func(at int) bool
	fits = func(at int) bool {
		if at == len(sizes) {
			return true
		}
		for i := range left {
			if left[i] < sizes[at] || slices.Contains(left[:i], left[i]) {
				continue
			}
			left[i] -= sizes[at]
			if fits(at + 1) {
				return true
			}
			left[i] += sizes[at]
		}
		return false
	}
	if !fits(0) {
		return fmt.Errorf("slots %v on %d GPUs with %d MiB each", slots.Wanted(), g.Count, g.UsableMiB())
	}
	return nil
}

func amounts(r catalog.Resources) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(r.MilliCPU, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(r.MemoryBytes, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(r.EphemeralBytes, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(r.Pods, resource.DecimalSI),
	}
}

// initialized reports whether the claim's node is initialized.
func initialized(claim *karpv1.NodeClaim) bool {
	return facts.Condition(claim.Status.Conditions, karpv1.ConditionTypeInitialized).IsTrue()
}

// resourceOf returns the resource name of the GPUs of a claim's machine.
func resourceOf(claim *karpv1.NodeClaim) corev1.ResourceName {
	return facts.PromiseOf(claim.Annotations).Resource
}
