// Package render turns what the planner decided into the objects to write. It is pure: no client, no clock.
package render

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
)

// maxPoolName keeps a claim's name within the 63 characters of a label value, which Karpenter's providers make of it.
const maxPoolName = 63 - 1 - nameHashLength

const (
	nameHashLength     = 12
	karpv1GroupVersion = "karpenter.sh/v1"
)

// NodeClaim is the claim for one launch of a plan. Its name is a function of the pool, the offering and the pods, so that a second create of
// the same launch is seen as such; of two that were planned one after the other it is not the same. Its requests are physical, CPU and memory only: Karpenter's providers refuse a claim that asks for
// replicas, and never initialise one that asks for a GPU that the node renames.
func NodeClaim(view *snapshot.View, launch planner.Launch) *karpv1.NodeClaim {
	offering := view.Offerings[launch.Offering]
	others := alternatives(view, launch)
	pool := view.Pools[view.Snapshot.Offerings[launch.Offering].Pool]
	np := pool.NodePool
	// A copy, since the claim is decoded into when it is created, and the NodePool is the cache's.
	template := np.Spec.Template.DeepCopy()
	ref := pool.Class.Spec.NodeClassRef
	gpus, replicas := view.Promised(launch)

	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:        freshName(view, np, offering, uids(view, launch.Pods)),
			Labels:      labels(np, pool.Class.Name, offering),
			Annotations: annotations(&pool, offering, gpus, replicas, replaced(view, launch.Pods)),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: karpv1GroupVersion, Kind: "NodePool", Name: np.Name, UID: np.UID, BlockOwnerDeletion: new(true),
			}},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef:  &karpv1.NodeClassReference{Group: ref.Group, Kind: ref.Kind, Name: ref.Name},
			Requirements:  requirements(np, offering, others),
			Taints:        template.Spec.Taints,
			StartupTaints: startupTaints(template),
			Resources:     karpv1.ResourceRequirements{Requests: requests(view, launch, offering)},
			// The zero value would be written as "Never"; a NodePool that was read from the API always says what it wants.
			ExpireAfter:            template.Spec.ExpireAfter,
			TerminationGracePeriod: template.Spec.TerminationGracePeriod,
		},
	}
	if n := repairs(view, launch.Pods); n > 0 {
		claim.Annotations[v1alpha1.RepairsAnnotation] = strconv.Itoa(n)
	}
	if planned := view.PlannedPods(launch); planned != "" {
		claim.Annotations[v1alpha1.PlannedPodsAnnotation] = planned
	}
	if claim.Spec.TerminationGracePeriod == nil {
		claim.Spec.TerminationGracePeriod = drainLimit(pool.Class)
	}
	return claim
}

// drainLimit is how long a machine may drain where the NodePool says nothing; nil for as long as it takes. A time that cannot be read, which the class's Accepted
// condition tells, is as none: no pod is to be deleted by mistake.
func drainLimit(class *v1alpha1.GPUNodeClass) *metav1.Duration {
	d, err := class.Spec.DrainDuration()
	if err != nil || d == nil {
		return nil
	}
	return &metav1.Duration{Duration: *d}
}

// startupTaints are the template's and ours, which a template may hold already.
func startupTaints(template *karpv1.NodeClaimTemplate) []corev1.Taint {
	ours := ReplicasNotReadyTaint()
	others := slices.DeleteFunc(template.Spec.StartupTaints, func(t corev1.Taint) bool { return t.MatchTaint(&ours) })
	return append(others, ours)
}

// ReplicasNotReadyTaint is the startup taint of every machine of ours.
func ReplicasNotReadyTaint() corev1.Taint {
	return corev1.Taint{Key: v1alpha1.ReplicasNotReadyTaintKey, Effect: corev1.TaintEffectNoSchedule}
}

// Name is the name of the claim for the pods with the UIDs, in any order.
func Name(np *karpv1.NodePool, o *snapshot.Offering, pods []types.UID) string {
	sorted := slices.Sorted(slices.Values(pods))
	parts := []string{string(np.UID), o.Type.Name, o.Zone, o.CapacityType}
	for _, key := range slices.Sorted(maps.Keys(o.CustomLabels)) {
		parts = append(parts, key+"="+o.CustomLabels[key])
	}
	for _, uid := range sorted {
		parts = append(parts, string(uid))
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	// A NodePool's name may hold dots, a host's name may not.
	prefix := strings.ReplaceAll(np.Name, ".", "-")
	if len(prefix) > maxPoolName {
		prefix = strings.TrimRight(prefix[:maxPoolName], "-")
	}
	return prefix + "-" + hex.EncodeToString(sum[:])[:nameHashLength]
}

// freshName is the name of a claim that none has which was launched for the same pods, has started and did not hold them: others came first, or it is being
// replaced; or which has not started in time, and is broken. Under its name nothing would be launched for them while it lives. A machine that has not started keeps its name to itself: until then what is
// known of it may be wrong for a moment, and pods that seem to have lost their place have not.
func freshName(view *snapshot.View, np *karpv1.NodePool, o *snapshot.Offering, pods []types.UID) string {
	for {
		name := Name(np, o, pods)
		if !slices.ContainsFunc(view.Machines, func(m snapshot.Machine) bool { return m.Claim.Name == name && view.Decided(&m) }) {
			return name
		}
		pods = append(pods, "again")
	}
}

// uids are those of the pods. Headroom, for which there are none, goes by its names.
func uids(view *snapshot.View, pods []string) []types.UID {
	ids := make([]types.UID, 0, len(pods))
	for _, name := range pods {
		if pod := view.Pods[name]; pod != nil {
			ids = append(ids, pod.UID)
		} else {
			ids = append(ids, types.UID(name))
		}
	}
	return ids
}

// labels are few and the same for many claims: each set of labels makes a launch template of its own on EC2.
func labels(np *karpv1.NodePool, class string, o *snapshot.Offering) map[string]string {
	l := map[string]string{}
	maps.Copy(l, np.Spec.Template.Labels)
	maps.Copy(l, o.CustomLabels)
	l[karpv1.NodePoolLabelKey] = np.Name
	l[v1alpha1.GPUNodeClassLabel] = class
	return l
}

// alternatives are the offerings that the claim names beside the one that was chosen.
func alternatives(view *snapshot.View, launch planner.Launch) []*snapshot.Offering {
	others := make([]*snapshot.Offering, len(launch.Alternatives))
	for i, index := range launch.Alternatives {
		others[i] = view.Offerings[index]
	}
	return others
}

// replaced are the nodes from which the pods come that run already.
func replaced(view *snapshot.View, pods []string) []string {
	nodes := map[string]bool{}
	for _, name := range pods {
		if pod := view.Pods[name]; pod != nil && pod.Spec.NodeName != "" {
			nodes[pod.Spec.NodeName] = true
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// repairs is how many sick machines in a row the machine for the pods stands for.
func repairs(view *snapshot.View, pods []string) int {
	most, nodes := 0, replaced(view, pods)
	for i := range view.Machines {
		if m := &view.Machines[i]; m.Node != nil && slices.Contains(nodes, m.Node.Name) {
			most = max(most, repair.RepairsOfNext(m))
		}
	}
	return most
}

// annotations promise what the machine will expose.
func annotations(pool *snapshot.Pool, o *snapshot.Offering, gpus, replicas int64, replaced []string) map[string]string {
	a := map[string]string{}
	maps.Copy(a, pool.NodePool.Spec.Template.Annotations)
	a[nodecontract.ResourceAnnotation] = string(pool.Resource())
	a[nodecontract.GPUsAnnotation] = strconv.FormatInt(gpus, 10)
	a[nodecontract.ReplicasPerGPUAnnotation] = strconv.FormatInt(replicas, 10)
	if len(replaced) > 0 {
		a[v1alpha1.ReplacesAnnotation] = strings.Join(replaced, ",")
	}
	a[v1alpha1.PriceAnnotation] = strconv.FormatInt(o.MicroUSDPerHour, 10)
	a[karpv1.NodePoolHashAnnotationKey] = pool.NodePool.Hash()
	a[karpv1.NodePoolHashVersionAnnotationKey] = karpv1.NodePoolHashVersion
	return a
}

// requirements are the pool's, as they were written, but for those that the offering decides: instance type, zone and capacity type are always stated,
// so are the labels that were chosen. What was chosen comes first, which tells the machine to expect until there is one; the alternatives follow.
// Karpenter's requirement algebra is not used to write them: it turns Gt into Gte, which the NodeClaims of older versions of Karpenter do not know.
func requirements(np *karpv1.NodePool, o *snapshot.Offering, others []*snapshot.Offering) []karpv1.NodeSelectorRequirementWithMinValues {
	stated := map[string][]string{}
	state := func(key, value string) {
		if !slices.Contains(stated[key], value) {
			stated[key] = append(stated[key], value)
		}
	}
	for _, offering := range append([]*snapshot.Offering{o}, others...) {
		state(corev1.LabelInstanceTypeStable, offering.Type.Name)
		state(corev1.LabelTopologyZone, offering.Zone)
		state(karpv1.CapacityTypeLabelKey, offering.CapacityType)
	}
	for key, value := range o.CustomLabels {
		state(key, value)
	}
	least := map[string]*int{}
	var list []karpv1.NodeSelectorRequirementWithMinValues
	for _, req := range np.Spec.Template.Spec.Requirements {
		if normalized, ok := karpv1.NormalizedLabels[req.Key]; ok {
			req.Key = normalized
		}
		if req.MinValues != nil {
			req.MinValues = new(*req.MinValues)
		}
		if _, ok := stated[req.Key]; ok {
			if known := least[req.Key]; known == nil || req.MinValues != nil && *known < *req.MinValues {
				least[req.Key] = req.MinValues
			}
			continue
		}
		req.Values = slices.Sorted(slices.Values(req.Values))
		list = append(list, req)
	}
	for key, values := range stated {
		list = append(list, karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values, MinValues: least[key]})
	}
	slices.SortFunc(list, func(a, b karpv1.NodeSelectorRequirementWithMinValues) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(string(a.Operator), string(b.Operator)), slices.Compare(a.Values, b.Values))
	})
	return list
}

// requests are what the pods and the DaemonSets ask for of CPU and memory.
func requests(view *snapshot.View, launch planner.Launch, o *snapshot.Offering) corev1.ResourceList {
	milliCPU, memory := o.Daemons.MilliCPU, o.Daemons.MemoryBytes
	wanted := map[string]bool{}
	for _, name := range launch.Pods {
		wanted[name] = true
	}
	for _, class := range view.Classes {
		for _, name := range class.Pods {
			if wanted[name] {
				milliCPU += class.Requests.MilliCPU
				memory += class.Requests.MemoryBytes
			}
		}
	}
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(milliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
	}
}
